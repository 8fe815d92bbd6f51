package placementclient_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/internal/objects"
)

// hold lets a request wait in the pool, until leave is called.
func (r *rig) hold(band int32) (leave func()) {
	r.Helper()
	route := objects.Name{Namespace: "ns", Name: fmt.Sprint("route", band)}
	ticket, err := r.flow.Enqueue(flow.Request{
		Key: objects.ModelKey{Pool: thePool}, Path: queue.Path{Band: band, Route: route, Share: 2},
	}, time.Now())
	if err != nil {
		r.Fatal(err)
	}
	return ticket.Leave
}

// closed returns how many endpoints belong to others, for requests of a band.
func (r *rig) closed(band int32) (n int) {
	for _, highest := range r.flow.Turns.Closed(thePool, r.fleet.View().Snapshot.Pools[thePool.String()]) {
		if highest >= int64(band) {
			n++
		}
	}
	return n
}

// Through control, extprocs know what waits in others: an endpoint belongs to each in turn, and
// requests of lower bands wait. When nothing waits any more, nothing remains. While control is
// away, the last shares hold.
func TestExtprocsTakeTurns(t *testing.T) {
	address, stop := aBoard(t)
	x, leaveX := anExtproc(t, address)
	y, _ := anExtproc(t, address)
	if x.closed(0) > 0 || y.closed(0) > 0 {
		t.Fatal("endpoints are closed, and nothing waits")
	}
	endX := x.hold(0)
	y.await("y waits for x", func() bool { return y.closed(0) > 0 })
	if x.closed(0) > 0 {
		t.Error("x waits for itself")
	}
	endY := y.hold(0)
	y.await("it is y's turn", func() bool { return y.closed(0) == 0 })
	x.await("it is not x's turn", func() bool { return x.closed(0) > 0 })
	x.await("it is x's turn", func() bool { return x.closed(0) == 0 })
	endHigher := y.hold(7)
	x.await("a higher band waits in y", func() bool { return x.closed(7) > 0 || x.closed(6) > 0 })
	endHigher()
	endX()
	x.await("nothing is closed for a band above", func() bool { return x.closed(1) == 0 && x.closed(0) > 0 })
	endY()
	for _, r := range []*rig{x, y} {
		r.await("nothing remains", func() bool { return r.flow.Turns.Empty() })
	}

	defer x.hold(0)()
	y.await("y waits for x again", func() bool { return y.closed(0) > 0 })
	leaveX()
	y.await("x has gone", func() bool { return y.closed(0) == 0 })
	z, _ := anExtproc(t, address)
	defer z.hold(0)()
	y.await("y waits for z", func() bool { return y.closed(0) > 0 })
	z.send()
	y.await("y sees z's request", func() bool { return y.endpoint().Peers.Requests.Load() == 1 })
	stop()
	y.await("y has lost control", func() bool { return y.endpoint().Peers.Requests.Load() == 0 })
	if y.closed(0) == 0 {
		t.Error("when control has gone, the last shares do not hold")
	}
}
