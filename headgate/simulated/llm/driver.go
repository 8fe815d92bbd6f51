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
// millisecond late. Each step ends at its due time, so that these delays do not accumulate. A
// machine that is too slow loses time instead of catching up with a burst of tokens.
const maxLag = 50 * time.Millisecond

// driver owns the step model and runs it in real time on one goroutine. Other goroutines use do and
// post to call functions there.
type driver struct {
	// These fields do not change after newDriver.
	commands  chan func()   // functions that the driver calls in order; never closed
	stopped   chan struct{} // closed when run returns
	cut       chan struct{} // closed by cutOff to end all waits
	cutOnce   sync.Once
	maxQueued int

	// Only run uses these fields; before it starts, the caller of newDriver.
	sim     *sim.Engine
	started time.Time // real time of time 0 in the simulation
	tickets map[sim.ID]*ticket
	loads   map[sim.ID]func() // callbacks of running adapter loads
	stats   *stats
	asleep  int // sleep level; 0 is awake
	active  []string

	// Updated after every step. Other goroutines may read these fields.
	waiting atomic.Int64
	usage   atomic.Uint64 // KV cache usage from 0 to 1, as the bits of a float64
}

// ticket is a request that was submitted to the driver.
type ticket struct {
	// These fields do not change after submit.
	request   sim.Request
	streams   bool // notify the waiter of each token, not only of the last
	pools     bool // the request generates no text: its single output token is not counted
	maxTokens int  // output limit: the requested one, or the default
	stops     bool // the output ends before its limit
	id        sim.ID

	news     chan struct{} // signals new output; capacity 1, never closed
	produced atomic.Int32  // number of output tokens so far
	finished atomic.Bool   // set after the final value of produced

	// Only the driver uses these fields.
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
		// The buffer lets most handlers continue without waiting for the end of a step.
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

// run ends steps when they are due and starts the next ones, until ctx ends. After that, requests
// make no progress.
func (d *driver) run(ctx context.Context) {
	defer close(d.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		// Handle requests before starting a step, so that those which arrived during the last step
		// join this one.
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

// now returns the current time of the simulation in seconds.
func (d *driver) now() float64 { return time.Since(d.started).Seconds() }

// post makes the driver call f soon, and does not wait for it. It does nothing if the driver has
// stopped.
func (d *driver) post(f func()) {
	select {
	case d.commands <- f:
	case <-d.stopped:
	}
}

// do makes the driver call f and waits for it. It returns false if ctx ends first, or if all
// requests are cut off; the driver may still call f then. If the driver has stopped, do keeps
// waiting, as a stopped vLLM never answers.
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

// submit submits all requests, or none if it returns an error. ok is false if ctx ends or all
// requests are cut off.
func (d *driver) submit(ctx context.Context, tickets ...*ticket) (refused error, ok bool) {
	for _, t := range tickets {
		t.news = make(chan struct{}, 1)
	}
	var said error // only the driver uses it until do returns true
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
	news   wake = iota // there is more output
	silent             // the quiet channel fired first
	gone               // the client disconnected, or all requests are cut off
)

// wait blocks until the number of output tokens exceeds seen, if the ticket is streamed, or else
// until the output is complete. It also returns when quiet fires; a nil quiet never does.
func (d *driver) wait(ctx context.Context, t *ticket, seen int, quiet <-chan time.Time) (produced int, why wake) {
	for {
		// The driver stores produced and then finished, so load them in the reverse order.
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

// cancel cancels the requests of a client that has disconnected.
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

// load starts to load an adapter into host memory. The driver calls done with the result.
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

// preload loads an adapter into host memory before run is called. It advances the clock instead of
// waiting.
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

// advance ends the step that is due and delivers its results.
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

// publish stores the current load for concurrent readers.
func (d *driver) publish() {
	c := d.sim.Counts()
	d.waiting.Store(int64(c.Waiting))
	d.usage.Store(math.Float64bits(c.KVUsage))
}

// cutOff makes all calls that wait for the driver return. It may be called more than once.
func (d *driver) cutOff() { d.cutOnce.Do(func() { close(d.cut) }) }

// seconds rounds up to nanoseconds, so that the driver does not wake before the end of a step.
func seconds(s float64) time.Duration { return time.Duration(math.Ceil(s * 1e9)) }

// notify wakes the goroutine that waits for the ticket.
func (t *ticket) notify() {
	select {
	case t.news <- struct{}{}:
	default:
	}
}
