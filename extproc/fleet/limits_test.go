package fleet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/engine"
)

// limitedFleet returns a fleet in which model m has a copy with this limit. It also returns the
// list of models that the fleet reports as freed.
func limitedFleet(t *testing.T, limit int) (*fleet.Fleet, *[]string) {
	t.Helper()
	var freed []string
	f := fleet.New(fleet.Config{Freed: func(_, model string) { freed = append(freed, model) }})
	f.SetWorld(world("10.0.0.1", "10.0.0.2"))
	for _, address := range []string{a, b} {
		f.SetModels(address, engine.Models{Unlisted: true})
		see(f, address, engine.Load{})
	}
	limits(f, limit, endpointstate.Share{})
	return f, &freed
}

// limits makes control's complete state the one in which model m has a copy with this limit.
func limits(f *fleet.Fleet, limit int, share endpointstate.Share) {
	n := endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a, b),
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("m", a): endpointstate.Loaded}, Share: share,
	}
	if limit > 0 {
		n.Limits = map[endpointstate.CopyKey]int{copyOf("m", a): limit}
	}
	f.ApplyPlacement(n)
}

// room reports whether the copy of model m can accept another request.
func room(f *fleet.Fleet) bool {
	_, room := f.View().Snapshot.Pools[thePool.String()].Has("m")
	return room
}

func TestConcurrencyLimitOfACopy(t *testing.T) {
	f, freed := limitedFleet(t, 2)
	d := decide(t, f, "m")
	first, second := f.Begin(d), f.Begin(d)
	if first == nil || second == nil || f.Begin(d) != nil || room(f) {
		t.Fatalf("two of three begin: %v %v, with room for more: %v", first, second, room(f))
	}
	*freed = nil
	first.End()
	first.End()
	if !slices.Equal(*freed, []string{"m"}) || !room(f) {
		t.Errorf("after one end %v are freed, with room: %v", *freed, room(f))
	}
	// A changed limit also applies to requests that are already in flight.
	limits(f, 1, endpointstate.Share{})
	if room(f) || f.Begin(d) != nil {
		t.Error("a copy with a limit of one and one request has room")
	}
	limits(f, 0, endpointstate.Share{})
	if !room(f) || f.Begin(d) == nil || f.View().Snapshot.Pools[thePool.String()].Copies["m"][0].Limited {
		t.Error("without a limit there is no room, or the copy is limited")
	}
	*freed = nil
	second.End()
	if !slices.Equal(*freed, []string{"m"}) {
		t.Errorf("after the end at a copy without a limit %v are freed", *freed)
	}
}

// A limit is shared according to control's last report, even if a new stream has not repeated it
// yet.
func TestLimitIsSharedWithOtherProcesses(t *testing.T) {
	f, _ := limitedFleet(t, 4)
	if n := fleet.Read(f, (*endpointstate.State).Sharing); n != 0 {
		t.Errorf("before control's report limits are shared among %d", n)
	}
	limit := func() int64 {
		return f.View().Snapshot.Pools[thePool.String()].Copies["m"][0].InFlight.Limit.Load()
	}
	f.ApplyPlacement(endpointstate.PlacementUpdate{Share: endpointstate.Share{Index: 1, Processes: 2}})
	if limit() != 2 || fleet.Read(f, (*endpointstate.State).Sharing) != 2 {
		t.Errorf("of 4 among two processes it has %d, of %d", limit(), fleet.Read(f, (*endpointstate.State).Sharing))
	}
	limits(f, 6, endpointstate.Share{})
	if limit() != 3 || fleet.Read(f, (*endpointstate.State).Sharing) != 2 {
		t.Errorf("of 6 among two processes it has %d, of %d", limit(), fleet.Read(f, (*endpointstate.State).Sharing))
	}
	f.ApplyPlacement(endpointstate.PlacementUpdate{Share: endpointstate.Share{Index: 0, Processes: 1}})
	if limit() != 6 {
		t.Errorf("a single process has %d of 6", limit())
	}
	f.ApplyPlacement(endpointstate.PlacementUpdate{Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("m",
		a): endpointstate.Loaded}})
	if limit() != 0 {
		t.Errorf("a copy without a limit has a limit of %d", limit())
	}
}

// When a lease expires, the copy is free for the next request, and likewise when another endpoint
// has served the request.
func TestEndedRequestFreesACopy(t *testing.T) {
	f, freed := limitedFleet(t, 1)
	f.Lease("late", f.Begin(decide(t, f, "m")), -time.Second)
	f.EndLeases()
	if !slices.Equal(*freed, []string{"m"}) || !room(f) {
		t.Errorf("after the lease %v are freed, with room: %v", *freed, room(f))
	}
	f.Lease("over", f.Begin(decide(t, f, "m")), time.Hour)
	f.Release("over")
	if !slices.Equal(*freed, []string{"m", "m"}) || !room(f) {
		t.Errorf("after its release %v are freed, with room: %v", *freed, room(f))
	}
	i := f.Begin(decide(t, f, "m"))
	*freed = nil
	f.Moved(i, b)
	if !slices.Equal(*freed, []string{"m"}) || !room(f) {
		t.Errorf("after it moved %v are freed, with room: %v", *freed, room(f))
	}
	i.End()
}
