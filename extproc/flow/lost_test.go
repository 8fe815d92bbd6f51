package flow_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// A reservation ends when its endpoint has no copy of the holder's model any more: the holder then
// waits for a load, and others may use the room.
func TestReservationEndsWithItsCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := new(objects.World)
		withCopyAt := func(endpoints ...int) *endpointstate.View {
			p := &pick.Pool{Endpoints: []*pick.Endpoint{{Address: "10.0.0.1:8000", Number: 7}, {Address: "10.0.0.2:8000", Number: 8}}}
			p.Copies = make(map[string][]pick.Copy)
			for _, at := range endpoints {
				p.Copies["sql"] = append(p.Copies["sql"], pick.Copy{Model: "sql", Endpoint: at, InFlight: new(pick.Count)})
			}
			return &endpointstate.View{Snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{pools[0].String(): p}}, World: world}
		}
		view := withCopyAt(0)
		f := flow.New(flow.Config{View: func() *endpointstate.View { return view }, MaxQueued: 10, MaxBytes: 100})
		holder := enqueue(t, f, flow.Request{
			Key: objects.ModelKey{Pool: pools[0], ID: "sql"}, Placed: true, Path: queue.Path{Route: pools[0], Share: 1},
		})
		if err := <-holder.Turn(); err != nil {
			t.Fatal(err)
		}
		holder.Back(flow.Room, time.Time{}, &pick.Reservation{Endpoint: 7})
		other := blocked(t, f, flow.Request{Key: objects.ModelKey{Pool: pools[0]}, Path: queue.Path{Route: pools[1], Share: 1}})
		for _, c := range []struct {
			copies []int
			want   int
		}{{[]int{0, 1}, 1}, {[]int{1}, 0}, {nil, 0}} {
			view = withCopyAt(c.copies...)
			f.Published(view)
			if reserved := other.Standing().Reserved; len(reserved) != c.want {
				t.Errorf("with copies at %v, %d endpoints are reserved, want %d", c.copies, len(reserved), c.want)
			}
		}
		holder.Leave()
		other.Leave()
	})
}

// A request whose predicted time of room has passed, and that finds none, tries again after a
// moment: a wrong prediction does not keep a core busy.
func TestPassedPredictionOfRoomCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 100)
		ticket := enqueue(t, f, of(pools[0], 0, 1, 1))
		tries, began := 0, time.Now()
		for ; tries < 3000 && time.Since(began) < time.Second; tries++ {
			if err := <-ticket.Turn(); err != nil {
				t.Fatal(err)
			}
			ticket.Back(flow.Room, time.Now().Add(-time.Hour), nil)
		}
		if tries > 1100 {
			t.Errorf("it tries %d times within %v", tries, time.Since(began))
		}
		ticket.Leave()
	})
}
