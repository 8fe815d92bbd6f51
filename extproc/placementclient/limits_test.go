package placementclient_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/objects"
)

// takes is a loaded copy of m at a that takes so many requests at once.
func takes(limit uint32) *placement.Copy {
	c := is("m", a, placement.Copy_LOADED)
	c.Limit = limit
	return c
}

// limit is how many requests this process may have at that copy.
func (r *rig) limit() int64 {
	copies := r.fleet.View().Snapshot.Pools[thePool.String()].Copies["m"]
	if len(copies) == 0 {
		return -1
	}
	return copies[0].InFlight.Limit.Load()
}

// What control says of limits is in force, also when it says so of one of several Updates before
// all is said. The next stream is told among how many they are shared, once.
func TestLimitsAreHeardAndShared(t *testing.T) {
	r := newRig(t)
	s := r.next()
	first := &placement.Update{Share: &placement.Share{Index: 0, Processes: 2}, Copies: []*placement.Copy{takes(4)}}
	s.say(first)
	s.say(complete())
	s.inForce()
	if n := r.limit(); n != 2 {
		t.Errorf("its part of 4 is %d", n)
	}
	s.say(&placement.Update{Share: &placement.Share{Processes: 1}})
	s.inForce()
	if n := r.limit(); n != 4 {
		t.Errorf("alone its part of 4 is %d", n)
	}
	s.say(&placement.Update{Share: &placement.Share{Processes: 3, Index: 1}, Copies: []*placement.Copy{takes(9)}})
	s.inForce()
	if n := r.limit(); n != 3 {
		t.Errorf("its part of 9 is %d", n)
	}
	close(s.end)
	s = r.next()
	s.until("the next stream is told", func() bool { return len(s.sharing) > 0 && s.sharing[0] == 3 })
	s.say(complete(takes(0)))
	s.inForce()
	if n := r.limit(); n != 0 {
		t.Errorf("without a limit it is %d", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.sharing[1:] {
		if n != 0 {
			t.Errorf("the Reports say %v", s.sharing)
		}
	}
}

// How long requests wait for a copy to take another is told once a second, also of a model of which
// none begins. Those that wait for a model without a copy have no such.
func TestWhatWaitsForCopiesThatAreFullIsTold(t *testing.T) {
	start := time.Now()
	r := newRig(t)
	s := r.next()
	s.say(complete(takes(1)))
	s.inForce()
	flight, _ := r.begin("m", 1)
	for _, id := range []string{"m", "m", "nobody"} {
		ticket, err := r.flow.Hold(objects.ModelKey{Pool: thePool, ID: id}, 1, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer ticket.Leave()
	}
	s.until("waits are said", func() bool { return s.waited["m"] > 4500 })
	s.mu.Lock()
	if most := 2 * time.Since(start).Milliseconds(); s.waited["m"] > uint64(most) {
		t.Errorf("two requests have waited %d ms, which is more than %d", s.waited["m"], most)
	}
	if n := s.waited["nobody"]; n > 0 || s.used["m"] != 1 {
		t.Errorf("the other has waited %d ms, and %d have begun", n, s.used["m"])
	}
	s.mu.Unlock()
	flight.End()
}
