package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

// vmodels contains the VModels of a Placer. Placer.mu guards it.
type vmodels struct {
	declared   map[decide.Key]objects.VModel // declared by objects; only VModels that own their id
	registered map[decide.Key]*v1alpha1.VModel
	moved      map[decide.Key]decide.VModelProgress // records of an earlier process for VModels that are not set yet
	unsaved    map[decide.Key]bool                  // VModels whose status must be written
	// loose are registered models that are to be deleted once no VModel names them. Some of them
	// may still be named.
	loose map[decide.Key]bool
}

func newVModels() vmodels {
	return vmodels{
		declared: make(map[decide.Key]objects.VModel), registered: make(map[decide.Key]*v1alpha1.VModel),
		moved: make(map[decide.Key]decide.VModelProgress), unsaved: make(map[decide.Key]bool), loose: make(map[decide.Key]bool),
	}
}

// of returns the VModel with this key, whether a client registered it, and whether it exists.
func (v *vmodels) of(key decide.Key) (is objects.VModel, registered, there bool) {
	if o := v.registered[key]; o != nil {
		return objects.VModelOf(o), true, true
	}
	is, there = v.declared[key]
	return is, false, there
}

// recallVModels reads the records of VModels that an earlier process left.
func (p *Placer) recallVModels() error {
	all, err := p.Memory.VModels()
	if err != nil {
		return fmt.Errorf("registered VModels: %w", err)
	}
	statuses, err := p.Memory.VModelStatuses()
	if err != nil {
		return fmt.Errorf("status of VModels: %w", err)
	}
	for _, st := range statuses {
		if key, ok := keyOf(st.Pool, st.ID); ok && st.Status.Active != "" {
			moved := decide.VModelProgress{Active: st.Status.Active, Previous: st.Status.Previous}
			if until := st.Status.PreviousUntil; until != nil {
				moved.Until = until.Time
			}
			p.vmodels.moved[key] = moved
		}
	}
	names := make(map[decide.Key]bool, len(all))
	for i := range all {
		key := objects.VModelOf(&all[i]).ModelKey
		p.vmodels.registered[key], names[key] = &all[i], true
	}
	p.Publisher.Publish(decide.Change{Registered: names})
	return nil
}

// putVModel passes a VModel to package decide.
func (p *Placer) putVModel(v objects.VModel, force bool, now time.Time) {
	p.state.SetVModel(decide.VModel{Key: v.ModelKey, Target: v.Target, Canary: v.Canary, Percent: v.Percent}, p.vmodels.moved[v.ModelKey],
		force, now)
	delete(p.vmodels.moved, v.ModelKey)
	p.vmodels.unsaved[v.ModelKey] = true
}

// setVModels applies the VModels of the objects and the registered VModels. It must run after
// setEndpoints, because requests for a VModel go to its target at once if its active model has no
// copy. The caller holds mu.
func (p *Placer) setVModels(w *objects.World, now time.Time) {
	for key, o := range p.vmodels.registered {
		if _, told := p.state.VModel(key); !told {
			p.putVModel(objects.VModelOf(o), false, now)
		}
	}
	known := p.vmodels.declared
	p.vmodels.declared = make(map[decide.Key]objects.VModel, len(w.VModels))
	for _, v := range w.VModels {
		key := v.ModelKey
		if !w.HasItsID(v) {
			continue
		}
		p.vmodels.declared[key] = v
		if o := p.vmodels.registered[key]; o != nil {
			if o.Name != v.Object.Name || o.Generation > v.Generation { // the object is older than the registered VModel
				continue
			}
			o.Generation, o.UID = v.Generation, ""
			o.Spec.Target, o.Spec.Owner, o.Spec.Canary = v.Target, v.Owner, nil
			if v.Canary != "" {
				o.Spec.Canary = &v1alpha1.Canary{Target: v.Canary, Percent: int32(v.Percent)} //nolint:gosec // a percentage
			}
		}
		if known[key] != v {
			p.putVModel(v, false, now)
		}
	}
	for key := range known {
		if _, _, there := p.vmodels.of(key); !there {
			p.state.RemoveVModel(key)
			p.vmodels.unsaved[key] = true
		}
	}
}

// VModel returns the state and the owner of a VModel, and whether it exists.
func (p *Placer) VModel(key decide.Key) (st decide.VModelStatus, owner string, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st, _ = p.state.VModel(key)
	is, _, there := p.vmodels.of(key)
	return st, is.Owner, there
}

// SetVModel creates a registered VModel, or changes its target, under the given conditions. It
// returns once the change is stored. model is the target, which is registered if it is new; nil
// means that the target must exist.
func (p *Placer) SetVModel(o *v1alpha1.VModel, model *v1alpha1.Model, terms decide.Conditions) error {
	p.mu.Lock()
	waits, err := p.setVModelLocked(o, model, terms)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	for _, wait := range waits {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

// setVModelLocked is SetVModel without waiting for storage; call the functions in waits to wait.
// The caller holds mu.
func (p *Placer) setVModelLocked(o *v1alpha1.VModel, model *v1alpha1.Model, terms decide.Conditions) (waits []func() error, err error) {
	v := objects.VModelOf(o)
	is, registered, there := p.vmodels.of(v.ModelKey)
	moves := is.Target != v.Target // also true for a new VModel
	switch {
	case !there && terms.UpdateOnly:
		return nil, decide.ErrNoVModel
	case there && is.Owner != v.Owner:
		return nil, &decide.OwnedError{Owner: is.Owner}
	case moves && terms.Expected != "" && terms.Expected != cmp.Or(is.Target, v.Target):
		return nil, decide.ErrUnexpected
	case moves && there && !registered:
		return nil, decide.ErrDeclared
	}
	if model != nil {
		_, wait, err := p.registerLocked(model, terms.Used)
		if err != nil {
			return nil, err
		}
		waits = append(waits, wait)
	} else if _, there := p.state.Status(decide.Key{Pool: v.Pool, ID: v.Target}); !there {
		return nil, decide.ErrNoModel
	}
	switch {
	case !there:
		o.Generation = 1
	case registered:
		o = p.vmodels.registered[v.ModelKey].DeepCopy()
		if o.Spec.Target = v.Target; moves {
			o.Generation++
		}
	}
	if !there || registered {
		p.vmodels.registered[v.ModelKey] = o
		is = objects.VModelOf(o)
		waits = append(waits, p.Memory.PutVModel(o.DeepCopy(), !there))
	}
	p.updateLocked(func(now time.Time) []decide.Action { p.putVModel(is, terms.Force, now); return nil })
	if !there {
		p.Publisher.Publish(decide.Change{Registered: map[decide.Key]bool{v.ModelKey: true}})
	}
	return waits, nil
}

// DeleteVModel deletes a registered VModel, and returns once the deletion is stored. It does
// nothing if the VModel does not exist or has another owner. The error is [decide.ErrDeclared] for
// a VModel that objects declare.
func (p *Placer) DeleteVModel(key decide.Key, owner string) error {
	p.mu.Lock()
	is, registered, there := p.vmodels.of(key)
	if !there || is.Owner != owner || !registered {
		p.mu.Unlock()
		if there && is.Owner == owner {
			return decide.ErrDeclared
		}
		return nil
	}
	o := p.vmodels.registered[key]
	delete(p.vmodels.registered, key)
	delete(p.vmodels.declared, key) // the object that stores the registration, also deleted
	p.updateLocked(func(time.Time) []decide.Action { p.state.RemoveVModel(key); return nil })
	p.Publisher.Publish(decide.Change{Registered: map[decide.Key]bool{key: false}})
	p.vmodels.unsaved[key] = true
	wait := p.Memory.DeleteVModel(o)
	p.mu.Unlock()
	return wait()
}

// markLoose records that a registered model may no longer be named by any VModel. The caller holds
// mu.
func (p *Placer) markLoose(key decide.Key) {
	if m := p.registered[key]; m != nil && m.Annotations[decide.AutoDelete] != "" {
		p.vmodels.loose[key] = true
	}
}

// sweep unregisters, in new goroutines, the models in loose that no VModel names. The caller holds
// mu.
func (p *Placer) sweep() {
	if p.running == nil || p.running.Err() != nil {
		return
	}
	for key := range p.vmodels.loose {
		if p.registered[key] == nil || len(p.state.References(key)) > 0 {
			delete(p.vmodels.loose, key)
			continue
		}
		p.work.Go(func() {
			if err := p.Unregister(key); err != nil && !errors.Is(err, decide.ErrReferred) {
				p.Log.Warn("cannot unregister a model that no VModel names any more; trying again when a VModel changes", "model",
					key.String(), "err", err)
			}
		})
	}
}

// referents returns the names of the VModels whose requests may go to a model, as text; empty if
// there are none. The caller holds mu.
func (p *Placer) referents(key decide.Key) string {
	var all []string
	for _, by := range p.state.References(key) {
		if v, _ := p.state.VModel(by); v.Active == key.ID || v.Target == key.ID || v.Canary == key.ID {
			all = append(all, by.ID)
		}
	}
	return strings.Join(all, ", ")
}

// AwaitVModel returns when done reports true for the status of a VModel, the VModel does not exist,
// or ctx ends.
func (p *Placer) AwaitVModel(ctx context.Context, key decide.Key, done func(decide.VModelStatus) bool) error {
	return p.watch(ctx, key, func() bool {
		st, _, there := p.VModel(key)
		return !there || done(st)
	})
}

// saveVModels returns the VModel statuses to write. The caller holds mu.
func (p *Placer) saveVModels() (all []store.VModelStatus) {
	for _, key := range slices.SortedFunc(maps.Keys(p.vmodels.unsaved), decide.Key.Compare) {
		delete(p.vmodels.unsaved, key)
		record := store.VModelStatus{Pool: key.Pool.String(), ID: key.ID, Gone: true}
		if v, _, there := p.vmodels.of(key); there {
			if d, ok := p.vmodels.declared[key]; ok {
				v.UID, v.Generation = d.UID, d.Generation
			}
			behind := p.Publisher.Behind(key)
			if len(behind) > 0 {
				p.vmodels.unsaved[key] = true // write the status again until no extproc is behind
			}
			st, _ := p.state.VModel(key)
			record.Object, record.UID, record.Status, record.Gone = v.Object, v.UID, p.vmodelStatus(v, st, behind), false
		}
		all = append(all, record)
	}
	return all
}

// vmodelStatus converts a VModel's status for its object. behind are the extprocs that may not know
// its current target. The caller holds mu.
func (p *Placer) vmodelStatus(v objects.VModel, st decide.VModelStatus, behind []string) v1alpha1.VModelStatus {
	out := v1alpha1.VModelStatus{ObservedGeneration: v.Generation, Active: st.Active, Previous: st.Previous}
	if st.Previous != "" {
		out.PreviousUntil = new(metav1.NewMicroTime(st.Until))
	}
	out.Conditions = p.conditionsOfVModel(v, st, behind)
	return out
}

// conditionsOfVModel returns the conditions of a VModel. The caller holds mu.
func (p *Placer) conditionsOfVModel(v objects.VModel, st decide.VModelStatus, behind []string) []metav1.Condition {
	is := conditions.VModel{
		Pool: v.Pool, Exists: p.world.Pools[v.Pool] != nil, Target: st.Target, Active: st.Active, Canary: st.Canary,
		ActiveCanary: st.Switch.Canary, Percent: st.Switch.Percent, Loaded: st.Loaded, Needed: st.Needed, NameTaken: st.Taken,
		Taken: v.Taken, Behind: behind,
	}
	if st.Failed != "" {
		id := st.Target
		if st.Active == st.Target {
			id = st.Canary
		}
		m, _ := p.state.Status(decide.Key{Pool: v.Pool, ID: id})
		is.Failed = explain(st.Failed, m.Failures)
	}
	for _, id := range []string{st.Target, st.Canary} {
		if is.Unknown == "" && id != "" && p.ready && !decide.Known(p.state, decide.Key{Pool: v.Pool, ID: id}) {
			is.Unknown = id
		}
	}
	return conditions.OfVModel(is)
}

// viewVModels returns all VModels for the view, sorted. The caller holds mu.
func (p *Placer) viewVModels() []decide.VModelView {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(p.vmodels.declared)), maps.Keys(p.vmodels.registered))
	slices.SortFunc(keys, decide.Key.Compare)
	keys = slices.Compact(keys)
	all := make([]decide.VModelView, 0, len(keys))
	for _, key := range keys {
		v, _, _ := p.vmodels.of(key)
		st, _ := p.state.VModel(key)
		ready := meta.FindStatusCondition(p.conditionsOfVModel(v, st, p.Publisher.Behind(key)), v1alpha1.ConditionReady)
		all = append(all, decide.VModelView{
			Pool: key.Pool.String(), ID: key.ID, Target: v.Target, Active: st.Active, Canary: st.Switch.Canary, Percent: st.Switch.Percent,
			Reason: ready.Reason, Message: ready.Message,
		})
	}
	return all
}
