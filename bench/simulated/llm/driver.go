package llm

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/sim"
)

// maxLag is the lag at which the driver gives up its schedule. Timers fire a fraction of a
// millisecond late; ending a step at its due time keeps that from accumulating. A slower machine
// loses time instead of catching up with a burst of tokens.
const maxLag = 50 * time.Millisecond

// driver is the goroutine that owns the step model and runs it in real time. Others use do and
// post.
type driver struct {
	// Immutable after newDriver.
	commands  chan func()   // run by the driver in order; never closed
	stopped   chan struct{} // closed when run returns
	cut       chan struct{} // closed by cutOff: all waits end
	cutOnce   sync.Once
	maxQueued int

	// Owned by run, and by the caller of newDriver before.
	sim     *sim.Engine
	started time.Time // time 0 of the simulation
	tickets map[sim.ID]*ticket
	loads   map[sim.ID]func() // callbacks of loads
	stats   *stats
	asleep  int // sleep level; 0 is awake
	active  []string

	// Published after every step for concurrent readers.
	waiting atomic.Int64
	usage   atomic.Uint64 // bits of a float64, 0..1
}

// ticket is a request at the driver.
type ticket struct {
	// Immutable after submit.
	request   sim.Request
	streams   bool // wake the waiter for each token, not only for the last
	pools     bool // the request generates no text: its single output token is not counted
	maxTokens int  // requested limit, or the default
	stops     bool // the output ends before its limit
	id        sim.ID

	news     chan struct{} // capacity 1: something is new; never closed
	produced atomic.Int32  // output tokens so far
	finished atomic.Bool   // set after produced

	// Owned by the driver.
	arrived, latest float64
	cached          int
}

func newDriver(c Config) (*driver, error) {
	draws := rand.New(rand.NewPCG(c.Seed, 1))
	engine, err := sim.New(c.Profile, draws.NormFloat64)
	if err != nil {
		return nil, err
	}
	return &driver{
		// Buffered, so that a handler rarely waits for the end of a step.
		commands:  make(chan func(), 256),
		stopped:   make(chan struct{}),
		cut:       make(chan struct{}),
		maxQueued: c.MaxQueued,
		sim:       engine,
		tickets:   map[sim.ID]*ticket{},
		loads:     map[sim.ID]func(){},
		stats:     newStats(c),
		started:   time.Now(),
	}, nil
}

// run ends steps when they are due and starts the next ones until ctx ends. Then requests make no
// more progress.
func (d *driver) run(ctx context.Context) {
	defer close(d.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		// Handle requests first: one that arrived during a step joins the next one.
		for range len(d.commands) {
			(<-d.commands)()
		}
		now := d.now()
		at, ok := d.sim.Next()
		ok = ok && d.asleep == 0
		if ok && at <= now {
			if now-at > maxLag.Seconds() {
				at = now
			}
			d.advance(at)
			continue
		}
		if ok {
			timer.Reset(seconds(at - now))
		}
		select {
		case f := <-d.commands:
			f()
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// now returns the time in seconds of the simulation.
func (d *driver) now() float64 { return time.Since(d.started).Seconds() }

// post makes the driver call f soon. It does nothing if the driver has stopped.
func (d *driver) post(f func()) {
	select {
	case d.commands <- f:
	case <-d.stopped:
	}
}

// do makes the driver call f and waits. It returns false if ctx ends or all requests are cut off
// first; f may still run. If the driver has stopped it keeps waiting, as a stopped vLLM never
// answers.
func (d *driver) do(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	select {
	case d.commands <- func() { f(); close(done) }:
	case <-ctx.Done():
		return false
	case <-d.cut:
		return false
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	case <-d.cut:
		return false
	}
}

// submit submits all requests or none. It returns false if do does.
func (d *driver) submit(ctx context.Context, tickets ...*ticket) (refused error, ok bool) {
	for _, t := range tickets {
		t.news = make(chan struct{}, 1)
	}
	var said error // owned by the driver until do returns true
	ok = d.do(ctx, func() {
		if d.maxQueued > 0 && len(d.tickets)+len(tickets) > d.maxQueued {
			d.stats.rejections++
			said = busy
			return
		}
		now := d.now()
		for _, t := range tickets {
			t.arrived = now
			if t.id, said = d.sim.Submit(now, t.request); said != nil {
				break
			}
			d.tickets[t.id] = t
		}
		d.publish()
	})
	if !ok {
		d.cancel(tickets...)
		return nil, false
	}
	if said != nil {
		d.cancel(tickets...)
	}
	return said, true
}

// wake is the reason why wait returned.
type wake uint8

const (
	news   wake = iota // more output
	silent             // quiet fired first
	gone               // the client left, or all requests are cut off
)

// wait waits for more than seen output tokens, or, without streaming, for all. A nil quiet never
// fires.
func (d *driver) wait(ctx context.Context, t *ticket, seen int, quiet <-chan time.Time) (produced int, why wake) {
	for {
		// Load in the reverse of the driver's store order.
		finished := t.finished.Load()
		if produced = int(t.produced.Load()); finished || t.streams && produced > seen {
			return produced, news
		}
		select {
		case <-t.news:
		case <-quiet:
			return produced, silent
		case <-ctx.Done():
			return produced, gone
		case <-d.cut:
			return produced, gone
		}
	}
}

// cancel cancels requests whose clients have left.
func (d *driver) cancel(tickets ...*ticket) {
	d.post(func() {
		for _, t := range tickets {
			if d.tickets[t.id] == t {
				d.sim.Cancel(t.id)
				delete(d.tickets, t.id)
			}
		}
		d.publish()
	})
}

// load loads an adapter into host memory; the driver calls done with the result.
func (d *driver) load(adapter string, done func(error)) {
	d.post(func() {
		id, err := d.sim.Load(d.now(), adapter)
		if err != nil {
			done(err)
			return
		}
		d.loads[id] = func() { done(nil) }
	})
}

// preload loads an adapter before run without waiting: it advances the clock.
func (d *driver) preload(adapter string) error {
	if _, err := d.sim.Load(d.now(), adapter); err != nil {
		return err
	}
	for {
		at, ok := d.sim.Next()
		if !ok {
			return nil
		}
		d.sim.Advance(at)
		d.started = time.Now().Add(-seconds(at))
	}
}

// advance ends a step and delivers its results.
func (d *driver) advance(at float64) {
	stepped := false
	for _, e := range d.sim.Advance(at) {
		switch e.Kind {
		case sim.Scheduled:
			if t := d.tickets[e.ID]; t != nil {
				t.cached = e.Record.Cached
			}
		case sim.Token:
			stepped = true
			if t := d.tickets[e.ID]; t != nil {
				d.stats.token(t, e)
				t.produced.Store(int32(e.Index + 1))
				if t.streams {
					t.notify()
				}
			}
		case sim.Finished:
			if t := d.tickets[e.ID]; t != nil {
				d.stats.finish(t, e.Record)
				delete(d.tickets, e.ID)
				t.finished.Store(true)
				t.notify()
			}
		case sim.HostLoaded:
			if done := d.loads[e.ID]; done != nil {
				delete(d.loads, e.ID)
				done()
			}
		}
	}
	if stepped {
		d.active = d.sim.Active(d.active[:0])
		d.stats.step(d.active)
	}
	d.publish()
}

// publish stores the load for concurrent readers.
func (d *driver) publish() {
	c := d.sim.Counts()
	d.waiting.Store(int64(c.Waiting))
	d.usage.Store(math.Float64bits(c.KVUsage))
}

// cutOff ends all waiting. It may be called more than once.
func (d *driver) cutOff() { d.cutOnce.Do(func() { close(d.cut) }) }

// seconds rounds up, so that a step is not checked before its end.
func seconds(s float64) time.Duration { return time.Duration(math.Ceil(s * 1e9)) }

// notify wakes the waiter.
func (t *ticket) notify() {
	select {
	case t.news <- struct{}{}:
	default:
	}
}
