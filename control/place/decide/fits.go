package decide

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// A pool may restrict models to some of its endpoints, or prefer some endpoints for them. If a
// change of these settings excludes the endpoint of a copy, the copy serves until its model is
// loaded at an allowed endpoint.

// Fits lists the endpoints of a pool that may load each type of model. The zero Fits allows all
// endpoints for all models.
type Fits struct {
	// Types maps types of models to their Fit. Others is the Fit of all other types; nil allows all
	// endpoints.
	Types  map[string]*Fit
	Others *Fit
}

// Fit is the set of endpoints, by address, where models of one type may be loaded.
type Fit struct {
	// Only are the allowed endpoints; nil allows all.
	Only map[string]bool
	// Preferred are endpoints that are chosen before other endpoints of about equal cost.
	Preferred map[string]bool
}

// takes reports whether models with this Fit may be loaded at an endpoint.
func (f Fit) takes(address string) bool { return f.Only == nil || f.Only[address] }

// everywhere is the Fit that allows all endpoints and prefers none.
var everywhere = new(Fit)

// Of returns the Fit of a type of models.
func (f *Fits) Of(modelType string) *Fit {
	if is := f.Types[modelType]; is != nil {
		return is
	}
	return cmp.Or(f.Others, everywhere)
}

// SetFits sets, for each type of model, at which endpoints of a pool it may be loaded.
func (s *State) SetFits(name objects.Name, to Fits) {
	p := s.pool(name)
	if reflect.DeepEqual(p.fits, to) {
		return
	}
	p.fits = to
	for _, m := range s.models {
		if m.Pool != name {
			continue
		}
		m.fit = p.fits.Of(m.Type)
		for _, c := range m.copies {
			if c.misplaced() {
				s.noteCopy(misplaced, c) // queued copies must go elsewhere
			}
		}
	}
	for _, m := range p.stuck {
		s.doubt(m)
	}
}

// misplaced reports whether a copy is at an endpoint where its model may not be loaded. It is false
// for a model that control did not load.
func (c *Copy) misplaced() bool { return !c.model.fit.takes(c.Endpoint) && !c.model.foreign }

// relocate unloads a misplaced copy once its model has as many copies at allowed endpoints as it
// needs and finds room for. If the model needs no copy, the misplaced copy is unloaded at once.
// Otherwise it stays until there is a place for its replacement.
func relocate(s *State, all []*model, now time.Time) (todo []Action) {
	var somewhere []*model // loaded models that may be loaded only at some endpoints
	for _, m := range all {
		if m.fit.Only != nil && len(m.copies) > 0 {
			somewhere = append(somewhere, m)
		}
	}
	slices.SortFunc(somewhere, (*model).compareValue)
	for _, m := range somewhere {
		proper, loaded, misplaced := 0, 0, 0
		for _, c := range m.copies {
			switch {
			case !c.remains() || !c.endpoint.useful():
			case c.misplaced():
				misplaced++
			default:
				proper++
				loaded += truth(c.State == Loaded)
			}
		}
		if misplaced == 0 {
			continue
		}
		needed := m.min()
		if now.Sub(m.lastUsed) < movedIfUsed {
			needed = max(1, needed, m.aim)
		}
		wait := false
		for proper < needed {
			by := claim{purpose: ForMigration, below: m.value, takesSurplus: true, idle: true}
			if proper < m.min() {
				by.below = math.Inf(1)
			}
			best, why := choosePlace(s, m, by)
			if best.e == nil {
				wait = why == "" || proper == 0
				break
			}
			todo = append(todo, putCopy(s, m, best.e, by, now)...)
			proper++
		}
		if wait || loaded < proper {
			continue
		}
		s.noteModel(modelNeeds, m)
		for _, c := range slices.Clone(m.copies) {
			if c.misplaced() {
				todo = append(todo, dismissCopy(s, c, now)...)
			}
		}
	}
	return todo
}
