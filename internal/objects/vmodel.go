package objects

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
)

// VModel is a name that resolves to a model of its pool and can be moved to another model.
type VModel struct {
	ModelKey
	// Object is the VModel. UID is empty and Generation 0 if objects have none.
	Object     Name
	UID        string
	Generation int64
	// Target is the id of the model for its requests. Percent percent of them go to Canary, if
	// there is one.
	Target  string
	Canary  string
	Percent int
	Owner   string
	// Taken says which object has the same id, empty if there is none.
	Taken string
}

// VModelOf converts a VModel.
func VModelOf(o *v1alpha1.VModel) VModel {
	v := VModel{
		ModelKey: ModelKey{Pool: Name{o.Namespace, o.Spec.PoolRef.Name}, ID: cmp.Or(o.Spec.ID, o.Name)},
		Object:   Name{o.Namespace, o.Name}, UID: string(o.UID), Generation: o.Generation,
		Target: o.Spec.Target, Owner: o.Spec.Owner,
	}
	if c := o.Spec.Canary; c != nil {
		v.Canary, v.Percent = c.Target, int(c.Percent)
	}
	return v
}

// maxPercent is the largest share of a canary; the rest goes to the target.
const maxPercent = 99

// CheckVModel validates a VModel.
func CheckVModel(o *v1alpha1.VModel) field.ErrorList {
	errs := CheckName(o.Name)
	spec := field.NewPath("spec")
	errs = append(errs, checkModel(spec.Child("id"), cmp.Or(o.Spec.ID, o.Name))...)
	if o.Spec.PoolRef.Name == "" {
		errs = append(errs, field.Required(spec.Child("poolRef", "name"), "name the InferencePool of its models, in the same namespace"))
	}
	errs = append(errs, checkLength(spec.Child("poolRef", "name"), o.Spec.PoolRef.Name, maxNameLen)...)
	errs = append(errs, checkModel(spec.Child("target"), o.Spec.Target)...)
	errs = append(errs, checkLength(spec.Child("owner"), o.Spec.Owner, maxType)...)
	if c := o.Spec.Canary; c != nil {
		errs = append(errs, checkModel(spec.Child("canary", "target"), c.Target)...)
		if c.Percent < 1 || c.Percent > maxPercent {
			errs = append(errs, field.Invalid(spec.Child("canary", "percent"), c.Percent, fmt.Sprintf("it must be 1 to %d", maxPercent)))
		}
	}
	return errs
}

// CheckVModelChange refuses a change of the id, by which requests name it.
func CheckVModelChange(was, is *v1alpha1.VModel) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	a, b := VModelOf(was), VModelOf(is)
	for _, f := range []struct{ name, words, was, is string }{{"id", "id", a.ID, b.ID}, {"poolRef", "pool", a.Pool.Name, b.Pool.Name}} {
		if f.was != f.is {
			errs = append(errs, field.Forbidden(spec.Child(f.name),
				fmt.Sprintf("it was %q, and the %s of a VModel may not change: delete the VModel and create one with another name and id",
					f.was, f.words)))
		}
	}
	return errs
}

// VModel returns the VModel that owns an id in a pool, and whether there is one.
func (w *World) VModel(key ModelKey) (VModel, bool) {
	at, ok := w.vmodels[key]
	if !ok {
		return VModel{}, false
	}
	return w.VModels[at], true
}

// HasItsID reports whether a VModel owns its id.
func (w *World) HasItsID(v VModel) bool {
	own, ok := w.VModel(v.ModelKey)
	return ok && own.Object == v.Object
}

// addVModels adds the VModels of objects. An id that a Model or an older VModel has belongs to that
// one. A VModel whose id no route admits can be requested by its id.
func (w *World) addVModels(all []v1alpha1.VModel, models map[ModelKey]Name) {
	ordered := slices.Clone(all)
	slices.SortStableFunc(ordered, func(a, b v1alpha1.VModel) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), Name{a.Namespace, a.Name}.Compare(Name{b.Namespace, b.Name}))
	})
	known := make(map[ModelKey]Name)
	for i := range ordered {
		o := &ordered[i]
		v := VModelOf(o)
		taken := w.byModel[v.ID]
		switch first, isKnown := known[v.ModelKey]; {
		case models[v.ModelKey] != Name{}:
			v.Taken = w.fault(v1alpha1.VModelKind, v.Object, v1alpha1.ReasonModelNameTaken,
				"its id %q in InferencePool %s is that of Model %s, which keeps it", v.ID, v.Pool, models[v.ModelKey])
		case isKnown:
			v.Taken = w.fault(v1alpha1.VModelKind, v.Object, v1alpha1.ReasonModelNameTaken,
				"its id %q in InferencePool %s is that of VModel %s, which keeps it", v.ID, v.Pool, first)
		case taken != nil && (!taken.LeadsTo(v.Pool) || taken.Adapter != v.ID):
			v.Taken = w.fault(v1alpha1.VModelKind, v.Object, v1alpha1.ReasonModelNameTaken,
				"requests for %q belong to %s %s: no request can name this VModel by its id", v.ID, taken.Kind, taken.Name)
			known[v.ModelKey] = v.Object // a route's adapter may still be this VModel
		default:
			known[v.ModelKey] = v.Object
		}
		if w.Pools[v.Pool] == nil {
			w.fault(v1alpha1.VModelKind, v.Object, v1alpha1.ReasonPoolNotFound,
				"spec.poolRef names InferencePool %s, which does not exist: nothing can load its models", v.Pool)
		}
		if known[v.ModelKey] == v.Object {
			r := &Route{
				Name: v.Object, Kind: v1alpha1.VModelKind, Generation: o.Generation, Adapter: v.ID,
				Backends: []Backend{{Pool: v.Pool, Weight: 1}},
				wants:    []string{v.ID}, created: o.CreationTimestamp.Time, written: w.written[Object{v1alpha1.VModelKind, v.Object}],
			}
			w.unrouted[v.Pool] = append(w.unrouted[v.Pool], r)
			if taken == nil {
				w.add(r)
			}
		}
		w.VModels = append(w.VModels, v)
	}
	slices.SortFunc(w.VModels, func(a, b VModel) int { return cmp.Or(a.Compare(b.ModelKey), a.Object.Compare(b.Object)) })
	w.vmodels = make(map[ModelKey]int, len(known))
	for i := range w.VModels {
		if v := &w.VModels[i]; known[v.ModelKey] == v.Object {
			w.vmodels[v.ModelKey] = i
		}
	}
}
