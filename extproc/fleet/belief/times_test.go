package belief_test

import (
	"math"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/belief"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
)

var one = objects.Name{Namespace: "ns", Name: "one"}

// simple takes 1 ms a token of a prompt, and in each step 10 ms, 1 ms a sequence and 0.01 ms a token.
var simple = profile.Profile{
	Prefill: profile.Prefill{PerToken: 0.001}, Decode: profile.Decode{Base: 0.01, PerSequence: 0.001, PerKVToken: 0.00001},
	Limits: profile.Limits{MaxSequences: 256, MaxBatchedTokens: 2048, KVBlocks: 100, BlockSize: 16, HostAdapters: 3},
}

// predicted is a state of the endpoints a and b that predicts by a profile.
func predicted() *belief.State {
	s := belief.New(belief.Config{})
	s.SetWorld(world("one"))
	s.SetProfile(one, &simple)
	s.Lists(s.Look(a, start), engine.Models{Base: []string{"llama"}, Adapters: []string{"x", "y", "z"}})
	s.Saw(s.Look(a, start), engine.Load{})
	return s
}

func endpointOf(s *belief.State) *pick.Endpoint {
	return &view(s, start).Snapshot.Pools["ns/one"].Endpoints[0]
}

func TestAPoolIsPredictedByItsProfile(t *testing.T) {
	s := predicted()
	if p := view(s, start).Snapshot.Pools["ns/one"]; !p.Predictable || p.Endpoints[0].Profile != &simple || p.Endpoints[1].Profile != &simple {
		t.Errorf("the pool is %+v", p)
	}
	s.SetProfile(objects.Name{Namespace: "ns", Name: "none"}, &simple)
	s.SetProfile(one, nil)
	if !s.Changed() {
		t.Error("a profile that is taken away is no news")
	}
	if p := view(s, start).Snapshot.Pools["ns/one"]; p.Predictable || p.Endpoints[0].Profile != nil {
		t.Errorf("without a profile the pool is %+v", p)
	}
}

// What others have is what the engine reports beside ours: requests, and tokens of its cache.
func TestWhatOthersHave(t *testing.T) {
	s := predicted()
	room := make([]pick.Decision, 1)
	if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, view(s, start).Snapshot, pick.Request{
		Pool: "ns/one", Base: true, Demand: pick.Demand{Prompt: 200, Output: 100, Now: start.UnixNano()},
	}, room); err != nil {
		t.Fatal(err)
	}
	belief.CountsOf(room[0]).Begin(start)
	look := func(running, usage float64, tokens engine.Value) *pick.Endpoint {
		s.Saw(s.Look(a, start), engine.Load{Running: engine.Known(running), KVUsage: engine.Known(usage), KVTokens: tokens})
		return endpointOf(s)
	}
	// Of 1,000 tokens half are in use, 250 of them by ours.
	if e := look(3, 0.5, engine.Known(1000)); e.Others != 2 || e.OthersTokens != 250 || e.KVTokens != 1000 || math.Abs(e.OthersBeside-0.0045) > 1e-9 {
		t.Errorf("others have %d requests, %d tokens of %d, %g s", e.Others, e.OthersTokens, e.KVTokens, e.OthersBeside)
	}
	if e := look(1, 0.5, engine.Known(1000)); e.Others != 0 || e.OthersTokens != 0 || e.OthersBeside != 0 {
		t.Errorf("where there are none they have %d requests, %d tokens, %g s", e.Others, e.OthersTokens, e.OthersBeside)
	}
	if e := look(2, 0.1, engine.Known(1000)); e.OthersTokens != 0 {
		t.Errorf("where ours have more than there is, others have %d", e.OthersTokens)
	}
	if e := look(2, 0.5, engine.Value{}); e.KVTokens != 1600 {
		t.Errorf("where the engine does not say, its cache holds %d", e.KVTokens)
	}
}

// A request that turned out to be elsewhere takes with it what it asks of an engine.
func TestAClaimMoves(t *testing.T) {
	s := predicted()
	room := make([]pick.Decision, 1)
	endpoints := view(s, start).Snapshot.Pools["ns/one"].Endpoints
	if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, view(s, start).Snapshot, pick.Request{
		Pool: "ns/one", Base: true, Demand: pick.Demand{Prompt: 200, Output: 100, Now: start.UnixNano()},
	}, room); err != nil {
		t.Fatal(err)
	}
	from := belief.CountsOf(room[0])
	from.Begin(start)
	to, _ := s.Moved(from, b, "llama", true)
	to.Add(start.Add(time.Second))
	from.End()
	if was, is := endpoints[0].Backlog, endpoints[1].Backlog; was.Held.Load() != 0 || was.Through.Load() != 0 || is.Held.Load() != 250 ||
		is.Through.Load() != start.Add(1200*time.Millisecond).UnixNano() {
		t.Errorf("%d and %d tokens are held", was.Held.Load(), is.Held.Load())
	}
}

// Adapters are where the last requests for them left them, an engine says that they are active, or nowhere once another engine is there.
func TestWhereAdaptersAre(t *testing.T) {
	s := predicted()
	look := func(slots, began float64, active ...string) {
		s.Saw(s.Look(a, start), engine.Load{MaxAdapters: engine.Known(slots), Started: engine.Known(began), Active: active})
	}
	where := func() (all [3]pick.Place) {
		p := view(s, start).Snapshot.Pools["ns/one"]
		for i, name := range []string{"x", "y", "z"} {
			all[i] = p.Copies[name][0].InFlight.Place()
		}
		return all
	}
	send := func(name string, at time.Duration) {
		p := view(s, start).Snapshot.Pools["ns/one"]
		c := belief.CountsOf(pick.Decision{Endpoint: &p.Endpoints[0], Copy: &p.Copies[name][0]})
		c.Begin(start.Add(at))
		c.End()
	}
	look(1, 100)
	send("x", time.Second)
	send("y", 2*time.Second)
	if got := where(); got != [3]pick.Place{pick.InHost, pick.InSlot, pick.InStorage} {
		t.Errorf("they are at %v", got)
	}
	if look(1, 100, "z"); where() != [3]pick.Place{pick.InHost, pick.InHost, pick.InSlot} {
		t.Errorf("once the engine reports z, they are at %v", where())
	}
	if look(1, 200); where() != [3]pick.Place{} {
		t.Errorf("once the engine began anew, they are at %v", where())
	}
	if send("x", 3*time.Second); where() != [3]pick.Place{pick.InSlot} {
		t.Errorf("then x goes to %v", where())
	}
	if look(2, 200); where() != [3]pick.Place{pick.InSlot} {
		t.Errorf("with two slots they are at %v", where())
	}
}
