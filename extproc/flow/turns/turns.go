// Package turns decides which of several extproc processes may use the room of an endpoint. While
// several processes have waiting requests, each endpoint belongs to one process at a time. Each
// process gets time in proportion to the shares of its waiting requests. A process that got more
// service than its part passes its turns to the others. If the owner of an endpoint leaves room
// unused for a short time, the others may use it.
//
// The package has no clock and no state outside of [Pool]. Times are durations on two clocks. The
// clock of a process is monotonic. The turn clock is common to all processes: control sends its
// own with the shares of the others, see [Clock]. Skew between processes is harmless: while two
// processes believe that an endpoint is theirs, both use its room; while none does, its room is
// left to all.
package turns

import (
	"math"
	"time"
)

const (
	// Slot is the time for which an endpoint belongs to one process. It is a bit longer than an
	// exchange through control takes.
	Slot = 50 * time.Millisecond
	// leftAfter is how long room must be unused before other processes than the owner may use it:
	// the owner may learn of the room only after an exchange, which takes two intervals of 20 ms
	// and two messages. lowerAfter is the same for requests of a lower band, since two processes
	// with requests of the higher band may wait for each other first.
	leftAfter  = 90 * time.Millisecond
	lowerAfter = 190 * time.Millisecond
	// stagger is the largest delay that is added to both, so that processes do not use such room
	// all at once.
	stagger = 15 * time.Millisecond
	// leftFor is how long a process may use an endpoint whose room was left to it. In that time it
	// sends all that the endpoint has room for.
	leftFor = 20 * time.Millisecond
	// seen is the longest time between two observations of room in which the room counts as unused.
	seen = 2 * Slot
	// ahead is how much more service than its part a process may get before it passes its turns. It
	// is in seconds of the service that all processes together get in the band. What others got is
	// known an exchange later, so a smaller value would count delays as service.
	ahead = 0.1
	// most limits the difference between a process's service and its part, likewise in seconds. So
	// a process that could not use its part for a while does not exclude the others for longer.
	most = 5.0
	// memory is the time constant in seconds with which the rate of service is averaged.
	memory = 10.0
)

// Own describes the waiting requests of this process in one band, without those that wait for an
// endpoint or for a copy of their model. Share is the sum of the shares of the routes with such
// requests.
type Own struct {
	Band     int32
	Requests int
	Share    float64
}

// Service is an amount of service. Seconds of engines and tokens are counted apart, because
// processes use tokens until they trust their predictions.
type Service struct{ Seconds, Tokens float64 }

// Others describes the waiting requests of all other processes in one band, as control adds them
// up.
type Others struct {
	// Requests is their number. Share is the sum of the processes' shares.
	Requests uint64
	Share    float64
	// Before and After are the shares of the processes that take turns, before and after this one
	// in control's order.
	Before, After float64
	// Service is the service of requests that others have dispatched, from an arbitrary start.
	Service
}

// Line is what this process reports about one band.
type Line struct {
	Own
	// Passes means that the process takes no turns, because it got more than its part.
	Passes bool
	// Service is the service of requests that this process has dispatched while several processes
	// had requests waiting.
	Service
}

// Pool is what one process knows about the turns in one pool. It is not safe for concurrent use.
// Make one with [New].
type Pool struct {
	bands map[int32]*band
	rooms map[int]*room // by number of the endpoint
}

// band is the state of one band.
type band struct {
	own    Own
	others Others
	// share is the last share of own that was not 0.
	share    float64
	reported Service
	tokens   bool // the last service of this process was in tokens
	// lag is the service that this process got beyond its part. rate is the service of all
	// processes per second, averaged until the time at.
	lag, rate float64
	at        time.Duration
	stream    int // generation of the stream that last reported others
}

// room is an endpoint that has room and belongs to another process.
type room struct {
	since, last time.Duration // observations of room
	until       time.Duration // this process may use the endpoint until this time
	band        int32         // for requests of this band and of higher ones
}

// New returns a Pool in which no request waits anywhere.
func New() *Pool { return &Pool{bands: make(map[int32]*band), rooms: make(map[int]*room)} }

// Empty reports whether the Pool has no state that a new one would not have.
func (p *Pool) Empty() bool { return len(p.bands)+len(p.rooms) == 0 }

// Contended reports whether requests wait at other processes.
func (p *Pool) Contended() bool {
	_, _, contended := p.top()
	return contended
}

// top returns the highest band with requests that wait at other processes.
func (p *Pool) top() (number int32, b *band, contended bool) {
	for n, is := range p.bands {
		if is.others.Requests > 0 && (b == nil || n > number) {
			number, b = n, is
		}
	}
	return number, b, b != nil
}

// Wait sets the waiting requests of this process. A band that is missing has no waiting requests.
func (p *Pool) Wait(all []Own) {
	for _, b := range p.bands {
		b.own = Own{Band: b.own.Band}
	}
	for _, is := range all {
		b := p.band(is.Band)
		if b.own = is; is.Share > 0 {
			b.share = is.Share
		}
	}
	p.tidy()
}

// Serve records that this process dispatched requests of a band, or that earlier ones turned out to
// need more service, or less. The service does not matter while no request waits elsewhere.
func (p *Pool) Serve(number int32, s Service, now time.Duration) {
	b := p.bands[number]
	if b == nil || b.others.Requests == 0 {
		return
	}
	b.reported.Seconds = max(0, b.reported.Seconds+s.Seconds)
	b.reported.Tokens = max(0, b.reported.Tokens+s.Tokens)
	b.tokens = s.Tokens != 0
	b.pass(now, s.Seconds+s.Tokens)
	b.lag += (s.Seconds + s.Tokens) * (1 - b.part())
	b.limit()
}

// Hear sets the waiting requests of other processes in one band. Stream is a number that grows with
// each stream of control's Updates.
func (p *Pool) Hear(number int32, is Others, stream int, now time.Duration) {
	b := p.band(number)
	was, before := b.others, b.stream
	b.others, b.stream = is, stream
	switch seconds, tokens := is.Seconds-was.Seconds, is.Tokens-was.Tokens; {
	case is.Requests == 0:
		b.lag, b.rate = 0, 0
	case was.Requests == 0 || before != stream:
		b.at = now // what they got earlier does not count
	case seconds != 0 && b.tokens, tokens != 0 && !b.tokens:
		b.lag = 0 // the units differ
	default:
		b.pass(now, seconds+tokens)
		b.lag -= (seconds + tokens) * b.part()
		b.limit()
	}
	p.tidy()
}

// Complete forgets what earlier streams reported and this one did not: it is obsolete when control
// has sent its complete state. Until then, the last shares hold.
func (p *Pool) Complete(stream int) {
	for _, b := range p.bands {
		if b.stream != stream {
			b.others, b.lag, b.rate = Others{}, 0, 0
		}
	}
	p.tidy()
}

// Lines visits what this process reports, in random order. A band that it does not visit has no
// waiting requests.
func (p *Pool) Lines(visit func(Line)) {
	for number, b := range p.bands {
		l := Line{Own: b.own, Passes: b.passes(), Service: b.reported}
		l.Band = number
		visit(l)
	}
}

// Closed reports whether requests of some bands may not use an endpoint now: those of the band that
// it returns, and of lower ones. Turn is the time of the turn clock, and now that of this process.
// Endpoint identifies the endpoint in this process, and key in all processes.
func (p *Pool) Closed(endpoint int, key uint64, turn, now time.Duration) (highest int32, closed bool) {
	number, b, contended := p.top()
	if !contended {
		return 0, false
	}
	limit := int64(number)
	if _, mine := b.turn(key, turn); mine {
		limit--
	}
	if r := p.rooms[endpoint]; r != nil && now < r.until {
		limit = min(limit, int64(r.band)-1)
	}
	if limit < math.MinInt32 {
		return 0, false
	}
	return int32(limit), true
}

// Offer records that an endpoint that is closed has room for a request of a band that waits here.
// Used is the last time at which the endpoint had no room or another process is known to have used
// it; it may lie in the future. Offer returns true if the process may use the endpoint, because its
// owner has left the room unused. Otherwise, at is when the process may use the room if it is still
// unused. Call Offer at least once in each Slot while the request waits, and Used if the endpoint
// has no room.
func (p *Pool) Offer(endpoint int, key uint64, request int32, used, turn, now time.Duration) (may bool, at time.Duration) {
	number, b, contended := p.top()
	if !contended {
		return true, now
	}
	r := p.rooms[endpoint]
	if r == nil {
		r = &room{since: now, last: now}
		p.rooms[endpoint] = r
	}
	if now-r.last > seen {
		r.since = now
	}
	r.since, r.last = max(r.since, used), now
	after, _ := b.turn(key, turn)
	at = r.since + leftAfter + time.Duration(after*float64(stagger))
	if request < number {
		at = r.since + lowerAfter + p.stagger(request)
	}
	if at > now {
		return false, at
	}
	r.until, r.band, r.since = now+leftFor, request, now+leftFor
	return true, now
}

// Used records that an endpoint has no room any more.
func (p *Pool) Used(endpoint int, now time.Duration) {
	if r := p.rooms[endpoint]; r != nil {
		if r.since = max(now, r.until); r.until <= now {
			delete(p.rooms, endpoint)
		}
	}
}

// stagger returns how much longer requests of a band leave room to others, because requests of
// bands between it and the highest wait elsewhere.
func (p *Pool) stagger(request int32) time.Duration {
	above := 0
	for n, b := range p.bands {
		if n > request && b.others.Requests > 0 {
			above++
		}
	}
	return stagger - stagger/time.Duration(max(1, above))
}

// turn reports whether an endpoint belongs to this process now. It also returns the distance to
// this process on the circle of shares, in turns from 0 to 1.
func (b *band) turn(key uint64, turn time.Duration) (distance float64, mine bool) {
	own := b.own.Share
	if b.passes() {
		own = 0
	}
	all := b.others.Before + own + b.others.After
	if !(all > 0) { // all have had more than their parts
		return 0, true
	}
	// Steps of the golden ratio visit the parts of a circle as evenly as any sequence can.
	at := math.Mod(float64(key>>11)*0x1p-53+math.Mod(float64(turn/Slot), 1<<24)*(math.Phi-1), 1) * all
	if at >= b.others.Before && at < b.others.Before+own {
		return 0, true
	}
	if distance = (b.others.Before - at) / all; distance < 0 {
		distance++
	}
	return distance, false
}

// passes reports whether the process got so much more than its part that it passes its turns.
func (b *band) passes() bool { return b.lag > ahead*b.rate && b.others.Share > 0 }

// part returns the part of the service in a band that this process is to get while it has requests
// waiting.
func (b *band) part() float64 {
	own := b.share
	if own == 0 {
		own = 1
	}
	return own / (own + b.others.Share)
}

// pass decays the rate until now, and adds service to it.
func (b *band) pass(now time.Duration, service float64) {
	if passed := (now - b.at).Seconds(); passed > 0 {
		b.rate *= math.Exp(-passed / memory)
		b.at = now
	}
	b.rate = max(0, b.rate+service/memory)
}

// limit keeps the lag within bounds. A process without waiting requests keeps its debt, and starts
// level otherwise.
func (b *band) limit() {
	least := -most * b.rate
	if b.own.Requests == 0 {
		least = 0
	}
	b.lag = min(max(b.lag, least), most*b.rate)
}

func (p *Pool) band(number int32) *band {
	b := p.bands[number]
	if b == nil {
		b = new(band)
		p.bands[number] = b
	}
	return b
}

// tidy forgets bands in which no request waits, and rooms that nobody else needs.
func (p *Pool) tidy() {
	for number, b := range p.bands {
		if b.own.Requests == 0 && b.others.Requests == 0 {
			delete(p.bands, number)
		}
	}
	if !p.Contended() {
		clear(p.rooms)
	}
}
