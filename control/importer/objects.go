package importer

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
)

// target is where the objects go.
type target struct{ namespace, pool string }

// result is the objects of a registry, each sorted by id.
type result struct {
	models   []*v1alpha1.Model
	vmodels  []*v1alpha1.VModel
	settings *v1alpha1.PoolSettings // nil without type constraints
	// labels are ModelMesh's labels by the Kubernetes labels that replace them.
	labels map[string]string
	// moving are notes about VModels that were moving to another model.
	moving []string
	// skipped is how many models and VModels belong to skipped owners.
	skipped int
	lefts   []left
}

// convert makes objects of a registry. It leaves out the VModels of owners, and the models that
// only they name.
func convert(r registry, constraints map[string]typeConstraint, owners []string, to target) result {
	var out result
	models, vmodels := skip(r, owners)
	out.skipped = len(r.models) - len(models) + len(r.vmodels) - len(vmodels)
	taken := make(map[string]bool, len(models))
	for _, id := range slices.Sorted(maps.Keys(models)) {
		m := modelOf(id, models[id], to)
		if faults := objects.CheckModelObject(m); len(faults) > 0 {
			out.lefts = append(out.lefts, left{"model", id, faults[0].Error()})
			continue
		}
		taken[id] = true
		out.models = append(out.models, m)
	}
	for _, id := range slices.Sorted(maps.Keys(vmodels)) {
		of := vmodels[id]
		v := vmodelOf(id, of, to)
		faults := objects.CheckVModel(v)
		why := ""
		switch {
		case len(faults) > 0:
			why = faults[0].Error()
		case taken[id]:
			why = "a model has the same id, and models and VModels of a pool share their names"
		case !taken[v.Spec.Target]:
			why = fmt.Sprintf("its target %q is not taken over", v.Spec.Target)
		}
		if why != "" {
			out.lefts = append(out.lefts, left{"vmodel", id, why})
			continue
		}
		if of.Failed && of.Active != of.Target {
			out.moving = append(out.moving, fmt.Sprintf("VModel %q stays at %q: its target %q could not be loaded", id, of.Active, of.Target))
		} else if of.Active != "" && of.Active != of.Target {
			out.moving = append(out.moving, fmt.Sprintf("VModel %q was moving from %q to %q: it begins with the latter", id, of.Active, of.Target))
		}
		out.vmodels = append(out.vmodels, v)
	}
	if len(constraints) > 0 {
		all, labels := constraintsOf(constraints)
		s := &v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: to.namespace, Name: to.pool}, Spec: v1alpha1.PoolSettingsSpec{
			PoolRef: v1alpha1.PoolReference{Name: to.pool}, Placement: &v1alpha1.Placement{Constraints: all},
		}}
		if faults := objects.CheckSettings(s); len(faults) > 0 {
			out.lefts = append(out.lefts, left{"constraint", to.pool, faults[0].Error()})
		} else {
			out.settings, out.labels = s, labels
		}
	}
	return out
}

// madeBy matches the ids of models that a controller of ModelMesh registers for an owner, such as
// NAME__isvc-0123456789.
func madeBy(owner string) *regexp.Regexp {
	return regexp.MustCompile(`.__` + regexp.QuoteMeta(owner) + `-[0-9a-f]{10}$`)
}

// skip returns the models and VModels without those of owners. A model belongs to an owner if only
// VModels of owners name it, or if none does and its id is one that the owner's controller makes.
func skip(r registry, owners []string) (map[string]modelRecord, map[string]vmodelRecord) {
	models, vmodels := maps.Clone(r.models), maps.Clone(r.vmodels)
	mine, others := make(map[string]bool), make(map[string]bool)
	for id, v := range r.vmodels {
		named := others
		if slices.Contains(owners, v.Owner) {
			named = mine
			delete(vmodels, id)
		}
		named[v.Active], named[v.Target] = true, true
	}
	for id := range r.models {
		made := slices.ContainsFunc(owners, func(owner string) bool { return madeBy(owner).MatchString(id) })
		if !others[id] && (mine[id] || made) {
			delete(models, id)
		}
	}
	return models, vmodels
}

// registered are the labels of objects that clients of ModelMesh's API may change.
func registered() map[string]string { return map[string]string{statuswriter.RegisteredLabel: "true"} }

func modelOf(id string, r modelRecord, to target) *v1alpha1.Model {
	m := &v1alpha1.Model{
		ObjectMeta: metav1.ObjectMeta{Namespace: to.namespace, Name: objectName(id), Labels: registered()},
		Spec: v1alpha1.ModelSpec{
			PoolRef: v1alpha1.PoolReference{Name: to.pool}, Type: r.Type, Source: r.Path, Key: r.Key,
		},
	}
	if m.Name != id {
		m.Spec.ID = id
	}
	if r.AutoDelete {
		m.Annotations = map[string]string{decide.AutoDelete: "true"}
	}
	return m
}

func vmodelOf(id string, r vmodelRecord, to target) *v1alpha1.VModel {
	v := &v1alpha1.VModel{
		ObjectMeta: metav1.ObjectMeta{Namespace: to.namespace, Name: objectName(id), Labels: registered()},
		Spec:       v1alpha1.VModelSpec{PoolRef: v1alpha1.PoolReference{Name: to.pool}, Target: r.Target, Owner: r.Owner},
	}
	if r.Failed {
		v.Spec.Target = cmp.Or(r.Active, r.Target)
	}
	if v.Name != id {
		v.Spec.ID = id
	}
	return v
}
