package fleet

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
)

// Turner is a Holder that takes turns with others at endpoints with little room.
type Turner interface {
	Holder
	// Lines returns the picker's waiting requests by band.
	Lines() []turns.Line
	// Hear handles a report about the waiting requests of all others in one band.
	Hear(now float64, band int32, others turns.Others)
	// Unused reports whether an endpoint had room for the first request that is held, but belonged
	// to another picker, when Next last returned nil.
	Unused(endpoint int) bool
}

// turning is how a picker takes turns with others.
type turning struct {
	pool   *turns.Pool
	closed pick.ClosedFor
	unused []bool // by endpoint
	wake   float64
}

func newTurning(endpoints int) *turning {
	return &turning{pool: turns.New(), closed: make(pick.ClosedFor, endpoints), unused: make([]bool, endpoints)}
}

func passed(now float64) time.Duration { return time.Duration(now * float64(time.Second)) }

// keyOf returns the key of an endpoint in all processes.
func keyOf(e *pick.Endpoint) uint64 { return hash.Mix(e.Hash) }

// close sets the endpoints that belong to others now.
func (g *gated) close(now float64, gate *pick.Gate) {
	t := g.turns
	if gate.Closed = nil; g.view == nil || !t.pool.Contended() {
		return
	}
	endpoints := g.view.Snapshot.Pools[objects.EndpointsPool.String()].Endpoints
	for _, e := range endpoints {
		for len(t.closed) <= e.Number {
			t.closed = append(t.closed, pick.NoBand)
		}
		t.closed[e.Number] = pick.NoBand
		if band, closed := t.pool.Closed(e.Number, keyOf(e), passed(now), passed(now)); closed {
			t.closed[e.Number] = int64(band)
		}
	}
	gate.Closed = t.closed
}

// offered reports whether a request that found no room may use an endpoint that its owner has
// left. Otherwise it sets the time at which that may be.
func (g *gated) offered(now float64) (may bool) {
	t, asked := g.turns, g.asked
	t.wake = math.Inf(1)
	clear(t.unused)
	if asked.Gate.Closed == nil {
		return false
	}
	slot := turns.Slot.Seconds()
	t.wake = (math.Floor(now/slot) + 1) * slot
	pick.Rooms(g.policy, g.view.Snapshot, asked, func(e *pick.Endpoint, room bool, at int64) {
		i := g.numbers[e.Address]
		if !room {
			t.pool.Used(e.Number, passed(now))
			return
		}
		t.unused[i] = since(at) <= now // otherwise it has room only because it has none of the picker's requests
		is, next := t.pool.Offer(e.Number, keyOf(e), asked.Gate.Band, passed(max(0, since(at))), passed(now), passed(now))
		if may = may || is; !is {
			t.wake = min(t.wake, next.Seconds())
		}
	})
	return may
}

// waits records what is held.
func (g *gated) waits() {
	o, ok := g.order.(*fairOrder)
	if !ok || g.turns == nil {
		return
	}
	var own []turns.Own
	for _, b := range o.queue.Bands() {
		own = append(own, turns.Own{Band: b.Band, Requests: b.Requests, Share: float64(b.Shares)})
	}
	g.turns.pool.Wait(own)
}

// Lines implements [Turner].
func (g *gated) Lines() (all []turns.Line) {
	if g.turns != nil {
		g.turns.pool.Lines(func(l turns.Line) { all = append(all, l) })
	}
	slices.SortFunc(all, func(a, b turns.Line) int { return cmp.Compare(a.Band, b.Band) })
	return all
}

// Hear implements [Turner].
func (g *gated) Hear(now float64, band int32, others turns.Others) {
	if g.turns != nil {
		g.turns.pool.Hear(band, others, 1, passed(now))
	}
}

// Unused implements [Turner].
func (g *gated) Unused(endpoint int) bool { return g.turns != nil && g.turns.unused[endpoint] }

// exchange is the state of a run for pickers that take turns.
type exchange struct {
	ended  map[int32]turns.Service // service of lines that ended
	lines  []map[int32]turns.Line  // by picker
	sent   []float64               // by endpoint: when a request was last sent there
	idle   [][]float64             // by picker and endpoint: since when it has room; NaN if it has none
	unused float64                 // longest time
}

// exchangeTurns schedules the exchanges of pickers that take turns, through control.
func (r *run) exchangeTurns() {
	if _, ok := r.pickers[0].(Turner); !ok || len(r.pickers) < 2 || r.BacklogSync <= 0 {
		return
	}
	x := &r.exchange
	x.sent = make([]float64, len(r.endpoints))
	for range r.pickers {
		x.lines = append(x.lines, make(map[int32]turns.Line))
		idle := make([]float64, len(r.endpoints))
		for i := range idle {
			idle[i] = math.NaN()
		}
		x.idle = append(x.idle, idle)
	}
	x.ended = make(map[int32]turns.Service)
	r.loop.Every(r.BacklogSync, r.BacklogSync, func() bool {
		bands := make(map[int32]bool)
		for by, p := range r.pickers {
			was := x.lines[by]
			x.lines[by] = make(map[int32]turns.Line)
			for _, l := range p.(Turner).Lines() {
				x.lines[by][l.Band], bands[l.Band] = l, true
			}
			for band, l := range was {
				if bands[band] = true; x.lines[by][band] == (turns.Line{}) {
					x.ended[band] = turns.Service{Seconds: x.ended[band].Seconds + l.Seconds}
				}
			}
		}
		for band := range bands {
			for by := range r.pickers {
				others := x.others(by, band)
				r.loop.At(r.loop.Now()+2*messageLatency, func() { r.pickers[by].(Turner).Hear(r.loop.Now(), band, others) })
			}
		}
		for by := range r.pickers {
			r.loop.At(r.loop.Now()+2*messageLatency, func() { r.pump(by) })
		}
		return r.arriving || r.left > 0
	})
}

// others adds up what waits in a band at all pickers but one, as control does.
func (x *exchange) others(by int, band int32) (all turns.Others) {
	all.Service = x.ended[band]
	for o, lines := range x.lines {
		l, ok := lines[band]
		if o == by || !ok {
			continue
		}
		all.Requests += uint64(l.Requests) //nolint:gosec // not negative
		all.Share += l.Share
		all.Seconds += l.Seconds
		if !l.Passes && o < by {
			all.Before += l.Share
		} else if !l.Passes {
			all.After += l.Share
		}
	}
	if all.Requests == 0 {
		return turns.Others{}
	}
	return all
}

// measureUnused measures how long endpoints have room while a picker holds requests.
func (r *run) measureUnused(by int) {
	x := &r.exchange
	p, ok := r.pickers[by].(Turner)
	if !ok || x.idle == nil {
		return
	}
	for i, since := range x.idle[by] {
		switch now := r.loop.Now(); {
		case !p.Unused(i):
			x.idle[by][i] = math.NaN()
		case math.IsNaN(since):
			x.idle[by][i] = now
		default:
			x.unused = max(x.unused, now-max(since, x.sent[i]))
		}
	}
}
