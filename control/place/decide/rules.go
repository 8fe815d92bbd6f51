package decide

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// rule is one rule of placement. It makes the decisions that are due, notes the resulting facts,
// and returns actions for engines.
type rule func(s *State, now time.Time) []Action

// rules are the rules of one Decide, in the order in which they are applied.
var rules = struct{ first, beforeMigration, repeated, after []rule }{
	// Changes by the passage of time, urgent changes, and the decisions of a tick.
	first: []rule{elapse, quitCalls, endDrains, runTick},
	// The rules below run in rounds until nothing is due. Within a round, the repeated rules run
	// until nothing is due for them.
	beforeMigration: []rule{planMigrations},
	repeated:        []rule{reorder, placeDue, routeVModels, explainDue, startDue},
	after:           []rule{endMigrations, fillPools}, // after all requested copies are placed
}

// any reports whether anything is due for the repeated rules, apart from finding reasons.
func (d *due) any() bool {
	return len(d.vmodels) > 0 || len(d.models) > 0 || len(d.helped) > 0 || len(d.endpoints) > 0 || len(d.touched) > 0
}

// explains reports whether more reasons may be computed in this round.
func (d *due) explains() bool { return len(d.stale) > 0 && d.explained < atOnce }

// atOnce is the number of endpoints that are checked for reasons in one round. The check then takes
// about half a millisecond.
const atOnce = 8000

// quitCalls abandons calls to engines that are about to end.
func quitCalls(s *State, _ time.Time) (todo []Action) {
	for _, address := range slices.Sorted(maps.Keys(s.due.quit)) {
		if s.endpoints[address].Is() {
			todo = append(todo, Action{Kind: Quit, Endpoint: address})
		}
	}
	clear(s.due.quit)
	return todo
}

// endDrains unloads copies that are drained, or whose drain limit has passed.
func endDrains(s *State, now time.Time) (todo []Action) {
	for _, c := range timedCopies(s) {
		if c.State == Draining && !c.endpoint.Is() && (c.drained || now.Sub(c.Since) >= s.DrainLimit) {
			todo = append(todo, unloadCopy(s, c, now))
		}
	}
	return todo
}

// explainDue checks for one model whether it has a place now. If not, it finds the reason.
func explainDue(s *State, now time.Time) []Action {
	d := &s.due
	if !d.explains() {
		return nil
	}
	m := d.stale[0]
	d.stale, m.stale = d.stale[1:], false
	if !m.stuck {
		return nil
	}
	d.explained += max(1, len(s.pool(m.Pool).endpoints))
	return considerModel(s, m, now)
}

// startDue starts the next loads of the endpoints that changed.
func startDue(s *State, now time.Time) (todo []Action) {
	due := slices.Sorted(maps.Keys(s.due.endpoints))
	clear(s.due.endpoints)
	for _, address := range due {
		if e := s.endpoints[address]; e != nil {
			todo = append(todo, runTrial(s, e, now)...)
			todo = append(todo, startLoads(s, e, now)...)
		}
	}
	return todo
}

// candidate is a model that may get a copy now, because the model changed, or because it is stuck
// and an endpoint that may have a place for it changed.
type candidate struct {
	*model
	e *endpoint // nil if the model itself changed
}

// placeDue considers changed models and stuck models together, in the order of [model.compare].
// Stuck models are considered if an endpoint that may have a place for them changed. With two
// passes, a changed model could get the room that an older stuck model waits for.
func placeDue(s *State, now time.Time) (todo []Action) {
	due := make([]candidate, 0, len(s.due.models))
	for key := range s.due.models {
		if m := s.models[key]; m != nil {
			due = append(due, candidate{model: m})
		}
	}
	clear(s.due.models)
	due = appendHelped(s, due)
	slices.SortFunc(due, func(a, b candidate) int {
		return cmp.Or(a.compare(b.model), truth(a.e != nil)-truth(b.e != nil))
	})
	for _, d := range due {
		if d.e != nil {
			// Models placed before in this loop may use the room.
			if reorder(s, s.now); !d.stuck || !hasPlace(s, d.e, d.model, claimOf(d.model)) {
				continue
			}
		}
		todo = append(todo, considerModel(s, d.model, now)...)
	}
	return todo
}

// appendHelped appends the stuck models for which changed endpoints may have a place. Eviction
// orders must be up to date.
func appendHelped(s *State, all []candidate) []candidate {
	helped := slices.Sorted(maps.Keys(s.due.helped))
	clear(s.due.helped)
	for _, address := range helped {
		e := s.endpoints[address]
		if e == nil {
			continue
		}
		for _, p := range e.pools {
			for _, m := range s.pool(p).stuck {
				if hasPlace(s, e, m, claimOf(m)) {
					all = append(all, candidate{m, e})
				}
			}
		}
	}
	return all
}
