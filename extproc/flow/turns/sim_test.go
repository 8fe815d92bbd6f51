package turns_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/internal/hash"
)

const (
	ms       = time.Millisecond
	interval = 20 * ms  // least time between two messages to or from a process
	slowest  = 25 * ms  // longest time that a message to or from control takes
	gate     = 200 * ms // an endpoint with less work has room
	// exchange is the longest time until a process knows of a change in another one.
	exchange = 2 * (interval + slowest)
)

// flow is a source of requests.
type flow struct {
	band  int32
	share float64
	by    []int         // processes that its requests come through
	size  time.Duration // mean engine time of a request
	// every is the mean time between two requests; 0 keeps a request waiting in each process.
	every time.Duration
	// pauses has requests for a random half of the time.
	pauses bool

	paused, stopped bool
	served          time.Duration
}

// sim is a simulation of several processes that share endpoints.
type sim struct {
	random    *rand.Rand
	now       time.Duration
	events    []event // heap
	number    int
	flows     []*flow
	processes []*process
	endpoints []endpoint
	parallel  int  // requests that an endpoint serves at once; 0 for one after the other, in a short queue
	cut, hung bool // control is away; a process hangs

	unused     time.Duration // longest time for which room was unused while a process waited
	inversions int
}

type event struct {
	at     time.Duration
	number int
	do     func()
}

// endpoint is the true state of an endpoint.
type endpoint struct {
	until  time.Duration // end of its work
	flight int
	idle   time.Duration // time for which it has had unused room
	busy   time.Duration
}

// process is one extproc.
type process struct {
	s      *sim
	index  int
	skew   time.Duration // of its turn clock
	alive  bool
	pool   *turns.Pool
	waits  map[*flow][]time.Duration // arrivals
	tags   map[*flow]float64         // service by share
	views  []view
	timer  int
	sends  pipe
	gets   pipe
	other  map[int32]turns.Others
	lines  map[int32]turns.Line // as control knows them
	gone   bool                 // its connection has ended
	heard  []pipe               // how the other processes hear of its requests in flight
	flying map[[2]int]int       // requests in flight of another process at an endpoint
}

// view is what a process knows of an endpoint.
type view struct {
	until  time.Duration
	own    int
	others int
	used   time.Duration // when another process was last heard to use it
}

// pipe delivers messages in order, with random delays.
type pipe struct {
	due             bool
	last, delivered time.Duration
}

func (s *sim) at(at time.Duration, do func()) {
	s.number++
	s.events = append(s.events, event{max(at, s.now), s.number, do})
	for i := len(s.events) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.events[i].less(s.events[up]) {
			break
		}
		s.events[i], s.events[up] = s.events[up], s.events[i]
		i = up
	}
}

func (e event) less(o event) bool { return e.at < o.at || e.at == o.at && e.number < o.number }

func (s *sim) step() {
	e := s.events[0]
	n := len(s.events) - 1
	s.events[0] = s.events[n]
	s.events = s.events[:n]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < n; c++ {
			if s.events[c].less(s.events[least]) {
				least = c
			}
		}
		if least == i {
			break
		}
		s.events[i], s.events[least] = s.events[least], s.events[i]
		i = least
	}
	s.now = e.at
	e.do()
}

func (s *sim) delay() time.Duration { return time.Duration(s.random.Int64N(int64(slowest) + 1)) }

func (s *sim) exp(mean time.Duration) time.Duration {
	return time.Duration(s.random.ExpFloat64() * float64(mean))
}

// via sends a message no earlier than interval after the last one, and delivers it after a delay.
func (s *sim) via(p *pipe, send func() func()) {
	if p.due {
		return
	}
	p.due = true
	s.at(p.last+interval, func() {
		p.due, p.last = false, s.now
		deliver := send()
		p.delivered = max(p.delivered, s.now+s.delay())
		s.at(p.delivered, deliver)
	})
}

func newSim(seed uint64, processes, endpoints int, flows ...*flow) *sim {
	s := &sim{random: rand.New(rand.NewPCG(seed, 1)), flows: flows, endpoints: make([]endpoint, endpoints)}
	for i := range processes {
		s.processes = append(s.processes, &process{
			s: s, index: i, alive: true, pool: turns.New(), waits: make(map[*flow][]time.Duration), tags: make(map[*flow]float64),
			views: make([]view, endpoints), other: make(map[int32]turns.Others), lines: make(map[int32]turns.Line),
			flying: make(map[[2]int]int), heard: make([]pipe, processes),
		})
	}
	for _, f := range flows {
		if f.share == 0 {
			f.share = 1
		}
		if f.by == nil {
			for i := range processes {
				f.by = append(f.by, i)
			}
		}
	}
	return s
}

// busy returns the work of endpoints as a part of their time.
func (s *sim) busy() float64 {
	all := time.Duration(0)
	for i := range s.endpoints {
		all += s.endpoints[i].busy
	}
	return all.Seconds() / s.now.Seconds() / float64(len(s.endpoints))
}

// run lets the simulation go on until a time.
func (s *sim) run(until time.Duration) {
	if s.now == 0 {
		s.start()
	}
	for s.now < until {
		s.step()
	}
}

func (s *sim) start() {
	for _, f := range s.flows {
		if f.pauses {
			s.pause(f)
		}
		if f.every > 0 {
			s.arrive(f)
			continue
		}
		for _, p := range f.by {
			s.processes[p].arrive(f)
		}
	}
	s.watch()
}

func (s *sim) arrive(f *flow) {
	s.at(s.now+s.exp(f.every), func() {
		if f.stopped {
			return
		}
		if !f.paused {
			s.processes[f.by[s.random.IntN(len(f.by))]].arrive(f)
		}
		s.arrive(f)
	})
}

// pause turns a flow on and off.
func (s *sim) pause(f *flow) {
	s.at(s.now+s.exp(2*time.Second), func() {
		if f.stopped {
			return
		}
		if f.paused = !f.paused; !f.paused && f.every == 0 {
			for _, p := range f.by {
				s.processes[p].arrive(f)
			}
		}
		s.pause(f)
	})
}

// watch measures for how long room is unused.
func (s *sim) watch() {
	const step = 5 * ms
	waits := slices.ContainsFunc(s.processes, func(p *process) bool { return p.alive && p.first() != nil })
	for i := range s.endpoints {
		if e := &s.endpoints[i]; waits && s.room(i) {
			e.idle += step
			s.unused = max(s.unused, e.idle)
		} else {
			e.idle = 0
		}
	}
	s.at(s.now+step, s.watch)
}

// room reports whether an endpoint truly has room.
func (s *sim) room(i int) bool {
	e := &s.endpoints[i]
	if s.parallel > 0 {
		return e.flight < s.parallel
	}
	return e.until-s.now <= gate
}

func (p *process) arrive(f *flow) {
	if !p.alive {
		return
	}
	if len(p.waits[f]) == 0 { // it starts level
		least := math.Inf(1)
		for o, all := range p.waits {
			if len(all) > 0 && o.band == f.band {
				least = min(least, p.tags[o])
			}
		}
		if !math.IsInf(least, 1) {
			p.tags[f] = max(p.tags[f], least)
		}
	}
	p.waits[f] = append(p.waits[f], p.s.now)
	p.waited()
	p.pump()
}

// first returns the flow whose request is next; nil if none waits.
func (p *process) first() (first *flow) {
	for _, f := range p.s.flows {
		if len(p.waits[f]) > 0 && (first == nil || f.band > first.band || f.band == first.band && p.tags[f] < p.tags[first]) {
			first = f
		}
	}
	return first
}

func (p *process) waited() {
	bands := make(map[int32]turns.Own)
	for f, all := range p.waits {
		if len(all) > 0 {
			b := bands[f.band]
			bands[f.band] = turns.Own{Band: f.band, Requests: b.Requests + len(all), Share: b.Share + f.share}
		}
	}
	var all []turns.Own
	for _, b := range bands {
		all = append(all, b)
	}
	p.pool.Wait(all)
	p.report()
}

func key(endpoint int) uint64 { return hash.Mix(uint64(endpoint) + 1) }

// pump sends the requests that may go.
func (p *process) pump() {
	s := p.s
	if !p.alive {
		return
	}
	wake := s.now/turns.Slot*turns.Slot + turns.Slot - p.skew%turns.Slot
	for f := p.first(); f != nil; f = p.first() {
		best := -1
		for i := range p.views {
			room, opened := p.room(i)
			if !room {
				p.pool.Used(i, s.now)
				if opened > s.now {
					wake = min(wake, opened)
				}
				continue
			}
			if band, closed := p.pool.Closed(i, key(i), s.now+p.skew, s.now); closed && f.band <= band {
				if may, at := p.pool.Offer(i, key(i), f.band, max(opened, p.views[i].used), s.now+p.skew, s.now); !may {
					wake = min(wake, at)
					continue
				}
			}
			if best < 0 || p.views[i].until+time.Duration(p.views[i].own+p.views[i].others) <
				p.views[best].until+time.Duration(p.views[best].own+p.views[best].others) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		p.dispatch(f, best)
	}
	if p.first() == nil {
		return
	}
	if wake <= s.now {
		wake = s.now + ms
	}
	p.timer++
	timer := p.timer
	s.at(wake, func() {
		if timer == p.timer {
			p.pump()
		}
	})
}

// room reports whether an endpoint has room as far as the process knows, and since or from when.
func (p *process) room(i int) (room bool, opened time.Duration) {
	v := &p.views[i]
	if p.s.parallel > 0 {
		return v.own+v.others < p.s.parallel, 0
	}
	return v.until-p.s.now <= gate, v.until - gate
}

func (p *process) dispatch(f *flow, to int) {
	s := p.s
	s.inverts(f)
	p.waits[f] = p.waits[f][1:]
	size := f.size/2 + time.Duration(s.random.Int64N(int64(f.size)))
	p.tags[f] += size.Seconds() / f.share
	f.served += size
	e, v := &s.endpoints[to], &p.views[to]
	e.busy += size
	e.idle = 0
	p.pool.Serve(f.band, turns.Service{Seconds: size.Seconds()}, s.now)
	if s.parallel > 0 {
		e.flight++
		v.own++
		s.at(s.now+size*time.Duration(max(s.parallel, e.flight)), func() {
			e.flight--
			v.own--
			p.report()
			p.pump()
		})
	} else {
		e.until = max(e.until, s.now) + size
		v.until = max(v.until, s.now) + size
		for _, o := range s.processes { // the backlogs of others arrive after an exchange
			if o != p {
				s.at(s.now+s.delay()+s.delay()+interval, func() {
					o.views[to].until, o.views[to].used = max(o.views[to].until, s.now)+size, s.now
				})
			}
		}
	}
	if f.every == 0 && !f.paused && !f.stopped {
		p.waits[f] = append(p.waits[f], s.now)
	}
	p.waited()
}

// inverts counts a request that goes although one of a higher band has waited for more than an
// exchange.
func (s *sim) inverts(f *flow) {
	for _, p := range s.processes {
		for o, all := range p.waits {
			if p.alive && o.band > f.band && len(all) > 0 && s.now-all[0] > exchange {
				s.inversions++
				return
			}
		}
	}
}

// report sends what waits to control.
func (p *process) report() {
	s := p.s
	if !p.alive || s.cut {
		return
	}
	s.via(&p.sends, func() func() {
		lines := make(map[int32]turns.Line)
		p.pool.Lines(func(l turns.Line) { lines[l.Band] = l })
		own := make([]int, len(p.views))
		for i := range p.views {
			own[i] = p.views[i].own
		}
		return func() {
			if p.gone || s.cut {
				return
			}
			p.lines = lines
			if s.parallel > 0 {
				for i, o := range s.processes {
					if o != p {
						p.heard[i].delivered = max(p.heard[i].delivered, s.now+s.delay())
						s.at(p.heard[i].delivered, func() {
							if !p.gone && !s.cut {
								o.hears(p.index, own)
							}
						})
					}
				}
			}
			for _, o := range s.processes {
				if o != p {
					o.told()
				}
			}
		}
	})
}

// hears sets the requests in flight of another process.
func (p *process) hears(by int, all []int) {
	for i, n := range all {
		k := [2]int{by, i}
		if n > p.flying[k] {
			p.views[i].used = p.s.now
		}
		p.views[i].others += n - p.flying[k]
		p.flying[k] = n
	}
	p.pump()
}

// told sends a process what waits at the others.
func (p *process) told() {
	s := p.s
	s.via(&p.gets, func() func() {
		sums := make(map[int32]turns.Others)
		for number := range p.other {
			sums[number] = turns.Others{Service: p.other[number].Service}
		}
		for _, o := range s.processes {
			for number, l := range o.lines {
				if o == p {
					continue
				}
				is := sums[number]
				is.Requests += uint64(l.Requests)
				is.Seconds = 0
				is.Share += l.Share
				switch {
				case l.Passes:
				case o.index < p.index:
					is.Before += l.Share
				default:
					is.After += l.Share
				}
				sums[number] = is
			}
		}
		for number, is := range sums {
			is.Seconds = 0
			for _, o := range s.processes {
				if o != p {
					is.Seconds += o.lines[number].Seconds
				}
			}
			sums[number] = is
		}
		return func() {
			for number, is := range sums {
				p.pool.Hear(number, is, 1, s.now)
			}
			p.other = sums
			p.report()
			p.pump()
		}
	})
}

// jain is Jain's index of fairness.
func jain(all []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range all {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(all)) * squares)
}

func (s *sim) index() (jains float64, parts string) {
	var all []float64
	var served []string
	for _, f := range s.flows {
		all = append(all, f.served.Seconds()/f.share)
		served = append(served, fmt.Sprintf("%.1f", f.served.Seconds()))
	}
	return jain(all), strings.Join(served, " ")
}

// tenants returns flows of chat, long prompts and long answers.
func tenants(by ...[]int) []*flow {
	all := []*flow{{size: 50 * ms}, {size: 2 * time.Second}, {size: 500 * ms}}
	for i := range by {
		all[i].by = by[i]
	}
	return all
}

// Backlogged flows of equal shares get equal service, however large their requests are and
// whichever process they come through. Flows with unequal shares get service by their shares.
func TestBackloggedFlowsShareEngines(t *testing.T) {
	apart := [][]int{{0}, {1}, {2}}
	batch := tenants(apart...)
	batch[1].size = 200 * ms
	unequal := tenants(apart...)
	unequal[0].share, unequal[2].share = 3, 2
	for _, c := range []struct {
		name                string
		endpoints, parallel int
		flows               []*flow
	}{
		{"all through all processes", 1, 0, tenants()},
		{"each through its own process", 1, 0, tenants(apart...)},
		{"each through its own process, eight endpoints", 8, 0, tenants(apart...)},
		{"two through the same process", 4, 0, tenants([]int{0}, []int{1}, []int{0})},
		{"batches of eight", 4, 8, batch},
		{"unequal shares", 4, 0, unequal},
	} {
		for seed := range uint64(5) {
			flows := make([]*flow, len(c.flows))
			for i, f := range c.flows {
				own := *f
				flows[i] = &own
			}
			s := newSim(seed, 3, c.endpoints, flows...)
			s.parallel = c.parallel
			s.run(60 * time.Second)
			index, parts := s.index()
			if t.Logf("%s, seed %d: index %.3f (%s), %.0f %% busy", c.name, seed, index, parts, 100*s.busy()); index < 0.95 {
				t.Errorf("%s, seed %d: Jain's index is %.3f (%s), want 0.95", c.name, seed, index, parts)
			}
			if s.busy() < 0.9 {
				t.Errorf("%s, seed %d: engines are busy for %.0f %% of the time", c.name, seed, 100*s.busy())
			}
		}
	}
}

// A backlogged flow gets at least 1/N of its fair part through whichever of N processes it comes.
func TestFlowGetsItsPartThroughAnyProcess(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 2))
		var flows []*flow
		all := 0.0
		for range 2 + random.IntN(5) {
			f := &flow{size: time.Duration(20+random.IntN(500)) * ms, share: float64(1 + random.IntN(4))}
			f.by = random.Perm(3)[:1+random.IntN(3)]
			flows = append(flows, f)
			all += f.share
		}
		s := newSim(seed, 3, 1+random.IntN(8), flows...)
		s.run(60 * time.Second)
		for _, f := range flows {
			fair := 60 * float64(len(s.endpoints)) * f.share / all
			if got := f.served.Seconds() / fair; got < 0.95/3 {
				t.Errorf("seed %d: a flow through %v with a share of %.0f of %.0f gets %.2f of its fair part", seed, f.by, f.share, all, got)
			}
		}
	}
}

// Whatever happens: room is used within 300 ms while a request waits, no request goes for more than
// an exchange before one of a higher band in another process, and every request ends. Bands need an
// exchange: they are not compared when control is away, or when a process hangs that has the turn.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(24) {
		random := rand.New(rand.NewPCG(seed, 3))
		var flows []*flow
		endpoints := 1 + random.IntN(8)
		for range 1 + random.IntN(6) {
			f := &flow{
				size: time.Duration(10+random.IntN(500)) * ms, band: int32(random.IntN(3)), share: float64(1 + random.IntN(3)),
				by: random.Perm(3)[:1+random.IntN(3)], pauses: random.IntN(2) == 0,
			}
			if random.IntN(3) > 0 {
				f.every = time.Duration((1 + 4*random.Float64()) * float64(f.size) / float64(endpoints))
			}
			flows = append(flows, f)
		}
		s := newSim(seed, 3, endpoints, flows...)
		if random.IntN(2) == 0 {
			s.parallel = 1 + random.IntN(8)
		}
		for _, p := range s.processes {
			switch random.IntN(4) {
			case 0:
				p.skew = time.Duration(random.Int64N(int64(time.Hour)))
			case 1:
				p.skew = time.Duration(random.Int64N(int64(10 * ms)))
			}
		}
		s.faults(random)
		s.run(30 * time.Second)
		if s.unused > 300*ms {
			t.Errorf("seed %d: room was unused for %v while a process waited: %d endpoints, %d in parallel, control away: %t, a process hangs: %t",
				seed, s.unused, endpoints, s.parallel, s.cut, s.hung)
		}
		if s.inversions > 0 && !s.cut && !s.hung {
			t.Errorf("seed %d: %d inversions of bands: %d endpoints, %d in parallel", seed, s.inversions, endpoints, s.parallel)
		}
		for _, f := range flows {
			f.stopped = true
		}
		s.run(s.now + time.Minute)
		for _, p := range s.processes {
			if f := p.first(); f != nil && p.alive {
				t.Errorf("seed %d: a request still waits", seed)
			}
			if p.alive && !s.cut && !s.hung && !p.pool.Empty() {
				t.Errorf("seed %d: when nothing waits any more, a process still has state", seed)
			}
		}
	}
}

// faults has processes end and restart, processes that hang, and a control that goes away.
func (s *sim) faults(random *rand.Rand) {
	at := func() time.Duration { return time.Duration(random.Int64N(int64(25 * time.Second))) }
	if random.IntN(2) == 0 { // a process dies, and its connection with it
		p := s.processes[random.IntN(len(s.processes))]
		s.at(at(), func() {
			p.die()
			p.lines, p.gone = nil, true
			for _, o := range s.processes {
				o.hears(p.index, make([]int, len(o.views)))
				o.told()
			}
		})
	}
	if s.parallel == 0 && random.IntN(3) == 0 { // a process hangs, and control does not know
		p := s.processes[random.IntN(len(s.processes))]
		s.at(at(), func() { p.die(); s.hung = true })
	}
	if random.IntN(3) == 0 { // control goes away
		s.at(at(), func() {
			s.cut = true
			for _, p := range s.processes {
				for i := range s.processes {
					p.hears(i, make([]int, len(p.views)))
				}
			}
		})
	}
}

func (p *process) die() {
	p.alive = false
	clear(p.waits)
}
