package flow_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// sharedPool is a pool with one idle endpoint, for whose room a request waits while requests wait
// in another process.
type sharedPool struct {
	t       *testing.T
	turns   *flow.Turns
	flow    *flow.Flow
	view    *endpointstate.View
	waiting *flow.Ticket
}

func aSharedPool(t *testing.T) *sharedPool {
	s := twoEndpoints()
	s.Pools[pools[0].String()].Endpoints = s.Pools[pools[0].String()].Endpoints[:1]
	s.Pools[pools[0].String()].Any = s.Pools[pools[0].String()].Any[:1]
	p := &sharedPool{t: t, turns: flow.NewTurns(), view: &endpointstate.View{Snapshot: s, World: new(objects.World)}}
	p.flow = flow.New(flow.Config{
		View: func() *endpointstate.View { return p.view }, MaxQueued: 10, MaxBytes: 100, Alone: true, Turns: p.turns,
	})
	p.turns.Begin()
	p.others(1)
	p.waiting = enqueue(t, p.flow, of(pools[0], 0, 1, 1))
	if p.try() {
		t.Fatal("it uses room of another process")
	}
	return p
}

// others sets how many requests wait in the other process.
func (p *sharedPool) others(requests uint64) {
	is := turns.Others{Requests: requests, Share: float64(requests), After: float64(requests)}
	p.turns.Hear([]flow.Others{{Pool: pools[0], Others: is}}, time.Second)
}

// try lets the called request look for room. If it finds none, it waits again.
func (p *sharedPool) try() (found bool) {
	turn(p.t, p.waiting)
	name := pools[0]
	r := pick.Request{Pool: name.String(), Gate: pick.Gate{On: true}}
	r.Gate.Closed = p.turns.Closed(name, p.view.Snapshot.Pools[r.Pool])
	if _, err := pick.Pick(pick.Policy{Rule: pick.LeastRequest}, p.view.Snapshot, r, make([]pick.Decision, 1)); err == nil {
		return true
	}
	due, _ := p.turns.Left(name, pick.Policy{}, p.view.Snapshot, r, time.Now())
	p.waiting.Back(flow.Room, due, nil)
	return false
}

// When no request waits in other processes any more, a waiting request tries at once. Otherwise it
// would try only when the turn ends: here 25 ms later.
func TestEndOfOthersOpensAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := aSharedPool(t)
		time.Sleep(25 * time.Millisecond)
		began := time.Now()
		p.others(0)
		if !p.try() {
			t.Error("there is no room")
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it tries after %v", took)
		}
		p.waiting.Leave()
		if !p.turns.Empty() {
			t.Error("state remains")
		}
	})
}

// A change of shares that opens an endpoint lets a waiting request try at once, and so does the end
// of a stream of control in which nothing waits.
func TestNewSharesOpenAtOnce(t *testing.T) {
	for name, change := range map[string]func(p *sharedPool){
		"others pass their turns": func(p *sharedPool) {
			p.turns.Hear([]flow.Others{{Pool: pools[0], Others: turns.Others{Requests: 1, Share: 1}}}, time.Second)
		},
		"own requests are reported": func(p *sharedPool) {
			p.turns.Wait([]flow.Own{{Pool: pools[0], Own: turns.Own{Requests: 1, Share: 1e12}}})
		},
		"a new stream has no requests": func(p *sharedPool) {
			p.turns.Begin()
			p.turns.Complete()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := aSharedPool(t)
				time.Sleep(25 * time.Millisecond)
				began := time.Now()
				change(p)
				if found, took := p.try(), time.Since(began); !found || took != 0 {
					t.Errorf("it tries after %v, and finds room: %v", took, found)
				}
				p.waiting.Leave()
			})
		})
	}
}

// Messages that open nothing let nobody try. However often endpoints open, a request tries at most
// once in 20 ms.
func TestMessagesCauseFewTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := aSharedPool(t)
		for i := range uint64(20) {
			time.Sleep(time.Millisecond)
			if p.others(1 + i%2); len(p.waiting.Turn()) > 0 {
				t.Fatal("it tries although nothing has changed")
			}
		}
		tries := 0
		for range 100 {
			time.Sleep(time.Millisecond)
			p.others(0)
			p.others(1)
			if synctest.Wait(); len(p.waiting.Turn()) > 0 {
				tries++
				p.try()
			}
		}
		if tries < 4 || tries > 6 {
			t.Errorf("it tries %d times in 100 ms", tries)
		}
		p.waiting.Leave()
	})
}
