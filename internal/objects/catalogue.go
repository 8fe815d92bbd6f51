package objects

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
)

// ModelKey identifies a model that engines can load: its pool and its name in the engine.
type ModelKey struct {
	Pool Name
	ID   string
}

// String returns "namespace/pool/id".
func (k ModelKey) String() string { return k.Pool.String() + "/" + k.ID }

// Compare orders keys by pool, then id.
func (k ModelKey) Compare(l ModelKey) int {
	return cmp.Or(k.Pool.Compare(l.Pool), strings.Compare(k.ID, l.ID))
}

// Entry is a model of the catalogue: the values of its Model, or the defaults for an LLMRoute's
// adapter without a Model.
type Entry struct {
	ModelKey
	// Object is the Model, zero for an adapter without one.
	Object Name
	// UID distinguishes the Model from earlier objects of the same name. It is empty if objects
	// have no UIDs.
	UID string
	// Generation is the Model's generation, 0 if objects have none.
	Generation int64
	// Taken says which model has the same id, empty if there is none.
	Taken string
	Type  string
	// BaseModel is the base model of an adapter; empty means any engine of the pool.
	BaseModel string
	Source    string
	// Info is passed to a model runtime together with the source. It is the Model's key, or its
	// storage as JSON with ModelMesh's fields.
	Info string
	// Size is a hint in bytes, 0 if there is none. Complete may derive it from Info.
	Size int64
	// ServiceTime is how long an otherwise idle engine takes for one request of a model without
	// tokens; 0 if unknown.
	ServiceTime time.Duration
	// Min and Max limit the number of copies; Max 0 means no limit.
	Min, Max int
	// Pinned models are never evicted.
	Pinned bool
}

// DefaultType is the type of a model without one.
const DefaultType = "lora"

// idPlaceholder stands for the model's id in a PoolSettings' source.
const idPlaceholder = "{id}"

// DefaultSource is placement.source of a pool whose PoolSettings sets none.
const DefaultSource = idPlaceholder

// Complete sets the defaults: the type, the source from the settings of p, which may be nil, and
// the size from Info. A pinned model has at least one copy.
func (e Entry) Complete(p *Pool) Entry {
	e.Type = cmp.Or(e.Type, DefaultType)
	if e.Size == 0 {
		e.Size = sizeOnDisk(e.Info)
	}
	if e.Source == "" {
		source := DefaultSource
		if p != nil && p.Settings != nil && p.Settings.Placement != nil {
			source = cmp.Or(p.Settings.Placement.Source, source)
		}
		e.Source = strings.ReplaceAll(source, idPlaceholder, e.ID)
	}
	if e.Pinned {
		e.Min = max(e.Min, 1)
	}
	return e
}

// sizePerDisk is the memory that a model takes relative to its files (ModelMesh's
// MODELSIZE_MULTIPLIER).
const sizePerDisk = 1.25

// sizeOnDisk estimates a model's memory in bytes from the modelKey of ModelMesh's interface, which
// may contain the size of its files; 0 if it does not.
func sizeOnDisk(info string) int64 {
	if info == "" {
		return 0
	}
	size := gjson.Get(info, "disk_size_bytes")
	if size.Type != gjson.Number || !gjson.Valid(info) {
		return 0
	}
	if bytes := size.Num * sizePerDisk; bytes >= 1 && bytes < math.MaxInt64 {
		return int64(bytes)
	}
	return 0
}

// EntryOf returns the values of a Model without defaults.
func EntryOf(m *v1alpha1.Model) Entry {
	s := &m.Spec
	e := Entry{
		ModelKey: ModelKey{Pool: Name{m.Namespace, s.PoolRef.Name}, ID: cmp.Or(s.ID, m.Name)},
		Object:   Name{m.Namespace, m.Name}, UID: string(m.UID), Generation: m.Generation,
		Type: s.Type, BaseModel: s.BaseModel, Source: s.Source, Info: infoOf(s), Pinned: s.Pinned,
	}
	if s.Size != nil {
		e.Size = s.Size.Value()
	}
	if s.ServiceTime != nil {
		e.ServiceTime = s.ServiceTime.Duration
	}
	if s.Copies != nil {
		e.Min = int(s.Copies.Min)
		if s.Copies.Max != nil {
			e.Max = int(*s.Copies.Max)
		}
	}
	return e
}

// maxServiceTime is the longest service time that a Model may state.
const maxServiceTime = time.Hour

// CheckModelObject validates a Model.
func CheckModelObject(m *v1alpha1.Model) field.ErrorList {
	errs := CheckName(m.Name)
	spec := field.NewPath("spec")
	errs = append(errs, checkModel(spec.Child("id"), cmp.Or(m.Spec.ID, m.Name))...)
	if m.Spec.PoolRef.Name == "" {
		errs = append(errs, field.Required(spec.Child("poolRef", "name"),
			"name the InferencePool whose engines load it, in the same namespace"))
	}
	errs = append(errs, checkLength(spec.Child("poolRef", "name"), m.Spec.PoolRef.Name, maxNameLen)...)
	errs = append(errs, checkLength(spec.Child("type"), m.Spec.Type, maxType)...)
	errs = append(errs, checkLength(spec.Child("baseModel"), m.Spec.BaseModel, maxType)...)
	errs = append(errs, checkLength(spec.Child("source"), m.Spec.Source, maxPath)...)
	errs = append(errs, checkLength(spec.Child("key"), m.Spec.Key, maxInfo)...)
	errs = append(errs, checkStorage(spec, &m.Spec)...)
	if s := m.Spec.Size; s != nil && s.Sign() <= 0 {
		errs = append(errs, field.Invalid(spec.Child("size"), s.String(), "it must be above 0, such as 50Mi"))
	}
	if p := m.Spec.ServiceTime; p != nil && (p.Duration <= 0 || p.Duration > maxServiceTime) {
		errs = append(errs, field.Invalid(spec.Child("serviceTime"), p.Duration.String(),
			"it must be above 0s and no more than 1h, such as 15ms"))
	}
	if c := m.Spec.Copies; c != nil {
		if c.Min < 0 {
			errs = append(errs, field.Invalid(spec.Child("copies", "min"), c.Min, "it must be at least 0"))
		}
		if c.Max != nil && (*c.Max < 1 || *c.Max < c.Min) {
			errs = append(errs, field.Invalid(spec.Child("copies", "max"), *c.Max, "it must be at least 1 and at least min"))
		}
	}
	return errs
}

// CheckModelChange refuses changes of a Model's identity: another model needs another id.
func CheckModelChange(was, is *v1alpha1.Model) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	a, b := EntryOf(was), EntryOf(is)
	const rule = "only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id"
	for _, f := range []struct{ name, was, is string }{
		{"id", a.ID, b.ID},
		{"poolRef", a.Pool.Name, b.Pool.Name},
		{"type", cmp.Or(a.Type, DefaultType), cmp.Or(b.Type, DefaultType)},
		{"baseModel", a.BaseModel, b.BaseModel},
		{"source", a.Source, b.Source},
		{"size", strconv.FormatInt(a.Size, 10), strconv.FormatInt(b.Size, 10)},
	} {
		if f.was != f.is {
			errs = append(errs, field.Forbidden(spec.Child(f.name), fmt.Sprintf("it was %q, and %s", f.was, rule)))
		}
	}
	// The values of these two may be secret.
	if was.Spec.Key != is.Spec.Key {
		errs = append(errs, field.Forbidden(spec.Child("key"), rule))
	}
	if !sameStorage(was.Spec.Storage, is.Spec.Storage) {
		errs = append(errs, field.Forbidden(spec.Child("storage"), rule))
	}
	return errs
}

// addCatalogue builds the catalogue: the models, and those adapters of routes that are neither
// models nor VModels. A model whose id no route admits can be requested by its id.
func (w *World) addCatalogue(models []*v1alpha1.Model, vmodels []v1alpha1.VModel) {
	ordered := slices.Clone(models)
	slices.SortStableFunc(ordered, func(a, b *v1alpha1.Model) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), Name{a.Namespace, a.Name}.Compare(Name{b.Namespace, b.Name}))
	})
	known := make(map[ModelKey]Name)
	told := make(map[Name]Name) // pool of each Model with an explicit source, by namespace and id
	for _, m := range ordered {
		e := EntryOf(m)
		p := w.Pools[e.Pool]
		if first, ok := known[e.ModelKey]; ok {
			e.Taken = w.fault(v1alpha1.ModelKind, e.Object, v1alpha1.ReasonModelNameTaken,
				"its id %q in InferencePool %s is that of Model %s, which keeps it", e.ID, e.Pool, first)
			w.Doubles = append(w.Doubles, e)
			continue
		}
		if p == nil {
			w.fault(v1alpha1.ModelKind, e.Object, v1alpha1.ReasonPoolNotFound,
				"spec.poolRef names InferencePool %s, which does not exist: nothing can load it", e.Pool)
		}
		known[e.ModelKey] = e.Object
		taken := w.byModel[e.ID]
		if taken != nil && (!taken.LeadsTo(e.Pool) || taken.Adapter != e.ID) {
			e.Taken = w.fault(v1alpha1.ModelKind, e.Object, v1alpha1.ReasonModelNameTaken,
				"requests for %q belong to %s %s: no request can name this Model by its id", e.ID, taken.Kind, taken.Name)
		}
		e = e.Complete(p)
		if e.Source != e.ID || e.Type != DefaultType {
			told[Name{e.Pool.Namespace, e.ID}] = e.Pool
		}
		w.Catalogue = append(w.Catalogue, e)
		r := &Route{
			Name: e.Object, Kind: v1alpha1.ModelKind, Generation: m.Generation, Adapter: e.ID,
			Backends: []Backend{{Pool: e.Pool, Weight: 1}},
			wants:    []string{e.ID}, created: m.CreationTimestamp.Time, written: w.written[Object{v1alpha1.ModelKind, e.Object}],
		}
		w.unrouted[e.Pool] = append(w.unrouted[e.Pool], r)
		if taken == nil {
			w.add(r)
		}
	}
	w.addVModels(vmodels, known)
	for _, r := range w.Routes {
		for _, b := range r.Backends {
			key := ModelKey{b.Pool, r.Adapter}
			if _, ok := known[key]; ok || r.Adapter == "" {
				continue
			}
			if _, ok := w.vmodels[key]; ok {
				continue
			}
			known[key] = Name{}
			e := Entry{ModelKey: key}.Complete(w.Pools[b.Pool])
			if pool, ok := told[Name{b.Pool.Namespace, e.ID}]; ok && e.Source == e.ID && b.Weight > 0 && w.Pools[b.Pool] != nil {
				w.problem("%s %s: adapter %q is a Model of InferencePool %s, but its requests go to %s, which has no such Model: engines there cannot find its files",
					r.Kind, r.Name, e.ID, pool, b.Pool)
			}
			w.Catalogue = append(w.Catalogue, e)
		}
	}
	slices.SortFunc(w.Catalogue, func(a, b Entry) int { return a.Compare(b.ModelKey) })
}

// Entry returns a model's entry in the catalogue; false if it has none.
func (w *World) Entry(k ModelKey) (*Entry, bool) {
	at, ok := slices.BinarySearchFunc(w.Catalogue, k, func(e Entry, k ModelKey) int { return e.Compare(k) })
	if !ok {
		return nil, false
	}
	return &w.Catalogue[at], true
}

const (
	portScheme = "port:"
	unixScheme = "unix:"
)

// checkManagement validates the management address of a model runtime.
func checkManagement(text string) error {
	if port, ok := strings.CutPrefix(text, portScheme); ok {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
			return nil
		}
	}
	if path, ok := strings.CutPrefix(text, unixScheme); ok && path != "" {
		return nil
	}
	return errors.New("want port:NUMBER or unix:PATH, such as port:8085")
}

// managementAt is the management address of the engine at an address, from text that passed
// [checkManagement]; empty if there is none.
func managementAt(text string, at netip.AddrPort) string {
	if port, ok := strings.CutPrefix(text, portScheme); ok {
		n, _ := strconv.ParseUint(port, 10, 16) // already validated
		return netip.AddrPortFrom(at.Addr(), uint16(n)).String()
	}
	return text
}

// addManagement sets the management address of endpoints whose kind has one, and makes managed
// endpoints of no stated kind model runtimes.
func (w *World) addManagement() {
	for _, p := range w.Pools {
		for i := range p.Endpoints {
			e := &p.Endpoints[i]
			at, err := netip.ParseAddrPort(e.Address)
			if err == nil && e.Management == "" && (e.Kind == "" || e.Kind.Managed()) {
				if p.Settings != nil && p.Settings.Placement != nil {
					e.Management = managementAt(p.Settings.Placement.Management, at)
				}
				if e.Kind == engine.TorchServe {
					e.Management = cmp.Or(e.Management, netip.AddrPortFrom(at.Addr(), engine.TorchServePort).String())
				}
			}
			if e.Management != "" {
				e.Kind = cmp.Or(e.Kind, engine.ModelRuntime)
			}
		}
	}
}
