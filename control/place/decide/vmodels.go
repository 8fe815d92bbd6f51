package decide

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A VModel is a name for a model, its target. The target can be changed without failing a request.
// Requests go to the active model until the new target has as many loaded copies as the active
// model had when the change began. Then all requests go to the target. The previous model keeps its
// copies for a while, and the target keeps the same number, so that a change back needs no load. If
// the target cannot be loaded, requests stay with the active model. This is ModelMesh's setVModel,
// with the number of copies that its API promises (its VModelManager.java switches at the first
// copy).

// previousKept is how long the previous model keeps its copies after a change of target.
const previousKept = 10 * time.Minute

// VModel is the specification of a VModel. All ids are those of models in the VModel's pool.
type VModel struct {
	Key
	// Target is the model that requests should go to.
	Target string
	// Canary is the model that gets Percent of a hundred requests once it is loaded; empty if there
	// is none.
	Canary  string
	Percent int
}

// VModelProgress is the progress of a VModel's change of target. One process records it for the
// next one.
type VModelProgress struct {
	Active string
	// Previous is the model that was active before; empty if there is none. It keeps its copies
	// until the time Until.
	Previous string
	Until    time.Time
}

// VModelStatus is the state of a VModel.
type VModelStatus struct {
	VModel
	VModelProgress
	// Switch is the published target of requests.
	Switch Switch
	// Loaded is the number of loaded copies of the target. Needed is the number that the target
	// must have before requests go there; 0 if they already do.
	Loaded, Needed int
	// Failed is the reason why the target gets no copy. If requests already go to the target, it is
	// the reason why the canary gets none. It is empty if a copy may still be loaded.
	Failed Reason
	// Taken: a model has the same name as the VModel.
	Taken bool
}

// AutoDelete is an annotation of registered Models. A Model with it is deleted when no VModel names
// it any more.
const AutoDelete = "inference.x-k8s.io/auto-delete"

// Conditions are a client's conditions for changing a VModel.
type Conditions struct {
	// UpdateOnly: the VModel must exist. Expected is the target that the VModel must have, unless
	// it already has the new target; empty allows any target.
	UpdateOnly bool
	Expected   string
	// Force sends requests to the target at once, even if it is not loaded.
	Force bool
	// Used is the time of last use that a newly registered target gets.
	Used time.Time
}

// ErrNoVModel means that the VModel to change does not exist. ErrNoModel means that its target is
// not a model. ErrUnexpected means that its current target is not the one that the client expects.
// ErrReferred means that VModels name the model.
var (
	ErrNoVModel   = errors.New("there is no such VModel")
	ErrNoModel    = errors.New("there is no such model")
	ErrUnexpected = errors.New("the VModel has another target")
	ErrReferred   = errors.New("VModels name the model: move or delete them first")
)

// OwnedError means that the VModel belongs to another owner.
type OwnedError struct{ Owner string }

func (e *OwnedError) Error() string { return fmt.Sprintf("the VModel is owned by %q", e.Owner) }

type vmodel struct {
	VModel
	VModelProgress
	// need is the number of loaded copies that the target must have before requests go there; 0
	// before the change begins. had is the number that the active model had when the change began.
	// kept is the number that the previous model keeps.
	need, had, kept int
	failed          Reason
	taken           bool
	told            Switch
}

// SetVModel sets the specification of a VModel. was is the earlier progress of a VModel that the
// State does not know yet; if it is zero, requests go to the target at once. With force, requests
// go to the target at once in any case.
func (s *State) SetVModel(v VModel, was VModelProgress, force bool, now time.Time) {
	known := s.vmodels[v.Key]
	if known == nil {
		known = &vmodel{VModelProgress: was}
		s.vmodels[v.Key] = known
	}
	before := known.ids()
	if known.VModel != v {
		known.VModel, known.need, known.had = v, 0, 0
	}
	if known.Active == "" || force {
		moveVModel(s, known, now)
	}
	nameModels(s, v.Key, before, known.ids())
	s.noteVModel(vmodelSet, v.Key)
}

// RemoveVModel removes a VModel.
func (s *State) RemoveVModel(key Key) {
	if v := s.vmodels[key]; v != nil {
		delete(s.vmodels, key)
		delete(s.due.vmodels, key)
		s.noteVModel(vmodelMoved, key)
		nameModels(s, key, v.ids(), nil)
	}
}

// VModel returns the state of a VModel, and whether it exists.
func (s *State) VModel(key Key) (VModelStatus, bool) {
	v := s.vmodels[key]
	if v == nil {
		return VModelStatus{}, false
	}
	st := VModelStatus{VModel: v.VModel, VModelProgress: v.VModelProgress, Switch: v.told, Failed: v.failed, Taken: v.taken}
	st.Loaded = loadedCopies(s, v.key(v.Target))
	if v.Target != v.Active {
		st.Needed = neededCopies(s, v)
	}
	return st, true
}

// Known reports whether a model exists: in the catalogue, or at an engine of its pool.
func Known(s *State, key Key) bool {
	if m := s.models[key]; m != nil && !m.gone {
		return true
	}
	for _, e := range s.endpoints {
		if slices.Contains(e.pools, key.Pool) && slices.Contains(e.BaseModels, key.ID) {
			return true
		}
	}
	return false
}

// References returns the VModels that name a model, in order.
func (s *State) References(key Key) []Key {
	return slices.SortedFunc(maps.Keys(s.named[key]), Key.Compare)
}

func (v *vmodel) key(id string) Key { return Key{Pool: v.Pool, ID: id} }

// ids returns the ids of the models that the VModel names. Some may be repeated or empty.
func (v *vmodel) ids() []string { return []string{v.Active, v.Target, v.Canary, v.Previous} }

// nameModels records the models that a VModel names now, and those that it named before.
func nameModels(s *State, by Key, before, after []string) {
	for _, id := range before {
		key := Key{Pool: by.Pool, ID: id}
		if delete(s.named[key], by); len(s.named[key]) == 0 && id != "" {
			delete(s.named, key)
			s.news.unnamed[key] = true
		}
	}
	for _, id := range after {
		if key := (Key{Pool: by.Pool, ID: id}); id != "" {
			if s.named[key] == nil {
				s.named[key] = make(map[Key]bool)
			}
			s.named[key][by] = true
		}
	}
	for _, id := range slices.Concat(before, after) {
		updateFloor(s, Key{Pool: by.Pool, ID: id})
	}
}

// updateFloor recomputes the minimum number of copies that VModels require of a model.
func updateFloor(s *State, key Key) {
	m := s.models[key]
	if m == nil {
		return
	}
	floor := 0
	for by := range s.named[key] {
		floor = max(floor, s.vmodels[by].minFor(key.ID))
	}
	if m.Max > 0 {
		floor = min(floor, m.Max)
	}
	if m.vmodelMin != floor {
		m.vmodelMin = floor
		s.noteModel(modelNeeds, m)
	}
}

// minFor returns the minimum number of copies that this VModel requires of a model.
func (v *vmodel) minFor(id string) int {
	n := 0
	if v.Target != v.Active {
		switch id {
		case v.Target:
			n = v.need
		case v.Active:
			n = v.had
		}
	}
	if v.Previous != "" && (id == v.Previous || id == v.Active) {
		n = max(n, v.kept)
	}
	if id == v.Canary {
		n = max(n, 1)
	}
	return n
}

// min returns the model's minimum number of copies.
func (m *model) min() int { return max(m.Min, m.vmodelMin) }

// loadedCopies counts the copies of a model that serve requests.
func loadedCopies(s *State, key Key) (n int) {
	if m := s.models[key]; m != nil && !m.gone {
		for _, c := range m.copies {
			if c.State == Loaded && c.endpoint.useful() {
				n++
			}
		}
	}
	return n
}

// whyNotLoaded returns the reason why a model gets no copy; empty while it may get one.
func whyNotLoaded(s *State, key Key) Reason {
	m := s.models[key]
	switch {
	case m == nil || m.gone:
		return UnknownModel
	case len(m.failures) > 0 && len(m.copies) == 0:
		return m.whyFailed()
	}
	return m.blocked
}

// neededCopies returns how many loaded copies the target of a VModel must have before requests go
// there.
func neededCopies(s *State, v *vmodel) int {
	if m := s.models[v.key(v.Target)]; m != nil && m.Max > 0 {
		return min(v.need, m.Max)
	}
	return v.need
}

// routeVModels sends requests to the new target of each VModel whose target is ready.
func routeVModels(s *State, now time.Time) []Action {
	for _, key := range slices.SortedFunc(maps.Keys(s.due.vmodels), Key.Compare) {
		delete(s.due.vmodels, key)
		v := s.vmodels[key]
		before := v.ids()
		if v.Previous != "" && !now.Before(v.Until) {
			v.Previous, v.kept = "", 0
		}
		if v.Previous != "" { // scrapes find copies from an earlier process one after the other
			v.kept = max(v.kept, loadedCopies(s, v.key(v.Previous)))
		}
		v.failed = ""
		if v.Target != v.Active && s.unscraped == 0 { // scrapes may find more copies of the active model
			active, target, why := loadedCopies(s, v.key(v.Active)), loadedCopies(s, v.key(v.Target)), whyNotLoaded(s, v.key(v.Target))
			begins := v.need == 0
			if begins {
				v.need, v.had = max(1, active), active
			}
			if target >= neededCopies(s, v) || active == 0 && (target > 0 || begins && why == "") {
				moveVModel(s, v, now)
			} else {
				v.failed = why
			}
		}
		is := Switch{Active: v.Active}
		if v.Canary != "" {
			if loadedCopies(s, v.key(v.Canary)) > 0 {
				is.Canary, is.Percent = v.Canary, v.Percent
			} else if v.failed == "" {
				v.failed = whyNotLoaded(s, v.key(v.Canary))
			}
		}
		own := s.models[key]
		if v.taken = own != nil && !own.gone && !own.foreign; v.taken {
			is = Switch{}
		}
		nameModels(s, key, before, v.ids())
		v.told = is
		s.noteVModel(vmodelMoved, key)
	}
	return nil
}

// moveVModel sends the requests for a VModel to its target. The target inherits the use counts of
// the active model. The caller must then record which models the VModel names.
func moveVModel(s *State, v *vmodel, now time.Time) {
	if v.Active == v.Target {
		return
	}
	from, to := s.models[v.key(v.Active)], s.models[v.key(v.Target)]
	v.Previous, v.kept, v.Until = "", 0, time.Time{}
	if n := loadedCopies(s, v.key(v.Active)); n > 0 {
		v.Previous, v.kept, v.Until = v.Active, n, now.Add(previousKept)
	}
	v.Active, v.need, v.had = v.Target, 0, 0
	if from == nil || to == nil || to.value >= from.value {
		return
	}
	to.usage, to.lastUsed, to.inUseSince = from.usage, from.lastUsed, from.inUseSince
	to.load = from.load
	to.requests, to.inFlightSeconds, to.waited = 0, 0, 0
	to.updateValue(s.pool(to.Pool))
	s.noteModel(modelNeeds, to) // a model of higher value may get copies, and be loaded earlier
}
