package decide

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A VModel is a name for a model that can be moved to another one, its target, and no request
// notices: requests go to the active model until the target has as many loaded copies as that had
// when the move began; then all of them go to the target, and the model that was active before
// keeps its copies for a while, and the target as many, so that to go back takes no load. Where the
// target cannot be loaded requests stay where they are. This is ModelMesh's setVModel, with the
// copies that its own API promises (VModelManager.java switches with the first one).

// previousKept is for how long the model that was active before keeps its copies.
const previousKept = 10 * time.Minute

// VModel is what people or clients want of one. The ids are of models of its pool.
type VModel struct {
	Key
	// Target is where requests are to go.
	Target string
	// Canary is where Percent of them go, as soon as it is loaded; empty for none.
	Canary  string
	Percent int
}

// Switch is where requests for a VModel go. The zero Switch is that of none.
type Switch struct {
	Active  string
	Canary  string
	Percent int
}

// Moved is how far a VModel has come, as one process tells the next.
type Moved struct {
	Active string
	// Previous was active before, and keeps its copies until a time; empty if none does.
	Previous string
	Until    time.Time
}

// VModelStatus is what is known of a VModel.
type VModelStatus struct {
	VModel
	Moved
	// Switch is what followers are told.
	Switch Switch
	// Loaded is how many copies of the target are, Needed how many it is to have before requests go
	// there; 0 if they do.
	Loaded, Needed int
	// Failed says why the target, or where requests go to the target the canary, gets no copy;
	// empty while there is hope.
	Failed Reason
	// Taken says that the name is a model's.
	Taken bool
}

// AutoDelete is an annotation of registered Models that go when no VModel names them any more.
const AutoDelete = "inference.x-k8s.io/auto-delete"

// Terms are those under which a client sets a VModel.
type Terms struct {
	// UpdateOnly: there must be one already. Expected is the target that it must have, unless that
	// is the new one already; empty for any.
	UpdateOnly bool
	Expected   string
	// Force sends requests to the target at once, loaded or not.
	Force bool
	// Used is when a target that is new was last used.
	Used time.Time
}

// ErrNoVModel says that there is no VModel to be changed, ErrNoModel that its target is no model,
// ErrUnexpected that its target is another than the client takes it for, and ErrReferred that
// VModels name a model.
var (
	ErrNoVModel   = errors.New("there is no such VModel")
	ErrNoModel    = errors.New("there is no such model")
	ErrUnexpected = errors.New("the VModel has another target")
	ErrReferred   = errors.New("VModels name the model: move or delete them first")
)

// OwnedError says that a VModel is somebody else's.
type OwnedError struct{ Owner string }

func (e *OwnedError) Error() string { return fmt.Sprintf("the VModel is owned by %q", e.Owner) }

type vmodel struct {
	VModel
	Moved
	// need is how many loaded copies the target is to have before requests go there, 0 before the
	// move begins; had is how many the active one had then, and kept how many the previous one
	// keeps.
	need, had, kept int
	failed          Reason
	taken           bool
	told            Switch
}

// SetVModel says what is wanted of a VModel. Of one that is new was says how far it had come; if
// that is the zero Moved, its requests go to the target at once. With force they do in any case.
func (s *State) SetVModel(v VModel, was Moved, force bool, now time.Time) {
	known := s.vmodels[v.Key]
	if known == nil {
		known = &vmodel{Moved: was}
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

// RemoveVModel says that nobody wants a VModel any more.
func (s *State) RemoveVModel(key Key) {
	if v := s.vmodels[key]; v != nil {
		delete(s.vmodels, key)
		delete(s.due.vmodels, key)
		s.noteVModel(vmodelMoved, key)
		nameModels(s, key, v.ids(), nil)
	}
}

// VModel returns what is known of a VModel, and whether there is one.
func (s *State) VModel(key Key) (VModelStatus, bool) {
	v := s.vmodels[key]
	if v == nil {
		return VModelStatus{}, false
	}
	st := VModelStatus{VModel: v.VModel, Moved: v.Moved, Switch: v.told, Failed: v.failed, Taken: v.taken}
	st.Loaded = loadedCopies(s, v.key(v.Target))
	if v.Target != v.Active {
		st.Needed = neededCopies(s, v)
	}
	return st, true
}

// Referents returns the VModels that name a model, in order.
func (s *State) Referents(key Key) []Key {
	return slices.SortedFunc(maps.Keys(s.named[key]), Key.Compare)
}

func (v *vmodel) key(id string) Key { return Key{Pool: v.Pool, ID: id} }

// ids are the models that it names, some of them more than once, or empty.
func (v *vmodel) ids() []string { return []string{v.Active, v.Target, v.Canary, v.Previous} }

// nameModels notes which models a VModel names, and which it named before.
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

// updateFloor finds how many copies a model must have because VModels name it.
func updateFloor(s *State, key Key) {
	m := s.models[key]
	if m == nil {
		return
	}
	floor := 0
	for by := range s.named[key] {
		floor = max(floor, s.vmodels[by].floor(key.ID))
	}
	if m.Max > 0 {
		floor = min(floor, m.Max)
	}
	if m.floor != floor {
		m.floor = floor
		s.noteModel(modelNeeds, m)
	}
}

// floor is how many copies a model must have because this VModel names it.
func (v *vmodel) floor(id string) int {
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

// min is how many copies a model must have.
func (m *model) min() int { return max(m.Min, m.floor) }

// loadedCopies is how many copies of a model answer requests.
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

// whyNotLoaded is why a model gets no copy, empty while there is hope.
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

// neededCopies is how many copies the target of a VModel is to have before requests go there.
func neededCopies(s *State, v *vmodel) int {
	if m := s.models[v.key(v.Target)]; m != nil && m.Max > 0 {
		return min(v.need, m.Max)
	}
	return v.need
}

// routeVModels moves the VModels that can be.
func routeVModels(s *State, now time.Time) []Action {
	for _, key := range slices.SortedFunc(maps.Keys(s.due.vmodels), Key.Compare) {
		delete(s.due.vmodels, key)
		v := s.vmodels[key]
		before := v.ids()
		if v.Previous != "" && !now.Before(v.Until) {
			v.Previous, v.kept = "", 0
		}
		if v.Previous != "" { // that an earlier process kept is found bit by bit
			v.kept = max(v.kept, loadedCopies(s, v.key(v.Previous)))
		}
		v.failed = ""
		if v.Target != v.Active && s.unseen == 0 { // else copies of the active one may be found yet
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

// moveVModel sends the requests for a VModel to its target, which is missed from now on by what the
// model before it was used. Who calls it notes which models the VModel names then.
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
	if from == nil || to == nil || to.worth >= from.worth {
		return
	}
	to.usage, to.lastUsed, to.inUseSince = from.usage, from.lastUsed, from.inUseSince
	to.load = from.load
	to.requests, to.flown, to.waited = 0, 0, 0
	to.value(s.pool(to.Pool))
	s.noteModel(modelNeeds, to) // what was more than it, or had its turn before, may be no more
}
