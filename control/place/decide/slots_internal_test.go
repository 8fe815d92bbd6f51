package decide

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// For random use of adapters: an adapter is moved only from an endpoint with more adapters in use
// than GPU slots, and only to an endpoint with a free slot. If moving one adapter is enough to end
// the excess, the first to move is the one of these whose requests end soonest; otherwise the
// adapter that is used most. At one tick, at most one adapter is moved from an endpoint. If nothing
// else changes, the moves end.
func TestSpread(t *testing.T) {
	moves, leaves := 0, 0
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 1))
		s, now, name := New(Config{}), time.Unix(1e9, 0), objects.Name{Namespace: "n", Name: "p"}
		n := 2 + random.IntN(5)
		for i := range n {
			address := fmt.Sprintf("e%d", i)
			s.SetEndpoint(address, []objects.Name{name})
			s.Scraped(ScrapeResult{Began: now, Endpoint: Endpoint{
				Address: address, CanLoad: true, Slots: 20, Loads: 8,
				GPUAdapters: random.IntN(4),
			}}, now)
		}
		p := s.pool(name)
		for i := range 3 * n {
			key := Key{Pool: name, ID: fmt.Sprintf("m%02d", i)}
			s.SetModel(objects.Entry{ModelKey: key, Pinned: random.IntN(8) == 0}.Complete(nil), now)
			m := s.models[key]
			m.slowRate, m.slowFlight = float64(random.IntN(3)), 1+float64(random.IntN(3))
			for range 1 + random.IntN(2) {
				if e := p.endpoints[random.IntN(1+n/2)]; m.at(e.Address) == nil {
					s.add(m, e, Loaded, now).presence = float64(random.IntN(5)) / 4
				}
			}
		}
		for round := 0; ; round++ {
			if round > 20*n {
				t.Fatalf("seed %d: it goes on for ever", seed)
			}
			measureDemands(s, now)
			reorder(s, s.now)
			was := make(map[string]demand)
			var want *Copy // the copy that should be moved from the tick's first endpoint
			first := ""
			for _, e := range p.endpoints {
				was[e.Address] = e.demand
				if best := searchedSlots(p, e); best != nil && want == nil {
					want, first = best, e.Address
				}
			}
			spreadAdapters(s, now)
			left := make(map[string]*Copy)
			for _, m := range s.models {
				for _, c := range m.copies {
					switch c.State {
					case Queued:
						to := c.endpoint
						if left[c.claim.from] = m.at(c.claim.from); to.tally().remain.models > to.GPUAdapters && to.GPUAdapters > 0 &&
							to.demand.gpu > float64(to.GPUAdapters) {
							t.Errorf("seed %d: %s goes to %s, where then %v are in use of %d", seed, m.ID, to.Address, to.demand.gpu,
								to.GPUAdapters)
						}
						moves++
					case Draining:
						left[c.Endpoint] = c
						leaves++
					}
				}
			}
			for address, c := range left {
				if e := s.endpoints[address]; was[address].gpu <= float64(e.GPUAdapters) {
					t.Errorf("seed %d: %s leaves %s, where %v are in use of %d", seed, c.ID, address, was[address].gpu, e.GPUAdapters)
				}
			}
			if got := left[first]; got != want {
				t.Errorf("seed %d: %+v leaves %s, want %+v", seed, got, first, want)
			}
			if len(left) > max(1, n/10) {
				t.Errorf("seed %d: at %d endpoints at once", seed, len(left))
			}
			if t.Failed() {
				return
			}
			if len(left) == 0 {
				break
			}
			for _, m := range s.models {
				for _, c := range slices.Clone(m.copies) {
					if c.State == Queued {
						s.set(c, Loading, now)
						s.LoadEnded(c.CopyKey, LoadResult{}, now)
					}
				}
				for _, c := range slices.Clone(m.copies) {
					if c.State == Draining {
						s.drop(c)
					}
				}
				if len(m.copies) > 2 {
					t.Fatalf("seed %d: %s has %d copies", seed, m.ID, len(m.copies))
				}
			}
		}
	}
	if moves < 200 || leaves < 100 {
		t.Errorf("%d moves, %d leave", moves, leaves)
	}
}

// searchedSlots returns the copy that should be moved away from an endpoint, found by a search of
// all copies.
func searchedSlots(p *pool, e *endpoint) (best *Copy) {
	excess := e.demand.gpu - float64(e.GPUAdapters)
	if e.GPUAdapters == 0 || excess <= 0 {
		return nil
	}
	stay := func(c *Copy) float64 { return c.model.slowFlight / c.model.slowRate }
	for _, c := range e.sorted() {
		m := c.model
		if c.State != Loaded || c.presence == 0 || m.Pinned {
			continue
		}
		place := false
		for _, o := range p.endpoints {
			is := m.at(o.Address)
			sum, registered := 0.0, 0
			for _, there := range o.copies {
				sum += there.presence
				registered++
			}
			mean := 0.0
			for _, copy := range m.copies {
				mean += copy.presence / float64(len(m.copies))
			}
			switch {
			case o == e:
			case is != nil: // the model already has a copy there
				place = place || o.GPUAdapters == 0 || registered <= o.GPUAdapters || sum+max(c.presence, 0.5) <= float64(o.GPUAdapters)
			case registered < o.Slots:
				place = place || o.GPUAdapters == 0 || registered+1 <= o.GPUAdapters || sum+max(mean, 0.5) <= float64(o.GPUAdapters)
			}
		}
		switch {
		case !place:
		case best == nil,
			c.presence >= excess && (best.presence < excess || stay(c) < stay(best)),
			c.presence < excess && best.presence < excess && c.presence > best.presence:
			best = c
		}
	}
	return best
}

// The demand of an endpoint includes each of its copies, except copies that another copy will
// replace.
func TestDemand(t *testing.T) {
	s, now, name := New(Config{}), time.Unix(1e9, 0), objects.Name{Namespace: "n", Name: "p"}
	for _, address := range []string{"e1", "e2"} {
		s.SetEndpoint(address, []objects.Name{name})
		s.Scraped(ScrapeResult{Began: now, Endpoint: Endpoint{
			Address: address, CanLoad: true, Slots: 8, Loads: 8, GPUAdapters: 2,
			HostAdapters: 4,
		}}, now)
	}
	e := s.endpoints["e1"]
	for i, used := range []time.Duration{0, time.Minute, time.Hour} {
		key := Key{Pool: name, ID: fmt.Sprintf("m%d", i)}
		s.SetModel(objects.Entry{ModelKey: key}.Complete(nil), now.Add(-used))
		s.add(s.models[key], e, []CopyState{Loaded, Loading, Draining}[i], now).presence = 0.5
	}
	if measureDemands(s, now); e.demand != (demand{gpu: 1, host: 2}) {
		t.Errorf("they ask for %+v", e.demand)
	}
	if measureDemands(s, now.Add(inUse)); e.demand != (demand{gpu: 1}) {
		t.Errorf("after a while they ask for %+v", e.demand)
	}
	m := s.models[Key{Pool: name, ID: "m0"}]
	putCopy(s, m, s.endpoints["e2"], claim{from: "e1"}, now)
	if o := s.endpoints["e2"]; o.demand != (demand{gpu: 0.5, host: 1}) {
		t.Errorf("what is put elsewhere asks for %+v", o.demand)
	}
	if measureDemands(s, now); e.demand != (demand{gpu: 0.5, host: 1}) {
		t.Errorf("what stays asks for %+v", e.demand)
	}
	m.at("e2").doomed = true
	if measureDemands(s, now); e.demand != (demand{gpu: 1, host: 2}) {
		t.Errorf("what is to go where its load is given up asks for %+v", e.demand)
	}
	m.at("e2").doomed = false
	measureDemands(s, now)
	e.GPUAdapters = 0
	if measureDemands(s, now); e.demand.host != 1 {
		t.Errorf("where nobody says how many slots a GPU has they ask for %+v", e.demand)
	}
}

// A replaced copy is removed unless both copies are needed.
func TestReplacedCopyIsRemoved(t *testing.T) {
	for _, c := range []struct {
		what     string
		min, aim int
		unusable string
		leaves   bool
	}{
		{"nobody needs both", 0, 0, "", true},
		{"it must have one", 1, 1, "", true},
		{"it must have two", 2, 0, "", false},
		{"its load asks for two", 0, 2, "", false},
		{"who waits cannot use the new one", 0, 0, "e2", false},
		{"who waits cannot use the old one", 0, 0, "e1", true},
	} {
		s, now, name := New(Config{}), time.Unix(1e9, 0), objects.Name{Namespace: "n", Name: "p"}
		for _, address := range []string{"e1", "e2"} {
			s.SetEndpoint(address, []objects.Name{name})
			s.Scraped(ScrapeResult{Began: now, Endpoint: Endpoint{Address: address, CanLoad: true, Slots: 8}}, now)
		}
		key := Key{Pool: name, ID: "m"}
		s.SetModel(objects.Entry{ModelKey: key, Min: c.min}.Complete(nil), now)
		m := s.models[key]
		m.aim = c.aim
		old := s.add(m, s.endpoints["e1"], Loaded, now)
		putCopy(s, m, s.endpoints["e2"], claim{from: "e1"}, now)
		s.set(m.at("e2"), Loading, now)
		if c.unusable != "" {
			s.Wanted("x", key, Want{Requests: 1, Since: now, Unusable: []string{c.unusable}})
		}
		s.LoadEnded(CopyKey{ModelKey: key, Endpoint: "e2"}, LoadResult{}, now)
		if leaves := old.State == Draining; leaves != c.leaves {
			t.Errorf("%s: it leaves: %v", c.what, leaves)
		}
	}
}

// A replaced copy that is already draining keeps draining.
func TestReplacedCopyContinuesToLeave(t *testing.T) {
	s, now := buildSlots("e1: a, e2:")
	m := s.models[Key{Pool: crowded, ID: "a"}]
	putCopy(s, m, s.endpoints["e2"], claim{from: "e1"}, now)
	drainCopy(s, m.at("e1"), now)
	s.set(m.at("e2"), Loading, now)
	s.LoadEnded(CopyKey{ModelKey: m.ModelKey, Endpoint: "e2"}, LoadResult{}, now.Add(time.Minute))
	if !m.at("e1").Since.Equal(now) {
		t.Error("it has begun to leave anew")
	}
}

var crowded = objects.Name{Namespace: "n", Name: "p"}

// buildSlots builds endpoints with one GPU slot each from a text such as "e1: a b, e2: a-". A copy
// always has requests, or none if its name ends in "-".
func buildSlots(all string) (*State, time.Time) {
	s, now := New(Config{}), time.Unix(1e9, 0)
	for text := range strings.SplitSeq(all, ", ") {
		address, ids, _ := strings.Cut(text, ":")
		s.SetEndpoint(address, []objects.Name{crowded})
		s.Scraped(ScrapeResult{Began: now, Endpoint: Endpoint{Address: address, CanLoad: true, Slots: 8, Loads: 8, GPUAdapters: 1}}, now)
		for id := range strings.FieldsSeq(ids) {
			id, idle := strings.CutSuffix(id, "-")
			key := Key{Pool: crowded, ID: id}
			s.SetModel(objects.Entry{ModelKey: key}.Complete(nil), now)
			c := s.add(s.models[key], s.endpoints[address], Loaded, now)
			c.presence = float64(truth(!idle))
		}
	}
	return s, now
}

// printSlots prints endpoints in the format that buildSlots reads, without "-". It marks draining
// copies with < and copies that are to be loaded with >.
func printSlots(s *State) string {
	var all []string
	for _, address := range slices.Sorted(maps.Keys(s.endpoints)) {
		words := []string{address + ":"}
		for _, c := range s.endpoints[address].sorted() {
			words = append(words, c.ID+map[CopyState]string{Queued: ">", Loaded: "", Draining: "<"}[c.State])
		}
		all = append(all, strings.Join(words, " "))
	}
	return strings.Join(all, ", ")
}

func TestSpreadAtATick(t *testing.T) {
	const many = ", f01:, f02:, f03:, f04:, f05:, f06:, f07:, f08:, f09:, f10:, f11:, f12:, f13:, f14:, f15:, f16:, f17:"
	for _, c := range []struct {
		what, is string
		change   func(*State)
		ticks    int
		want     string
	}{
		{"one goes to where there is a slot", "e1: a b, e2:", nil, 1, "e1: a b, e2: a>"},
		{"two go, one after the other", "e1: a b c, e2:, e3:", nil, 2, "e1: a b c, e2: a>, e3: b>"},
		{"a mean may be a little off", "e1: a b, e2:", func(s *State) {
			for _, c := range s.endpoints["e1"].copies {
				c.presence = 0.52
			}
		}, 1, "e1: a b, e2:"},
		{"there is no other slot", "e1: a b, e2: c", nil, 1, "e1: a b, e2: c"},
		{"it has a copy that gets a slot", "e1: a b, e2: a- c-", nil, 1, "e1: a< b, e2: a c"},
		{"it has one where it cannot be used", "e1: a b, e2: a- c-", func(s *State) { s.Down("e2") }, 1, "e1: a b, e2: a c"},
		{
			"who is about to end keeps what it has", "e1: a b, e2:", func(s *State) { s.Terminating("x", "e1", true, time.Time{}) }, 1,
			"e1: a b, e2:",
		},
		{"what nobody loaded for us is left alone", "e1: a b, e2: a- c-", func(s *State) {
			s.models[Key{Pool: crowded, ID: "a"}].foreign = true
		}, 1, "e1: a b, e2: a b> c"},
		{"what must be twice stays", "e1: a b, e2: a- c", func(s *State) {
			s.SetModel(objects.Entry{ModelKey: Key{Pool: crowded, ID: "a"}, Min: 2}.Complete(nil), time.Time{})
		}, 1, "e1: a b, e2: a c"},
		{
			"of many endpoints two at a tick, and both do not go to one", "e1: a b, e2: c d, e3: a- c-" + many, nil, 1,
			"e1: a< b, e2: c d, e3: a c, f01: c>" + many[len(", f01:"):],
		},
	} {
		s, now := buildSlots(c.is)
		s.TieBreak = func(_, _ uint64) uint64 { return 0 }
		if c.change != nil {
			c.change(s)
		}
		for range c.ticks {
			measureDemands(s, now)
			reorder(s, s.now)
			spreadAdapters(s, now)
		}
		if got := printSlots(s); got != c.want {
			t.Errorf("%s: of %s comes %s, want %s", c.what, c.is, got, c.want)
		}
	}
}

// An adapter that always has requests is not moved away from a slot, even if its number of requests
// varies.
func TestAdapterInConstantUseStays(t *testing.T) {
	s, now := buildSlots("e1: a, e2:")
	key := Key{Pool: crowded, ID: "a"}
	s.Tick()
	for i := range 360 {
		step := 10*time.Second + time.Duration(i*104729%3000)*time.Microsecond
		for n := range 10 {
			now = now.Add(step / 10)
			s.InFlight(CopyKey{ModelKey: key, Endpoint: "e1"}, 1+n%2, now)
		}
		s.Tick()
		if todo, _ := s.Decide(now); len(todo) > 0 || s.models[key].copies[0].presence > 1 {
			t.Fatalf("after %d ticks %+v is to be done, and it is present for %v of the time", i, todo, s.models[key].copies[0].presence)
		}
	}
}

// An adapter needs only one slot for all pools of its endpoint.
func TestAdapterOfTwoPoolsHasOneSlot(t *testing.T) {
	s, now := buildSlots("e1: a")
	other := objects.Name{Namespace: "n", Name: "q"}
	s.SetEndpoint("e1", []objects.Name{crowded, other})
	e := s.endpoints["e1"]
	s.SetModel(objects.Entry{ModelKey: Key{Pool: other, ID: "a"}}.Complete(nil), now)
	s.add(s.models[Key{Pool: other, ID: "a"}], e, Loaded, now).presence = 0.5
	if measureDemands(s, now); e.demand != (demand{gpu: 1, host: 1}) {
		t.Errorf("it asks for %+v", e.demand)
	}
	drainCopy(s, s.models[Key{Pool: crowded, ID: "a"}].at("e1"), now)
	if measureDemands(s, now); e.demand != (demand{gpu: 0.5, host: 1}) {
		t.Errorf("while it leaves one of them it asks for %+v", e.demand)
	}
}
