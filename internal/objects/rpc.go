package objects

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
)

// RPC is what a pool says of a gRPC method: where the model stands in its messages.
type RPC struct {
	// Path are the numbers of fields that lead to the model's id, nil if it is in the headers alone.
	Path []uint32
	// VModel says that the id is that of a VModel if there is one of it, else of a model.
	VModel bool
}

func (r RPC) equal(o RPC) bool { return r.VModel == o.VModel && slices.Equal(r.Path, o.Path) }

const (
	maxRPCs        = 64 // that a pool names
	maxLevels      = 16
	maxFieldNumber = 1<<29 - 1
	firstOwnNumber = 19000 // protobuf's own
	lastOwnNumber  = 19999
)

var rpcName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*/[A-Za-z_][A-Za-z0-9_]*$`)

// checkRPCs refuses methods that there cannot be, and paths that lead to no field. Package extproc/kserve has the same rules of paths, but that one
// without a number is none there.
func checkRPCs(path *field.Path, all map[string]v1alpha1.RPCConfig) field.ErrorList {
	if n := len(all); n > maxRPCs {
		return field.ErrorList{field.TooMany(path, n, maxRPCs)}
	}
	var errs field.ErrorList
	for _, method := range slices.Sorted(maps.Keys(all)) {
		if !rpcName.MatchString(method) {
			errs = append(errs, field.Invalid(path.Key(method), method, "write methods as package.Service/Method"))
		}
		numbers := path.Key(method).Child("idExtractionPath")
		if n := len(all[method].IDExtractionPath); n > maxLevels {
			errs = append(errs, field.TooMany(numbers, n, maxLevels))
		}
		for i, n := range all[method].IDExtractionPath {
			switch {
			case n < 1 || n > maxFieldNumber:
				errs = append(errs, field.Invalid(numbers.Index(i), n, fmt.Sprintf("numbers of fields go from 1 to %d", maxFieldNumber)))
			case n >= firstOwnNumber && n <= lastOwnNumber:
				errs = append(errs, field.Invalid(numbers.Index(i), n, fmt.Sprintf("protobuf keeps the numbers from %d to %d for itself", firstOwnNumber, lastOwnNumber)))
			}
		}
	}
	return errs
}

// ownRPC is what a pool says of a method.
type ownRPC struct {
	RPC
	pool Name
}

// addRPCs indexes what pools say of gRPC methods. Of two that say different things that is a Problem: which of them a call is for is not known
// before its model is.
func (w *World) addRPCs() {
	w.rpcs = make(map[string][]ownRPC)
	for _, name := range slices.SortedFunc(maps.Keys(w.Pools), Name.Compare) {
		s := w.Pools[name].Settings
		if s == nil {
			continue
		}
		for method, c := range s.RPCConfigs {
			rpc := RPC{VModel: c.VModelID}
			for _, n := range c.IDExtractionPath {
				rpc.Path = append(rpc.Path, uint32(n)) //nolint:gosec // checkRPCs let it through
			}
			w.rpcs[method] = append(w.rpcs[method], ownRPC{rpc, name})
		}
	}
	for _, method := range slices.Sorted(maps.Keys(w.rpcs)) {
		all := w.rpcs[method]
		first := all[0]
		var others []string
		for _, o := range all[1:] {
			if !o.equal(first.RPC) {
				others = append(others, o.pool.String())
			}
		}
		if len(others) > 0 {
			w.problem("rpcConfigs of the PoolSettings of InferencePool %s say something else of the gRPC method %s than those of InferencePool %s: for calls that may be for either the latter count",
				strings.Join(others, ", "), method, first.pool)
		}
	}
}

// RPC is where the model stands in the messages of a gRPC method, for a call that may be for the pools that count: as the first of them, by name, says
// that says anything of the method. It reports false where none does and one of them leaves it to the default.
func (w *World) RPC(method string, counts func(pool Name) bool) (RPC, bool) {
	if len(w.rpcs) == 0 {
		return RPC{}, false
	}
	for _, own := range w.rpcs[method] {
		if counts(own.pool) {
			return own.RPC, true
		}
	}
	some := false
	for name, p := range w.Pools {
		switch {
		case !counts(name):
		case p.Settings == nil || len(p.Settings.RPCConfigs) == 0:
			return RPC{}, false
		default:
			some = true
		}
	}
	return RPC{}, some
}

// TakesRPC says whether calls of a gRPC method are for models of the pool. P may be nil.
func (p *Pool) TakesRPC(method string) bool {
	if p == nil || p.Settings == nil || p.Settings.AllowOtherRPCs == nil || *p.Settings.AllowOtherRPCs {
		return true
	}
	_, named := p.Settings.RPCConfigs[method]
	return named
}
