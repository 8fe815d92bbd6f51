package flow_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/hash"
)

// twoEndpoints returns a snapshot of a pool with two endpoints, of which the second has one request
// and a window of one.
func twoEndpoints() *pick.Snapshot {
	p := &pick.Pool{}
	for i := range 2 {
		window := new(atomic.Int64)
		window.Store(1)
		p.Endpoints = append(p.Endpoints, &pick.Endpoint{
			Address: [...]string{"10.0.0.1:8000", "10.0.0.2:8000"}[i], Number: i, Backlog: new(pick.Backlog), Peers: new(pick.Peers),
			InFlight: new(atomic.Int64), Window: window,
		})
		p.Any = append(p.Any, pick.Copy{Endpoint: i, InFlight: new(pick.Count)})
	}
	p.Endpoints[1].InFlight.Store(1)
	return &pick.Snapshot{Pools: map[string]*pick.Pool{pools[0].String(): p}}
}

// While a request waits in another process, endpoints are closed for this process's requests. An
// endpoint with unused room opens after a while, and one without room or with use by others does
// not. Nothing remains in the end.
func TestLeftRoomOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := twoEndpoints()
		of := s.Pools[pools[0].String()]
		is := flow.NewTurns()
		is.Begin()
		if is.Closed(pools[0], of) != nil || is.Contended(pools[0]) {
			t.Error("endpoints are closed although nothing waits")
		}
		hear := func(requests uint64, share float64) {
			others := turns.Others{Requests: requests, Share: share, After: share}
			is.Hear([]flow.Others{{Pool: pools[0], Others: others}}, time.Second)
		}
		hear(1, 1)
		request := pick.Request{Pool: pools[0].String(), Gate: pick.Gate{On: true}}
		try := func() (err error) {
			request.Gate.Closed = is.Closed(pools[0], of)
			_, err = pick.Pick(pick.Policy{Rule: pick.LeastRequest}, s, request, make([]pick.Decision, 1))
			return err
		}
		began := time.Now()
		for try() != nil {
			again, others := is.Left(pools[0], pick.Policy{}, s, request, time.Now())
			if !others {
				t.Fatal("no room belongs to others")
			}
			if wait := time.Until(again); wait < 0 || wait > turns.Slot {
				t.Fatalf("it tries again in %v", wait)
			}
			time.Sleep(max(time.Until(again), time.Millisecond))
			if time.Since(began) > 200*time.Millisecond {
				break
			}
		}
		if took := time.Since(began); took < 85*time.Millisecond || took > 110*time.Millisecond {
			t.Errorf("unused room is left after %v", took)
		}
		if closed := is.Closed(pools[0], of); closed[0] >= 0 || closed[1] < 0 {
			t.Errorf("closed for bands up to %v, want the second endpoint", closed)
		}
		time.Sleep(time.Second)
		for range 40 { // others use the first endpoint, and the second has no room
			of.Endpoints[0].Peers.Requests.Add(1)
			if try() == nil {
				t.Fatal("it took room that others use")
			}
			is.Left(pools[0], pick.Policy{}, s, request, time.Now())
			time.Sleep(10 * time.Millisecond)
		}
		request.Gate.Band = 1
		if err := try(); err != nil {
			t.Errorf("a higher band: %v", err)
		}
		if hear(0, 0); !is.Empty() {
			t.Error("state remains")
		}
	})
}

// In each slot, the endpoints of a pool belong to all processes that wait, and not to one of them.
func TestEndpointsAreSpreadOverProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := &pick.Pool{}
		for i := range 16 {
			address := fmt.Sprintf("10.0.0.%d:8000", i)
			of.Endpoints = append(of.Endpoints, &pick.Endpoint{Address: address, Hash: hash.Of(address), Number: i})
		}
		is := flow.NewTurns()
		is.Wait([]flow.Own{{Pool: pools[0], Own: turns.Own{Requests: 1, Share: 1}}})
		is.Hear([]flow.Others{{Pool: pools[0], Others: turns.Others{Requests: 1, Share: 1, After: 1}}}, 0)
		for range 100 {
			closed := 0
			for _, highest := range is.Closed(pools[0], of) {
				if highest >= 0 {
					closed++
				}
			}
			if closed < 2 || closed > 14 {
				t.Errorf("%d of 16 endpoints belong to the other process", closed)
			}
			time.Sleep(turns.Slot)
		}
	})
}
