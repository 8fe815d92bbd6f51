package decide

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"reflect"
	"slices"
)

// Reached lists which rules for brief requests and fast unloads were applied.
type Reached struct {
	Brief     bool // requests of a copy are brief compared with a load
	Waits     bool // an eviction waits for a better victim
	NoReserve bool // an endpoint keeps no reserve free
}

// Or returns the rules that were applied in r, in o or in both.
func (r Reached) Or(o Reached) Reached {
	return Reached{r.Brief || o.Brief, r.Waits || o.Waits, r.NoReserve || o.NoReserve}
}

// Reached returns the rules that the last Decide applied. Call it directly after Decide.
func (s *State) Reached() (r Reached) {
	for _, e := range s.endpoints {
		t := e.tally()
		r.NoReserve = r.NoReserve || e.quick
		// If a load is in progress, prepares may be the time of its end.
		r.Waits = r.Waits || !e.prepares.IsZero() && len(t.queue) > 0 && t.loading+t.slow == 0
		for _, c := range e.copies {
			r.Brief = r.Brief || c.brief
		}
	}
	return r
}

// Audit recomputes the derived parts of the state, and reports the first difference. decided means
// that Decide was the last call and was not paused: then every model that needs a copy and has a
// place for it must have that copy.
func (s *State) Audit(decided bool) error {
	reorder(s, s.now)
	for _, e := range s.endpoints {
		var remain, settled, held, stay amount
		var order []*Copy
		loading, queued := 0, 0
		for _, c := range e.sorted() {
			m := s.models[c.ModelKey]
			if m != c.model {
				return fmt.Errorf("%s at %s is of another model", c.ID, c.Endpoint)
			}
			stays := m.foreign || m.Pinned || remaining(m) <= m.min()
			if c.State <= Loaded && !c.doomed {
				remain = amount{remain.models + 1, remain.bytes + c.room()}
				if c.State != Queued || c.interrupted {
					settled = amount{settled.models + 1, settled.bytes + c.room()}
				}
				if stays {
					stay = amount{stay.models + 1, stay.bytes + c.room()}
				}
				if c.State != Loading && !stays && len(m.wants) == 0 {
					order = append(order, c)
				}
			}
			if c.late {
				if c.State != Unloading {
					return fmt.Errorf("%s at %s is late, and %v", c.ID, c.Endpoint, c.State)
				}
				remain = amount{remain.models + 1, remain.bytes + c.room()}
				settled = amount{settled.models + 1, settled.bytes + c.room()}
			}
			switch {
			case c.State == Queued:
				queued++
			case c.State == Loading && !c.overdue:
				loading++
			}
			if c.State != Queued || c.interrupted {
				held = amount{held.models + 1, held.bytes + c.room()}
			}
		}
		slices.SortFunc(order, func(a, b *Copy) int {
			return cmp.Or(truth(a.busy())-truth(b.busy()), truth(isSurplus(s, b.model, b))-truth(isSurplus(s, a.model, a)),
				cmp.Compare(evictionValue(a.model), evictionValue(b.model)), a.ModelKey.Compare(b.ModelKey))
		})
		if t := e.tally(); t.remain != remain || t.settled != settled || t.held != held || t.stay != stay || t.loading+t.slow != loading ||
			len(t.queue) != queued {
			return fmt.Errorf("%s: the tally is %+v, and counted anew remain %v held %v stay %v loading %d queued %d", e.Address, *t,
				remain, held, stay, loading, queued)
		}
		var mayLeave amount
		for _, c := range order {
			mayLeave = mayLeave.plus(c.room())
		}
		if got := e.evictable(); got != mayLeave {
			return fmt.Errorf("%s: %v may leave, and counted anew %v", e.Address, got, mayLeave)
		}
		if !slices.Equal(order, e.order) {
			return fmt.Errorf("%s: the order has %d copies, and sorted anew %d, or others first", e.Address, len(e.order), len(order))
		}
	}
	for _, m := range s.models {
		p, was := s.pool(m.Pool), m.value
		m.updateValue(p)
		if silent := m.valueAt(seconds(s.ticked), p.decay.decayTime, m.relativeLoadCost(p)); !p.LRU && was == silent {
			m.value = silent
		}
		if m.value != was {
			return fmt.Errorf("%s is worth %v, and by what is known now %v", m.ID, was, m.value)
		}
	}
	for _, m := range s.models {
		floor := 0
		for _, v := range s.vmodels {
			if v.Pool == m.Pool {
				floor = max(floor, v.minFor(m.ID))
			}
		}
		if m.Max > 0 {
			floor = min(floor, m.Max)
		}
		if m.vmodelMin != floor {
			return fmt.Errorf("%s must have %d copies for VModels, and by what is known now %d", m.ID, m.vmodelMin, floor)
		}
	}
	unseen := 0
	for _, e := range s.endpoints {
		if e.state == unknown {
			unseen++
		}
	}
	if unseen != s.unscraped {
		return fmt.Errorf("%d endpoints are unseen, and %d counted anew", s.unscraped, unseen)
	}
	for pool, p := range s.pools {
		for i, m := range p.stuck {
			if !m.stuck || m.place != i || m.Pool != pool || s.models[m.ModelKey] != m {
				return fmt.Errorf("%s is not where the stuck models have it", m.ID)
			}
		}
	}
	if !decided {
		return nil
	}
	for _, m := range s.models {
		if m.gone || !m.starved(nil) && remaining(m) >= m.needs() {
			continue
		}
		if best, _ := choosePlace(s, m, claimOf(m)); best.e != nil {
			return fmt.Errorf("%s is short of a copy, and there is a place for it at %s", m.ID, best.e.Address)
		}
	}
	return nil
}

// DueDecisions returns a function for each entry of dueAfter, named by fact and decision. The
// function removes the entry, and returns a function that restores it.
func DueDecisions() map[string]func() (restore func()) {
	all := make(map[string]func() func())
	for f := range facts {
		for d := decisions(1); d <= publishVModel; d <<= 1 {
			if dueAfter[f]&d != 0 {
				all[factNames[f]+" "+decisionNames[bits.TrailingZeros32(uint32(d))]] = func() func() {
					dueAfter[f] &^= d
					return func() { dueAfter[f] |= d }
				}
			}
		}
	}
	return all
}

// Followers have received all that a State has published.
type Followers struct {
	copies    map[CopyKey]CopyChange
	failures  map[Key]Reason // includes models with an empty reason
	leaving   map[string]Leaving
	vmodels   map[Key]Switch
	trials    map[string]Trial
	endpoints []string
	failed    map[Key]int // number of failed loads of each model
}

// NewFollowers returns Followers that have received nothing.
func NewFollowers() *Followers {
	return &Followers{
		copies: make(map[CopyKey]CopyChange), failures: make(map[Key]Reason), leaving: make(map[string]Leaving),
		vmodels: make(map[Key]Switch),
		trials:  make(map[string]Trial), failed: make(map[Key]int),
	}
}

// Check applies a Change, and returns an error if the followers then differ from the State.
func (f *Followers) Check(s *State, c Change) error {
	maps.Copy(f.copies, c.Copies)
	for key := range c.Copies {
		f.failures[key.ModelKey] += "" // creates the key if it is missing
	}
	maps.Copy(f.failures, c.Failures)
	maps.Copy(f.leaving, c.Leaving)
	maps.Copy(f.vmodels, c.VModels)
	trials := make(map[string]Trial)
	seen := []string{}
	for _, e := range s.endpoints {
		if e.trial != nil {
			trials[e.Address] = Trial{Passed: e.trial.Passed, Failed: e.trial.Failed}
		}
		if e.state != unknown {
			seen = append(seen, e.Address)
		}
		if f.leaving[e.Address] != e.Leaving {
			return fmt.Errorf("followers do not know why %s leaves", e.Address)
		}
		for _, c := range e.copies {
			if want := (CopyChange{c.State, c.Limit, c.interrupted}); f.copies[c.CopyKey] != want {
				return fmt.Errorf("followers do not know %s at %s: %+v, want %+v", c.ID, c.Endpoint, f.copies[c.CopyKey], want)
			}
		}
	}
	if c.Trials {
		f.trials = trials
	}
	if c.Endpoints != nil {
		f.endpoints = c.Endpoints
	}
	for key, is := range f.copies {
		if is.State != Gone && s.copy(key) == nil {
			return fmt.Errorf("followers do not know that %s at %s is gone", key.ID, key.Endpoint)
		}
	}
	for key := range c.Failures {
		if m := s.models[key]; m != nil {
			f.failed[key] = len(m.failures)
		}
	}
	for key, m := range s.models {
		if len(m.failures) > f.failed[key] {
			return fmt.Errorf("followers do not know that a load of %s failed", m.ID)
		}
		f.failed[key] = len(m.failures) // a decrease is not published
		if why, known := f.failures[key]; why != m.failed || !known && !m.gone && !m.foreign {
			return fmt.Errorf("followers do not know why %s cannot be loaded: %q, want %q", m.ID, why, m.failed)
		}
	}
	for key, why := range f.failures {
		if why != "" && s.models[key] == nil {
			return fmt.Errorf("followers do not know that %s is gone", key.ID)
		}
	}
	for key, v := range s.vmodels {
		if f.vmodels[key] != v.told {
			return fmt.Errorf("followers do not know where requests for %s go", key.ID)
		}
	}
	if slices.Sort(seen); !reflect.DeepEqual(f.trials, trials) || !slices.Equal(f.endpoints, seen) {
		return fmt.Errorf("followers do not know the endpoints %v, or the trials %v", seen, trials)
	}
	return nil
}
