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

// Requests that wait for a copy with room are released when Has reports such a copy. Pick must then
// find it. If the two disagreed, requests would be released again and again in vain, or never.
func TestHasAgreesWithPick(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	found := map[string]int{}
	for range 20000 {
		var pool pick.Pool
		pool.Copies = map[string][]pick.Copy{}
		for i := range random.IntN(4) {
			pool.Endpoints = append(pool.Endpoints, &pick.Endpoint{
				Address: strconv.Itoa(i), State: pick.State(random.IntN(len(pick.States))), InFlight: new(atomic.Int64),
				Adapters: new(atomic.Int64),
				Backlog:  new(pick.Backlog), Peers: new(pick.Peers), Number: i,
			})
			count := new(pick.Count)
			count.Store(int64(random.IntN(3)))
			count.Limit.Store(int64(random.IntN(3)))
			pool.Copies["m"] = append(pool.Copies["m"],
				pick.Copy{Endpoint: i, Model: "m", InFlight: count, Limited: count.Limit.Load() > 0})
			pool.Any = append(pool.Any, pick.Copy{Endpoint: i, InFlight: new(pick.Count)})
			pool.Listed = true
		}
		request := pick.Request{Pool: thePool, Model: "m", Random: random.Uint64(), Tokenless: random.IntN(2) == 0}
		_, err := pick.Pick(pick.Policy{Rule: pick.Rule(random.IntN(5))}, &pick.Snapshot{Pools: map[string]*pick.Pool{thePool: &pool}},
			request, make([]pick.Decision, 1+random.IntN(3)))
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

// A copy never has more requests than its limit, however many enter at the same time.
func TestLimitHoldsForConcurrentRequests(t *testing.T) {
	var c pick.Count
	c.Limit.Store(1)
	var there, entered atomic.Int64
	var all sync.WaitGroup
	for range 4 { // more goroutines than a small machine has CPUs
		all.Go(func() {
			for range 300_000 {
				n, ok := c.Enter()
				if !ok {
					continue
				}
				entered.Add(1)
				if is := there.Add(1); is > 1 || n != 1 {
					t.Errorf("%d have entered, and Enter returned %d", is, n)
				}
				there.Add(-1)
				c.Add(-1)
			}
		})
	}
	all.Wait()
	c.Limit.Store(2)
	if entered.Load() < 1000 || c.Load() != 0 {
		t.Errorf("%d have entered, and %d are left", entered.Load(), c.Load())
	}
	for n := range int64(3) {
		if got, ok := c.Enter(); ok != (n < 2) || ok && got != n+1 {
			t.Errorf("entry %d: %v, counted as %d", n+1, ok, got)
		}
	}
	if !c.Full() {
		t.Error("it is not full at its limit")
	}
	c.Add(-1)
	if c.Full() {
		t.Error("it is full after one has left")
	}
	c.Limit.Store(0)
	for range 10 {
		c.Enter()
	}
	if c.Load() != 11 || c.Full() {
		t.Errorf("without a limit %d have entered", c.Load())
	}
}
