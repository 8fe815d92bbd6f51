package turns_test

import (
	"math"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/flow/turns"
)

// heard returns a Pool with this share in band 0, and with shares before and after it elsewhere.
func heard(own, before, after float64) *turns.Pool {
	p := turns.New()
	if own > 0 {
		p.Wait([]turns.Own{{Requests: 1, Share: own}})
	}
	if before+after > 0 {
		p.Hear(0, turns.Others{Requests: 1, Share: before + after, Before: before, After: after}, 1, 0)
	}
	return p
}

// shut reports whether an endpoint is closed for band 0.
func shut(p *turns.Pool, endpoint int, key uint64, turn, now time.Duration) bool {
	highest, closed := p.Closed(endpoint, key, turn, now)
	return closed && highest >= 0
}

// open returns for which part of 10,000 slots an endpoint is open for band 0.
func open(p *turns.Pool, key uint64) float64 {
	n := 0.0
	for slot := range 10_000 {
		if !shut(p, 1, key, time.Duration(slot)*turns.Slot, 0) {
			n++
		}
	}
	return n / 10_000
}

// An endpoint belongs to a process for a part of the time that is proportional to its share, and
// always if no other process waits.
func TestPartOfTheTime(t *testing.T) {
	for _, c := range []struct{ own, before, after, want float64 }{
		{1, 0, 0, 1}, {0, 0, 0, 1}, {1, 1, 0, 0.5}, {1, 0, 1, 0.5}, {3, 1, 2, 0.5}, {1, 5, 3, 1. / 9}, {0, 1, 1, 0},
	} {
		for _, key := range []uint64{0, 1 << 40, 1 << 62, math.MaxUint64} {
			if got := open(heard(c.own, c.before, c.after), key); math.Abs(got-c.want) > 0.001 {
				t.Errorf("a share of %v, after %v and before %v, has %v of the time, want %v", c.own, c.before, c.after, got, c.want)
			}
		}
	}
}

// In each slot, an endpoint belongs to exactly one of the processes that wait, even on old clocks.
func TestOneOwner(t *testing.T) {
	all := []*turns.Pool{heard(2, 0, 4), heard(1, 2, 3), heard(3, 3, 0)}
	for slot := range 1000 {
		for _, from := range []time.Duration{0, 300 * 24 * time.Hour} {
			owners := 0
			for _, p := range all {
				if !shut(p, 1, 1<<61, from+time.Duration(slot)*turns.Slot, 0) {
					owners++
				}
			}
			if owners != 1 {
				t.Fatalf("in slot %d the endpoint belongs to %d processes", slot, owners)
			}
		}
	}
}

// An endpoint is closed for the bands below the highest one that waits elsewhere, and for that one
// unless it is this process's turn. It is open for higher ones.
func TestBands(t *testing.T) {
	p := heard(1, 0, 0)
	p.Hear(5, turns.Others{Requests: 1, Share: 1, After: 1}, 1, 0)
	p.Hear(3, turns.Others{Requests: 1, Share: 1, After: 1}, 1, 0)
	if highest, closed := p.Closed(1, 0, 0, 0); !closed || highest != 5 {
		t.Errorf("closed for %d: %t, want 5", highest, closed)
	}
	p.Wait([]turns.Own{{Band: 5, Requests: 1, Share: 1e9}})
	if highest, closed := p.Closed(1, 0, 0, 0); !closed || highest != 4 {
		t.Errorf("in its turn, closed for %d: %t, want 4", highest, closed)
	}
	p = turns.New()
	p.Hear(math.MinInt32, turns.Others{Requests: 1, Share: 1, After: 1}, 1, 0)
	p.Wait([]turns.Own{{Band: math.MinInt32, Requests: 1, Share: 1e9}})
	if highest, closed := p.Closed(1, 0, 0, 0); closed {
		t.Errorf("nothing is below the lowest band, and it is closed for %d", highest)
	}
}

// A process that got more service than its part passes its turns until the others have caught up. A
// process without waiting requests keeps its debt, and gets no credit.
func TestPasses(t *testing.T) {
	passes := func(p *turns.Pool) (is bool) {
		p.Lines(func(l turns.Line) { is = l.Passes })
		return is
	}
	p := heard(1, 0, 1)
	p.Serve(0, turns.Service{Seconds: 3}, time.Second)
	if !passes(p) || open(p, 0) != 0 {
		t.Errorf("it has had 3 s, and takes turns")
	}
	hear := func(seconds, tokens float64) {
		p.Hear(0, turns.Others{
			Requests: 1, Share: 1, After: 1, Service: turns.Service{Seconds: seconds, Tokens: tokens},
		}, 1, time.Second)
	}
	p.Wait(nil)
	if hear(2, 0); !passes(p) {
		t.Error("the others have had 2 s, and its debt is forgotten")
	}
	p.Wait([]turns.Own{{Requests: 1, Share: 1}})
	if hear(3, 0); passes(p) {
		t.Error("all have had the same, and it takes no turns")
	}
	p.Wait(nil)
	hear(20, 0)
	if p.Serve(0, turns.Service{Seconds: 3}, time.Second); !passes(p) {
		t.Error("it got credit while it had no requests waiting")
	}
	if hear(20, 1000); passes(p) {
		t.Error("it compares seconds and tokens")
	}
}

// Room that stays unused is left to other processes for a moment, also by a process that is silent.
func TestLeftRoom(t *testing.T) {
	p := heard(0, 1, 1)
	at := time.Duration(0)
	for now := time.Duration(0); ; now += 10 * time.Millisecond {
		may, next := p.Offer(1, 0, 0, -1, 0, now)
		if may {
			at = now
			break
		}
		if next <= now || next > 110*time.Millisecond {
			t.Fatalf("at %v it waits until %v", now, next)
		}
	}
	if at < 90*time.Millisecond || at > 110*time.Millisecond {
		t.Errorf("the room was left after %v", at)
	}
	if shut(p, 1, 0, 0, at+19*time.Millisecond) {
		t.Error("it may not use it")
	}
	if !shut(p, 1, 0, 0, at+20*time.Millisecond) {
		t.Error("it may use it for good")
	}
	if !shut(p, 2, 0, 0, at) {
		t.Error("it may use another one")
	}
	for _, c := range []struct {
		name string
		do   func(p *turns.Pool)
	}{
		{"was used", func(p *turns.Pool) { p.Used(1, 50*time.Millisecond) }},
		{"was not observed", func(*turns.Pool) {}},
	} {
		p := heard(0, 1, 1)
		p.Offer(1, 0, 0, -1, 0, 0)
		c.do(p)
		if may, _ := p.Offer(1, 0, 0, -1, 0, 110*time.Millisecond); may {
			t.Errorf("room that %s was left", c.name)
		}
	}
	p = heard(0, 1, 1)
	p.Offer(1, 0, 0, -1, 0, 0)
	if may, _ := p.Offer(1, 0, 0, 50*time.Millisecond, 0, 99*time.Millisecond); may {
		t.Error("room that another process used was left")
	}
}

// The last shares hold until control has sent its complete state on a new stream. Nothing remains
// when nothing waits any more.
func TestStreams(t *testing.T) {
	p := heard(1, 1, 1)
	p.Offer(1, 0, 0, 0, 0, 0)
	p.Hear(2, turns.Others{Requests: 1, Share: 1, After: 1}, 2, 0)
	if highest, _ := p.Closed(1, 0, 0, 0); highest != 2 {
		t.Errorf("closed for %d, want 2", highest)
	}
	p.Hear(2, turns.Others{}, 2, 0)
	if !p.Contended() {
		t.Error("what an earlier stream reported is forgotten before the new one is complete")
	}
	if p.Complete(2); p.Contended() || p.Empty() {
		t.Error("what an earlier stream reported is kept")
	}
	if p.Wait(nil); !p.Empty() {
		t.Error("state remains")
	}
}
