package pick

import (
	"errors"
	"math"
	"slices"
)

// ErrNoRoom means that the gate is closed at every endpoint that may serve the request: its engine
// could not start the request at once. An endpoint has room again when one of its requests ends,
// when a new snapshot shows room, or at the time that [Opens] returns.
var ErrNoRoom = errors.New("no endpoint has room for the request")

// Defaults of [Gate]; times are in seconds. An engine computes prompts in steps, and the first step
// of a request begins when the current one ends. So a short queue leaves no step empty.
const (
	DefaultGateQueue    = 0.15
	DefaultGatePerToken = 0.4
	// DefaultHeadroom is the default for requests of tenants with a backlog. A larger headroom
	// costs tokens per second; see bench flow.
	DefaultHeadroom = 0.06
	// fullHeadroom is the number of other waiting requests of a tenant from which on a request
	// leaves all of the headroom.
	fullHeadroom = 4
)

// HeadroomPart returns the part of the headroom, from 0 to 1, that a request leaves while this many
// other requests of its tenant wait. If one other were enough for all of it, small tenants with two
// requests would wait for room as long as a flood.
func HeadroomPart(others int) float64 { return min(1, float64(others)/fullHeadroom) }

// Gate limits a request to endpoints whose engine can start it at once, so that requests wait in
// this process and not in engines. The zero Gate is open everywhere.
//
// An endpoint without requests of this process in flight has room for one, whatever its engine
// reports, unless it is reserved or closed to this process. So no report closes a gate for good. At
// other endpoints, predictions decide if they are trusted and the policy is Latency. The batch, the
// KV cache and the adapter slots must have a place for the request, and the queue of prompts must
// be short. The time per output token, which includes the time for prompts of other requests, must
// stay below a limit. The limit depends on the tightest objective that requests of the same or a
// higher band state at the endpoint. Without predictions, a window limits this process's requests
// in flight: [Endpoint.Window], or the Gate's Window if that is unknown.
//
// Prompts leave their queue within a fraction of a second. But an answer occupies its places in the
// batch and in the KV cache until it ends. If a flood took all of them, each request of others
// would wait until some answers end, however high it is in the order. So callers set a headroom for
// requests of tenants with a backlog, see [HeadroomPart].
type Gate struct {
	// On closes the gate of endpoints without room.
	On bool
	// Band is the request's priority band: a higher one goes first.
	Band int32
	// Queue is how much longer steps may take because of queued prompts, in seconds. PerToken is
	// the longest time per output token, in seconds, where no request states an objective.
	Queue, PerToken float64
	// Window is the most requests in flight at an endpoint if nothing else is known; 0 means no
	// limit.
	Window int64
	// Headroom is the share of the batch and of the KV cache, or of the window, that stays free:
	// from 0 to 1. In the batch and in the window, it is rounded down to whole places. See
	// [DefaultHeadroom].
	Headroom float64
	// Reserved are the reservations of waiting requests. Holder identifies this request among their
	// holders; 0 means that it has no reservation.
	Reserved []Reservation
	Holder   uint64
	// Closed has the endpoints whose room belongs to another process; nil if there are none.
	Closed ClosedFor
}

// Reservation leaves room at an endpoint for a request that waits for it. Until that request has
// gone, other requests of its band and of lower bands get no room there. [Reserve] finds the
// endpoint.
type Reservation struct {
	// Endpoint is the [Endpoint.Number] of the endpoint.
	Endpoint int
	// Slot is an adapter with requests at the endpoint, whose slot the waiting request needs: only
	// requests for this adapter and for adapters without a slot get no room. Nil reserves the whole
	// endpoint.
	Slot *Count
	// Band is the band of the waiting request, and Holder identifies the request. It is not 0.
	Band   int32
	Holder uint64
}

// closes reports whether the reservation excludes a request at copy c of an endpoint.
func (r *Reservation) closes(e *Endpoint, c *Copy, g *Gate) bool {
	if r.Endpoint != e.Number || r.Holder == g.Holder || r.Band < g.Band {
		return false
	}
	return r.Slot == nil || r.Slot == c.InFlight || !c.Base && c.InFlight.Load() == 0
}

// reserves reports whether a reservation excludes the request at copy c of an endpoint.
func (g *Gate) reserves(e *Endpoint, c *Copy) bool {
	for i := range g.Reserved {
		if g.Reserved[i].closes(e, c, g) {
			return true
		}
	}
	return false
}

// admits reports whether copy c of an endpoint has room for the request. Trusted reports that
// predictions decide.
func (f *forecast) admits(g *Gate, e *Endpoint, c *Copy, trusted bool, is *Estimate) bool {
	return f.obstacle(g, e, c, trusted, is) == noObstacle
}

// obstacle returns why copy c of an endpoint has no room for the request.
func (f *forecast) obstacle(g *Gate, e *Endpoint, c *Copy, trusted bool, is *Estimate) obstacle {
	there := e.InFlight.Load()
	switch {
	case g.Reserved != nil && g.reserves(e, c):
		return reservedRoom
	case g.Closed != nil && g.shuts(e):
		return othersTurn
	case there <= 0:
		return noObstacle
	case !e.slotFree(c):
		return noSlot
	case !trusted && e.within(g, there):
		return noObstacle
	case !trusted:
		return fullWindow
	case e.State == Stale || e.State == Lost:
		known := *e
		known.forget()
		own := f.estimate(&known, c)
		e, is = &known, &own
	}
	switch {
	case f.promptQueue(e, is.Step) > g.Queue:
		return longQueue
	case !f.keeps(e, is.Step, f.limit(g, e)):
		return slowTokens
	case !f.hasPlace(g, e):
		return fullBatch
	case !f.hasKV(g, e):
		return fullCache
	}
	return noObstacle
}

// promptQueue returns how much longer the engine's steps take because of queued prompts, in
// seconds. Step is the time of a step without prompts: the current step, and the next one if
// prompts wait for it, decode anyway.
func (f *forecast) promptQueue(e *Endpoint, step float64) float64 {
	left := float64(e.Backlog.left(f.Now))*1e-9 - step
	if f.joins(e) {
		left -= step
	}
	return left
}

// short returns when the queue of prompts at an endpoint was or will be short enough, in
// nanoseconds since 1970. Step is as for promptQueue.
func (f *forecast) short(g *Gate, e *Endpoint, step float64) int64 {
	at := e.Backlog.Queue.Load() - int64((g.Queue+step)*1e9)
	if sooner := at - int64(step*1e9); f.joins(e) && sooner < e.Backlog.Starts.Load() {
		return sooner // while two steps are left
	}
	return at
}

// forget removes what scrapes reported about requests of unknown sources. A stale endpoint's
// numbers may be long out of date.
func (e *Endpoint) forget() {
	e.Others, e.OthersBeside, e.OthersTokens, e.KVBeyond, e.Listed = 0, 0, 0, 0, nil
}

// fits reports whether the batch and the KV cache have a place for the request. As in engines, the
// uncached part of the prompt must fit into the KV cache. The answer needs more later, while other
// requests end.
func (f *forecast) fits(g *Gate, e *Endpoint) bool { return f.hasPlace(g, e) && f.hasKV(g, e) }

func (f *forecast) hasPlace(g *Gate, e *Endpoint) bool {
	return e.Pending() < g.places(e.sequences())
}

func (f *forecast) hasKV(g *Gate, e *Endpoint) bool {
	return e.KVTokens <= 0 || e.usedKV()+f.prompt-f.cached(e) <= (1-g.Headroom)*float64(e.KVTokens)
}

// usedKV returns the tokens in the KV cache.
func (e *Endpoint) usedKV() float64 {
	return float64(max(0, e.KVBeyond+e.Backlog.Tokens.Load()+e.Peers.Tokens.Load()))
}

// sequences returns how many requests the engine runs at once.
func (e *Endpoint) sequences() int64 {
	most := int64(e.Profile.Limits.MaxSequences)
	if e.Batch == nil {
		return most
	}
	if learned := e.Batch.Load(); learned > 0 {
		return min(most, learned)
	}
	return most
}

// slotFree reports whether an adapter slot can serve copy c at an endpoint. With each slot in use
// by other adapters, requests for a further adapter wait until one of these has no requests at all.
func (e *Endpoint) slotFree(c *Copy) bool {
	return c.Base || e.Slots <= 0 || c.InFlight.Load()+c.InFlight.Others.Load() > 0 || e.ActiveAdapters() < e.Slots
}

// within reports whether the window of an endpoint has room for one more request.
func (e *Endpoint) within(g *Gate, there int64) bool {
	window := e.window(g)
	return window <= 0 || there < g.places(window)
}

// window returns the window of an endpoint: the learned one, or the gate's; 0 means no limit.
func (e *Endpoint) window(g *Gate) int64 {
	if e.Window != nil {
		if learned := e.Window.Load(); learned > 0 {
			return learned
		}
	}
	return g.Window
}

// places returns how many of an engine's places requests may occupy together with this one: all but
// the headroom. The headroom is rounded down, so an engine with few places has none.
func (g *Gate) places(all int64) int64 { return WithHeadroom(all, g.Headroom) }

// WithHeadroom returns how many of all places are left if a share of them stays free. The share is
// rounded down to whole places.
func WithHeadroom(all int64, headroom float64) int64 { return all - int64(headroom*float64(all)) }

// limit returns the longest time per output token at an endpoint, in seconds: the tightest stated
// objective of the request itself and of requests of its band or higher ones there. An objective
// that even an idle engine misses would shut the gate. So the limit is at least missedFactor times
// the step time of an idle engine.
func (f *forecast) limit(g *Gate, e *Endpoint) float64 {
	limit := e.Backlog.Objectives.tightest(g.Band)
	if f.Stated {
		limit = min(limit, f.PerToken)
	}
	if math.IsInf(limit, 1) {
		return max(g.PerToken, slowFactor*e.Profile.Decode.Base)
	}
	return max(aim*limit, missedFactor*e.Profile.Decode.Base)
}

// slowFactor and missedFactor are lower bounds of the limit, in step times of an idle engine:
// without a stated objective, and with one.
const slowFactor, missedFactor = 2, 1.25

// aim is the part of a stated objective that the predicted time per token may take. Times vary, and
// a short answer beside a long prompt takes longer than predicted.
const aim = 0.9

// keeps reports whether the time per output token stays within a limit: the step time, divided by
// the share of time that the computation of prompts leaves.
func (f *forecast) keeps(e *Endpoint, step, limit float64) bool {
	if step > limit {
		return false
	}
	return step <= leastLeft*limit || step <= (1-lately(&e.Backlog.Computing, f.Now))*limit
}

// computing returns the time to compute the prompt of the request, without the time that steps with
// prompts take anyway, in seconds.
func (f *forecast) computing(e *Endpoint) float64 {
	cached := f.cached(e)
	own := f.prompt - cached
	return own*e.Profile.Prefill.PerToken + own*(own+2*cached)*e.Profile.Prefill.PerTokenSquared
}

// opens returns when the closed gate of an endpoint opens by the passage of time alone, in
// nanoseconds since 1970. It returns 0 if only an event can open it, or if it is open.
func (f *forecast) opens(g *Gate, e *Endpoint, c *Copy) int64 {
	is := f.estimate(e, c)
	limit := f.limit(g, e)
	if f.admits(g, e, c, true, &is) || g.reserves(e, c) || g.shuts(e) || !f.fits(g, e) || !e.slotFree(c) || is.Step >= limit {
		return 0
	}
	at := f.short(g, e, is.Step)
	if left := is.Step / limit; left > leastLeft { // the share of prompts must decay to 1 - left
		at = max(at, e.Backlog.Computing.Load()-int64(memory*math.Log(1-left)))
	}
	return max(at, f.Now+1)
}

// Opens returns the earliest time, in nanoseconds since 1970, at which an endpoint has room for the
// request by the passage of time alone: queued prompts are computed, and the share of time for
// prompts decays. It returns false if only an event can make room. Call it after Pick has returned
// [ErrNoRoom].
func Opens(p Policy, s *Snapshot, r Request) (at int64, known bool) {
	eachGated(p, s, r, func(f *forecast, e *Endpoint, c *Copy, trusted bool) {
		if !trusted {
			return
		}
		if is := f.opens(&r.Gate, e, c); is > 0 && (!known || is < at) {
			at, known = is, true
		}
	})
	return at, known
}

// Reserve returns a reservation for a request that found no room: at the endpoint that is expected
// to have room first. Only endpoints of the best state count, because Pick prefers them. Holder
// must not be 0. It returns false if no endpoint can serve the request.
//
// A request for an adapter that finds each slot in use reserves the slot of the adapter with the
// fewest requests. Any other request reserves an endpoint: the one with the shortest predicted
// wait, or without predictions the one with the fewest requests in flight.
func Reserve(p Policy, s *Snapshot, r Request, holder uint64) (is Reservation, found bool) {
	best, state := math.Inf(1), Out
	eachGated(p, s, r, func(f *forecast, e *Endpoint, c *Copy, trusted bool) {
		switch {
		case e.State > state:
			return
		case e.State < state:
			state, found = e.State, false
		}
		for i := range r.Gate.Reserved {
			if held := &r.Gate.Reserved[i]; held.Endpoint == e.Number && held.Holder != holder && held.Band >= r.Gate.Band {
				return // it would have to wait for that request
			}
		}
		wait := float64(e.InFlight.Load())
		var slot *Count
		if trusted {
			estimate := f.estimate(e, c)
			wait = estimate.Room + estimate.Queue + estimate.Step
		}
		if !e.slotFree(c) {
			slot = fewest(s.Pools[r.Pool], e, c)
		}
		if wait < best || !found {
			best, found = wait, true
			is = Reservation{Endpoint: e.Number, Slot: slot, Band: r.Gate.Band, Holder: holder}
		}
	})
	return is, found
}

// fewest returns the count of another adapter than c's: of those with requests of this process at
// the endpoint, the one with the fewest. It returns nil if there is none.
func fewest(pool *Pool, e *Endpoint, c *Copy) (least *Count) {
	for _, copies := range pool.Copies {
		for i := range copies {
			o := &copies[i]
			if o.Base || o.InFlight == c.InFlight || pool.Endpoints[o.Endpoint] != e {
				continue
			}
			if n := o.InFlight.Load(); n > 0 && (least == nil || n < least.Load()) {
				least = o.InFlight
			}
		}
	}
	return least
}

// eachGated visits the copies that a request with a gate may wait for. If one of them is at a
// healthy endpoint, the others do not count: see waitsForRoom.
func eachGated(p Policy, s *Snapshot, r Request, visit func(f *forecast, e *Endpoint, c *Copy, trusted bool)) {
	pool := s.Pools[r.Pool]
	if pool == nil {
		return
	}
	copies, err := pool.admit(r)
	if err != nil {
		return
	}
	f := newForecast(r.Demand)
	trusted := p.Rule == Latency && !r.Tokenless && pool.Predictable
	serves := func(c *Copy) bool {
		e := pool.Endpoints[c.Endpoint]
		return e.State != Out && (e.State != Lost || !r.FailClose) && r.Only.Has(e.Address) && !c.full()
	}
	for i := range copies {
		c := &copies[i]
		if e := pool.Endpoints[c.Endpoint]; e.Address == r.Near && serves(c) {
			visit(&f, e, c, trusted) // no other endpoint stores the state
			return
		}
	}
	state := func(c *Copy) State { return pool.Endpoints[c.Endpoint].State }
	healthy := slices.ContainsFunc(copies, func(c Copy) bool { return state(&c) == Healthy && serves(&c) })
	for i := range copies {
		if c := &copies[i]; serves(c) && (!healthy || state(c) == Healthy) {
			visit(&f, pool.Endpoints[c.Endpoint], c, trusted)
		}
	}
}
