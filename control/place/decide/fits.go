package decide

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Models may be for some of a pool's endpoints alone, and for some of them rather than for others.
// What is loaded where it may not be any more, because that was changed, serves on until its model
// is loaded where it may.

// Fits says which endpoints of a pool are for which models. With the zero Fits all are for all.
type Fits struct {
	// Types are the fits of types of models, Others that of models of all other types; nil: all
	// endpoints are for them.
	Types  map[string]*Fit
	Others *Fit
}

// Fit says which endpoints are for a model, by their addresses.
type Fit struct {
	// Only has those where it may be loaded; nil: all.
	Only map[string]bool
	// Preferred has those where it is loaded rather than elsewhere, if that costs nobody more.
	Preferred map[string]bool
}

// takes says whether an endpoint is for the model.
func (f Fit) takes(address string) bool { return f.Only == nil || f.Only[address] }

// everywhere is the Fit of models for which all endpoints are alike.
var everywhere = new(Fit)

// Of is the Fit of models of a type.
func (f *Fits) Of(modelType string) *Fit {
	if is := f.Types[modelType]; is != nil {
		return is
	}
	return cmp.Or(f.Others, everywhere)
}

// SetFits says which endpoints of a pool are for which models.
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
				s.noteCopy(misplaced, c) // what waits for its turn there is to go elsewhere
			}
		}
	}
	for _, m := range p.stuck {
		s.doubt(m)
	}
}

// misplaced says whether a copy is where its model may not be loaded. What nobody loaded for us is
// left alone.
func (c *Copy) misplaced() bool { return !c.model.fit.takes(c.Endpoint) && !c.model.foreign }

// relocate lets copies go that are where their models may not be, once these are loaded where they
// may: as many of them as they need, and have room for. Of a model that nobody needs now they go at
// once; while there is no place for another that is needed they stay.
func relocate(s *State, all []*model, now time.Time) (todo []Action) {
	var somewhere []*model // those that may not be everywhere, and are loaded
	for _, m := range all {
		if m.fit.Only != nil && len(m.copies) > 0 {
			somewhere = append(somewhere, m)
		}
	}
	slices.SortFunc(somewhere, (*model).missedMore)
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
			by := claim{purpose: ForMigration, below: m.worth, spares: true, idle: true}
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
