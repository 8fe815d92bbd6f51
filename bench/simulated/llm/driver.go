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

// maxLag is how late a step may be ended before the driver gives up keeping to its schedule. Timers wake late by a part
// of a millisecond; ending a step at the time it was due keeps that from adding up. A machine that is later than this
// is too slow for the profile, and time that it could not keep is lost rather than made up in a burst of tokens.
const maxLag = 50 * time.Millisecond

// driver is the goroutine that owns the step model and runs it on the real clock. Others ask it with do and post.
type driver struct {
	// Immutable after newDriver.
	commands  chan func()   // run by the driver, in order; never closed
	stopped   chan struct{} // closed by run when it returns
	cut       chan struct{} // closed by cutOff: waiting is over for everybody
	cutOnce   sync.Once
	maxQueued int

	// Owned by run, and by newDriver's caller before it.
	sim     *sim.Engine
	started time.Time // the sim's time 0
	tickets map[sim.ID]*ticket
	loads   map[sim.ID]func() // what to do when a load is done
	stats   *stats
	asleep  int // sleep level, 0 is awake
	active  []string

	// Published after every step, for whoever reads.
	waiting atomic.Int64
	usage   atomic.Uint64 // bits of a float64, 0..1
}

// ticket is a request in the driver's hands.
type ticket struct {
	// Immutable after submit.
	request   sim.Request
	streams   bool // wake the waiter for every token, not only for the last
	pools     bool // the request makes no text: its one output token is not counted
	maxTokens int  // what the client asked for, or what it was given
	stops     bool // the output ends by itself and not at its limit
	id        sim.ID

	told     chan struct{} // has one place: something is new; never closed
	produced atomic.Int32  // output tokens that are out
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
		// Room for a burst, so that a handler seldom waits for the driver to come back from a step.
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

// run ends steps when they are due and starts the next ones, until ctx ends. Then everything stays as it is.
func (d *driver) run(ctx context.Context) {
	defer close(d.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		// Requests first: one that came while a step ran is in the next.
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

// now is the time in the sim's seconds.
func (d *driver) now() float64 { return time.Since(d.started).Seconds() }

// post has the driver call f, soon. It does nothing when the driver is gone.
func (d *driver) post(f func()) {
	select {
	case d.commands <- f:
	case <-d.stopped:
	}
}

// do has the driver call f and waits for it. It reports false when ctx ended, or everybody was cut off, before that;
// f may still be called then. When the driver is gone it waits on: that is how a stopped vLLM answers.
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

// submit takes requests in, all or none. It reports false where do does.
func (d *driver) submit(ctx context.Context, tickets ...*ticket) (refused error, ok bool) {
	for _, t := range tickets {
		t.told = make(chan struct{}, 1)
	}
	var said error // the driver's until do reports true
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

// wake is why wait came back.
type wake uint8

const (
	news   wake = iota // there is more output
	silent             // quiet fired first
	gone               // the client left, or everybody was cut off
)

// wait returns when more than seen tokens of the request are out, or, where it does not stream, all. A nil quiet never
// fires.
func (d *driver) wait(ctx context.Context, t *ticket, seen int, quiet <-chan time.Time) (produced int, why wake) {
	for {
		// Loaded in this order, since the driver stores them in the other.
		finished := t.finished.Load()
		if produced = int(t.produced.Load()); finished || t.streams && produced > seen {
			return produced, news
		}
		select {
		case <-t.told:
		case <-quiet:
			return produced, silent
		case <-ctx.Done():
			return produced, gone
		case <-d.cut:
			return produced, gone
		}
	}
}

// cancel ends requests that nobody waits for any more.
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

// load brings an adapter into host memory and has the driver call done with nil when it is there, or with what is
// against it.
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

// preload is load before run, without waiting for the time it takes: the clock is put forward.
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

// advance ends a step and passes on what it brought.
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
					t.tell()
				}
			}
		case sim.Finished:
			if t := d.tickets[e.ID]; t != nil {
				d.stats.finish(t, e.Record)
				delete(d.tickets, e.ID)
				t.finished.Store(true)
				t.tell()
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

// publish lets handlers read the load without asking.
func (d *driver) publish() {
	c := d.sim.Counts()
	d.waiting.Store(int64(c.Waiting))
	d.usage.Store(math.Float64bits(c.KVUsage))
}

// cutOff ends all waiting. It may be called more than once.
func (d *driver) cutOff() { d.cutOnce.Do(func() { close(d.cut) }) }

// seconds is at least so long: a step must not be looked for before its end.
func seconds(s float64) time.Duration { return time.Duration(math.Ceil(s * 1e9)) }

// tell wakes the waiter, if it is not awake already.
func (t *ticket) tell() {
	select {
	case t.told <- struct{}{}:
	default:
	}
}
