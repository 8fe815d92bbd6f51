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

// RPC is a pool's configuration of a gRPC method: where its messages name the model.
type RPC struct {
	// Path is the field numbers that lead to the model's id, nil if the id is only in the headers.
	Path []uint32
	// VModel says that the id may be a VModel's, which takes precedence over a model's.
	VModel bool
}

func (r RPC) equal(o RPC) bool { return r.VModel == o.VModel && slices.Equal(r.Path, o.Path) }

const (
	maxRPCs        = 64 // per pool
	maxLevels      = 16
	maxFieldNumber = 1<<29 - 1
	firstOwnNumber = 19000 // reserved by protobuf
	lastOwnNumber  = 19999
)

var rpcName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*/[A-Za-z_][A-Za-z0-9_]*$`)

// checkRPCs refuses impossible methods and paths. Package extproc/kserve has the same rules for
// paths, except that an empty path is invalid there.
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
				errs = append(errs, field.Invalid(numbers.Index(i), n, fmt.Sprintf("field numbers go from 1 to %d", maxFieldNumber)))
			case n >= firstOwnNumber && n <= lastOwnNumber:
				errs = append(errs, field.Invalid(numbers.Index(i), n,
					fmt.Sprintf("protobuf reserves the field numbers from %d to %d", firstOwnNumber, lastOwnNumber)))
			}
		}
	}
	return errs
}

// ownRPC is one pool's configuration of a method.
type ownRPC struct {
	RPC
	pool Name
}

// addRPCs indexes the pools' gRPC methods. Two pools with different configurations of one method
// are a Problem, because the pool of a call is known only once its model is.
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
			w.problem("rpcConfigs of the PoolSettings of InferencePool %s differ for the gRPC method %s from those of InferencePool %s: the latter apply to calls that may be for either pool",
				strings.Join(others, ", "), method, first.pool)
		}
	}
}

// RPC returns where messages of a gRPC method name the model, for a call to any of the pools for
// which counts is true. The first such pool by name that configures the method decides. It returns
// false if none does and at least one of them leaves the method to the default.
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

// TakesRPC reports whether a gRPC method is for the pool's models. P may be nil.
func (p *Pool) TakesRPC(method string) bool {
	if p == nil || p.Settings == nil || p.Settings.AllowOtherRPCs == nil || *p.Settings.AllowOtherRPCs {
		return true
	}
	_, named := p.Settings.RPCConfigs[method]
	return named
}
