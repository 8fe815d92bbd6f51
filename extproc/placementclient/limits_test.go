package placementclient_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/internal/objects"
)

// takes creates a loaded copy of model m at endpoint a, with a limit of concurrent requests.
func takes(limit uint32) *placement.Copy {
	c := is("m", a, placement.Copy_LOADED)
	c.Limit = limit
	return c
}

// limit returns this process's share of the limit of m's copy at a.
func (r *rig) limit() int64 {
	copies := r.fleet.View().Snapshot.Pools[thePool.String()].Copies["m"]
	if len(copies) == 0 {
		return -1
	}
	return copies[0].InFlight.Limit.Load()
}

// Limits from control take effect, even if they arrive in one of several Updates before the
// complete state. On the next stream, extproc reports once how many processes share the limits.
func TestLimitsAreReceivedAndShared(t *testing.T) {
	r := newRig(t)
	s := r.next()
	first := &placement.Update{Share: &placement.Share{Index: 0, Processes: 2}, Copies: []*placement.Copy{takes(4)}}
	s.say(first)
	s.say(complete())
	s.inForce()
	if n := r.limit(); n != 2 {
		t.Errorf("its share of 4 is %d", n)
	}
	s.say(&placement.Update{Share: &placement.Share{Processes: 1}})
	s.inForce()
	if n := r.limit(); n != 4 {
		t.Errorf("a single process has a share of %d of 4", n)
	}
	s.say(&placement.Update{Share: &placement.Share{Processes: 3, Index: 1}, Copies: []*placement.Copy{takes(9)}})
	s.inForce()
	if n := r.limit(); n != 3 {
		t.Errorf("its share of 9 is %d", n)
	}
	close(s.end)
	s = r.next()
	s.until("the next stream reports the number of processes", func() bool { return len(s.sharing) > 0 && s.sharing[0] == 3 })
	s.say(complete(takes(0)))
	s.inForce()
	if n := r.limit(); n != 0 {
		t.Errorf("without a limit the limit is %d", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.sharing[1:] {
		if n != 0 {
			t.Errorf("the Reports have %v", s.sharing)
		}
	}
}

// The time that requests wait at full copies is reported once a second, even for a model for which
// no request begins. Requests that wait for a model without a copy are not included.
func TestWaitsForFullCopiesAreReported(t *testing.T) {
	start := time.Now()
	r := newRig(t)
	s := r.next()
	s.say(complete(takes(1)))
	s.inForce()
	flight, _ := r.begin("m", 1)
	for _, id := range []string{"m", "m", "nobody"} {
		ticket, err := r.flow.Enqueue(flow.Request{Key: objects.ModelKey{Pool: thePool, ID: id}, Placed: true, Bytes: 1}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer ticket.Leave()
	}
	s.until("waits are reported", func() bool { return s.waited["m"] > 4500 })
	s.mu.Lock()
	if most := 2 * time.Since(start).Milliseconds(); s.waited["m"] > uint64(most) {
		t.Errorf("two requests have waited %d ms, which is more than %d", s.waited["m"], most)
	}
	if n := s.waited["nobody"]; n > 0 || s.used["m"] != 1 {
		t.Errorf("requests without a copy have waited %d ms, and %d have begun", n, s.used["m"])
	}
	s.mu.Unlock()
	flight.End()
}
