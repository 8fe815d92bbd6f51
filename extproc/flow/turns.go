package flow

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
)

// Turns are the turns of several extproc processes at the endpoints of pools, see package turns. It
// is safe for concurrent use. Make one with [NewTurns]. A nil Turns never closes an endpoint.
type Turns struct {
	began     time.Time
	contended atomic.Int64 // number of pools in which other processes have requests waiting
	// opened is called when endpoints of a pool were closed and are open now; nil without a Flow.
	// It locks Flow.mu.
	opened func(name objects.Name)

	mu     sync.Mutex // guards the fields below; locked after Flow.mu
	pools  map[objects.Name]*shared
	clock  turns.Clock
	stream int
}

// shared is a pool that several processes use.
type shared struct {
	*turns.Pool
	contended bool
	// closed is the last result of Closed, for the pool of. It is valid until the time until. asked
	// is when Closed was last called.
	closed       pick.ClosedFor
	of           *pick.Pool
	until, asked time.Duration
	peers        map[int]peerUse // by number of the endpoint
}

// peerUse is the last known work of other processes at an endpoint.
type peerUse struct {
	requests, through int64
	used              time.Duration // when it last grew
}

// NewTurns returns Turns of a process that knows of no others.
func NewTurns() *Turns { return &Turns{began: time.Now(), pools: make(map[objects.Name]*shared)} }

// now returns the time of this process's clock.
func (t *Turns) now() time.Duration { return time.Since(t.began) }

// Contended reports whether requests of a pool wait in other processes. It is fast if none wait in
// any pool.
func (t *Turns) Contended(name objects.Name) bool {
	if t == nil || t.contended.Load() == 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pools[name]
	return p != nil && p.contended
}

// Closed returns the endpoints of a pool whose room belongs to other processes now; nil if there
// are none. The result is not changed afterwards.
func (t *Turns) Closed(name objects.Name, of *pick.Pool) pick.ClosedFor {
	if t == nil || of == nil || t.contended.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pools[name]
	if p == nil || !p.contended {
		return nil
	}
	now := t.now()
	if p.asked = now; p.of != of || now >= p.until {
		turn := t.clock.At(now)
		p.closed, p.of, p.until = p.closedAt(of, turn, now), of, now+turns.Slot-turn%turns.Slot
	}
	return p.closed
}

// Peek returns what Closed returns, and changes nothing.
func (t *Turns) Peek(name objects.Name, of *pick.Pool) pick.ClosedFor {
	if t == nil || of == nil || t.contended.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pools[name]
	if p == nil {
		return nil
	}
	now := t.now()
	return p.closedAt(of, t.clock.At(now), now)
}

// closedAt returns the endpoints of a pool that are closed at a time; nil if there are none. Turn
// is that time of the turn clock.
func (p *shared) closedAt(of *pick.Pool, turn, now time.Duration) pick.ClosedFor {
	if !p.Contended() {
		return nil
	}
	most := 0
	for _, e := range of.Endpoints {
		most = max(most, e.Number)
	}
	all := make(pick.ClosedFor, most+1)
	for _, e := range of.Endpoints {
		all[e.Number] = pick.NoBand
		if highest, closed := p.Closed(e.Number, keyOf(e), turn, now); closed {
			all[e.Number] = int64(highest)
		}
	}
	return all
}

// keyOf returns the key of an endpoint in all processes. It spreads similar addresses.
func keyOf(e *pick.Endpoint) uint64 { return hash.Mix(e.Hash) }

// Left finds room that other processes leave unused, after Pick has returned [pick.ErrNoRoom] for a
// request at the time clock. Again is when the request should try again: at once if there is such
// room, otherwise when there may be some or the turn changes. It is zero if no endpoint of the pool
// belongs to another process. Others reports whether such an endpoint has room.
func (t *Turns) Left(
	name objects.Name, policy pick.Policy, s *pick.Snapshot, r pick.Request, clock time.Time,
) (again time.Time, others bool) {
	if t == nil || r.Gate.Closed == nil {
		return time.Time{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pools[name]
	if p == nil || !p.contended {
		return clock, false
	}
	now := t.now()
	turn := t.clock.At(now)
	next := now + turns.Slot - turn%turns.Slot
	pick.Rooms(policy, s, r, func(e *pick.Endpoint, room bool, at int64) {
		used := p.used(e, now)
		if r.Demand.Now != 0 {
			used = max(used, now+time.Duration(at-r.Demand.Now))
		}
		if !room {
			p.Used(e.Number, now)
			return
		}
		others = true
		may, after := p.Offer(e.Number, keyOf(e), r.Gate.Band, used, turn, now)
		if may {
			p.until = 0 // Closed has changed
		}
		next = min(next, after)
	})
	return clock.Add(next - now), others
}

// used returns when other processes were last known to use an endpoint.
func (p *shared) used(e *pick.Endpoint, now time.Duration) time.Duration {
	if e.Peers == nil {
		return 0
	}
	is := peerUse{requests: e.Peers.Requests.Load(), through: e.Peers.Through.Load()}
	was, known := p.peers[e.Number]
	is.used = was.used
	if known && (is.requests > was.requests || is.through > was.through) {
		is.used = now
	}
	p.peers[e.Number] = is
	return is.used
}

// Own returns the numbers and shares of this process's waiting requests, by pool and band. Requests
// that wait for an endpoint or for a copy of their model do not count.
func (f *Flow) Own() (all []Own) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pools {
		bands, routes := make(map[int32]turns.Own), make(map[queue.Path]bool)
		for _, l := range p.lines {
			if !l.ready && (l.why == Copy || l.why == Endpoint) {
				continue
			}
			for e := l.tickets.Front(); e != nil; e = e.Next() {
				t := e.Value.(*Ticket)
				path := t.request.Path
				path.Band, path.Tenant, path.Program = t.place.Band(), 0, 0
				is := bands[path.Band]
				is.Band, is.Requests = path.Band, is.Requests+1
				if !routes[path] {
					routes[path] = true
					is.Share += float64(max(1, path.Share))
				}
				bands[path.Band] = is
			}
		}
		for _, is := range bands {
			all = append(all, Own{p.name, is})
		}
	}
	return all
}

// Own describes the waiting requests of this process in one band of a pool.
type Own struct {
	Pool objects.Name
	turns.Own
}

// Wait sets the waiting requests of this process. Bands that are missing in all have none.
func (t *Turns) Wait(all []Own) {
	byPool := make(map[objects.Name][]turns.Own)
	for _, is := range all {
		byPool[is.Pool] = append(byPool[is.Pool], is.Own)
	}
	t.change(func(c *changes) {
		for name := range byPool {
			t.pool(name)
		}
		for name, p := range t.pools {
			c.change(name, p, func() { p.Wait(byPool[name]) })
		}
	})
}

// serve records the service of a request.
func (t *Turns) serve(name objects.Name, band int32, s turns.Service) {
	if t == nil || t.contended.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pools[name]; p != nil {
		p.Serve(band, s, t.now())
		p.until = 0
	}
}

// Line is what this process reports about one band of a pool.
type Line struct {
	Pool objects.Name
	turns.Line
}

// Lines returns what this process reports, in random order.
func (t *Turns) Lines() (all []Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, p := range t.pools {
		p.Lines(func(l turns.Line) { all = append(all, Line{name, l}) })
	}
	return all
}

// Others describes the waiting requests of all other processes in one band of a pool.
type Others struct {
	Pool objects.Name
	Band int32
	turns.Others
}

// Begin records that a new stream to control has begun. What earlier streams reported stays in
// effect until Complete.
func (t *Turns) Begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stream++
	t.clock.Forget()
}

// Hear records what control reported about waiting requests of other processes. Clock is the time
// of control's clock when it sent the report.
func (t *Turns) Hear(all []Others, clock time.Duration) {
	byPool := make(map[objects.Name][]Others)
	for _, is := range all {
		byPool[is.Pool] = append(byPool[is.Pool], is)
	}
	t.change(func(c *changes) {
		t.clock.Hear(clock, c.now)
		for name, bands := range byPool {
			p := t.pool(name)
			c.change(name, p, func() {
				for _, is := range bands {
					p.Hear(is.Band, is.Others, t.stream, c.now)
				}
			})
		}
	})
}

// Complete records that control has sent its complete state.
func (t *Turns) Complete() {
	t.change(func(c *changes) {
		for name, p := range t.pools {
			c.change(name, p, func() { p.Complete(t.stream) })
		}
	})
}

// Empty reports whether no request waits anywhere.
func (t *Turns) Empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pools) == 0 && t.contended.Load() == 0
}

// pool returns a pool, and adds it if it is new. The caller holds mu, and calls changed.
func (t *Turns) pool(name objects.Name) *shared {
	p := t.pools[name]
	if p == nil {
		p = &shared{Pool: turns.New(), peers: make(map[int]peerUse)}
		t.pools[name] = p
	}
	return p
}

// changed applies a change of a pool. The caller holds mu.
func (t *Turns) changed(name objects.Name, p *shared) {
	p.until = 0
	if is := p.Contended(); is != p.contended {
		p.contended = is
		if is {
			t.contended.Add(1)
		} else {
			t.contended.Add(-1)
			clear(p.peers)
		}
	}
	if p.Empty() {
		delete(t.pools, name)
	}
}
