package pick_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// Who waits for a copy to take another request is let go when Has says that one does: it must say so just where Pick finds one, or a request
// would be let go again and again, or never.
func TestHasSaysWhatPickFinds(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	found := map[string]int{}
	for range 20000 {
		var pool pick.Pool
		pool.Copies = map[string][]pick.Copy{}
		for i := range random.IntN(4) {
			pool.Endpoints = append(pool.Endpoints, pick.Endpoint{
				Address: strconv.Itoa(i), State: pick.State(random.IntN(len(pick.States))), InFlight: new(atomic.Int64), Adapters: new(atomic.Int64),
				Backlog: new(pick.Backlog), Peers: new(pick.Peers), Number: i,
			})
			count := new(pick.Count)
			count.Store(int64(random.IntN(3)))
			count.Limit.Store(int64(random.IntN(3)))
			pool.Copies["m"] = append(pool.Copies["m"], pick.Copy{Endpoint: i, Model: "m", InFlight: count, Limited: count.Limit.Load() > 0})
			pool.Any = append(pool.Any, pick.Copy{Endpoint: i, InFlight: new(pick.Count)})
			pool.Listed = true
		}
		request := pick.Request{Pool: thePool, Model: "m", Random: random.Uint64(), Tokenless: random.IntN(2) == 0}
		_, err := pick.Pick(pick.Policy{Rule: pick.Rule(random.IntN(5))}, &pick.Snapshot{Pools: map[string]*pick.Pool{thePool: &pool}}, request, make([]pick.Decision, 1+random.IntN(3)))
		has, room := pool.Has("m")
		if want := err == nil || errors.Is(err, pick.ErrFull); has != want {
			t.Fatalf("it has %v, and Pick finds %v in %+v", has, err, pool)
		}
		if room != (err == nil) {
			t.Fatalf("there is room: %v, and Pick finds %v in %+v", room, err, pool)
		}
		found[map[bool]string{true: "room"}[room]+map[bool]string{true: "full"}[errors.Is(err, pick.ErrFull)]]++
	}
	if found["room"] < 1000 || found["full"] < 1000 {
		t.Errorf("it was tried on %v", found)
	}
	if has, room := (*pick.Pool)(nil).Has("m"); has || room {
		t.Error("no pool has a copy")
	}
}

// However many come at once, no more enter than may be there, and none is turned away for one that was.
func TestNoMoreEnterThanMay(t *testing.T) {
	var c pick.Count
	c.Limit.Store(3)
	var entered atomic.Int64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if n, ok := c.Enter(); ok {
				if n > 3 {
					t.Errorf("%d are there", n)
				}
				entered.Add(1)
			}
		})
	}
	all.Wait()
	if entered.Load() != 3 || c.Load() != 3 || !c.Full() {
		t.Errorf("%d entered, %d are there, full: %v", entered.Load(), c.Load(), c.Full())
	}
	c.Add(-1)
	if c.Full() {
		t.Error("it is full when one has left")
	}
	c.Limit.Store(0)
	for range 10 {
		c.Enter()
	}
	if c.Load() != 12 || c.Full() {
		t.Errorf("without a limit %d are there", c.Load())
	}
}
