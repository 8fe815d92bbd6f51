// Package fleet holds what extproc believes of endpoints, and publishes it as snapshots.
//
// What it is told comes from beside the path of requests: objects from their source, looks at engines from scrape,
// refusals from outcome, copies from control; package belief, which is pure, makes of it what is believed. What it gives is a
// [endpointstate.View] behind one atomic pointer, which a request loads once. The counts of requests in flight live on from view to
// view: [Fleet.Begin] and [InFlight.End] change them while a request passes.
package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// pause is the least time between two views that only news of endpoints separates. With hundreds of endpoints, news comes
	// thousands of times a second; a view that is this much older is no worse.
	pause = 5 * time.Millisecond
	// sweep is how often leases that ran out are looked for, and who is silent.
	sweep = time.Second
)

// Fleet is safe for concurrent use. Make one with [New]; run it with [Fleet.Run].
type Fleet struct {
	Config
	view   atomic.Pointer[endpointstate.View]
	news   chan struct{} // capacity 1; never closed
	leases leases
	makers *lru.Cache[string, Maker] // by the id of the answer
	// nowhere is when each endpoint had answered that it does not have an answer, by the answer's id.
	nowhere      *lru.Cache[string, time.Time]
	made         made
	requestStats *requestStats
	serviceTimes *serviceTimes
	names        names
	// questions are those of requests for models that nothing admits.
	questions questions

	prefixes prefixes
	urgent   chan struct{} // capacity 1; never closed; see Urgent
	moves    chan struct{} // capacity 1; never closed; see Moves
	moved    atomic.Bool   // since Backlogs was last called

	mu      sync.Mutex // guards the following; locked after InFlight.mu, before prefixes.mu and, by Published, flow.Flow's mu
	state   *endpointstate.State
	running bool // somebody publishes what is told later
	pausing bool // a view was published a moment ago
}

// Config is what a Fleet needs.
type Config struct {
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Settings are those of pools without settings of their own; zero means the defaults.
	Settings settings.Settings
	// Log gets what operators should know; nil means nobody.
	Log *slog.Logger
	// Published is told of each View once it is in force; nil means nobody. It must be quick and ask nothing of the Fleet
	// but its View.
	Published func(*endpointstate.View)
	// Freed is told of a model, by what engines call it, of which a copy with a limit has fewer requests than before; nil means nobody. It is bound
	// as Published is.
	Freed func(model string)
	// PrefixCacheBytes bounds the memory for what endpoints have of prompts, which is taken when a policy first asks for it; zero means
	// [prefix.DefaultBytes].
	PrefixCacheBytes int
	// Placed says that somebody takes what models are used: see [Fleet.Usage].
	Placed bool
}

// New returns a Fleet of nothing.
func New(c Config) *Fleet {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Published == nil {
		c.Published = func(*endpointstate.View) {}
	}
	if c.Freed == nil {
		c.Freed = func(string) {}
	}
	if c.PrefixCacheBytes == 0 {
		c.PrefixCacheBytes = prefix.DefaultBytes
	}
	f := &Fleet{
		Config: c, questions: questions{news: make(chan struct{}, 1)}, prefixes: prefixes{index: prefix.New(c.PrefixCacheBytes)}, news: make(chan struct{}, 1), urgent: make(chan struct{}, 1), moves: make(chan struct{}, 1), makers: remembering[string, Maker](maxAnswers), nowhere: remembering[string, time.Time](maxNowhere),
		requestStats: remembering[objects.ModelKey, *endpointstate.RequestStats](maxRequestStats), serviceTimes: remembering[objects.ModelKey, *serviceTime](maxServiceTimes),
		state: endpointstate.New(endpointstate.Config{Settings: c.Settings, Placed: c.Placed}),
	}
	f.publish()
	return f
}

// View returns the latest view. It never blocks.
func (f *Fleet) View() *endpointstate.View { return f.view.Load() }

// Run publishes news of endpoints, at most one view each pause, and ends leases that ran out, until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	f.locked(func() { f.running = true })
	defer f.locked(func() { f.running = false })
	wait := time.NewTimer(0)
	defer wait.Stop()
	sweeps := time.NewTicker(sweep)
	defer sweeps.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sweeps.C:
			f.endLeases()
			f.locked(f.state.Age)
		case <-f.news:
		}
		f.locked(func() {
			if !f.pausing && f.state.Changed() {
				f.publish()
			}
			f.pausing = true
		})
		wait.Reset(pause)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		f.locked(func() {
			if f.pausing = false; f.state.Changed() { // news that found the channel full before Run had taken what was in it
				f.tell()
			}
		})
	}
}

// locked calls what needs the state to itself.
func (f *Fleet) locked(call func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	call()
}

// When says how soon a change of the state is in force.
type When uint8

const (
	// Now publishes the change before Update returns.
	Now When = iota
	// Soon publishes the change before Update returns, but at most one view each pause: a burst of failures is coalesced.
	Soon
	// Later lets Run publish the change.
	Later
)

// Update changes what is known of endpoints. Change gets the state and the time; it must be quick, must not keep the state, and
// must not call the Fleet.
func (f *Fleet) Update(when When, change func(s *endpointstate.State, now time.Time)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.state, f.Now())
	switch {
	case !f.state.Changed():
	case when == Now:
		f.publish()
	case when == Soon && !f.pausing:
		f.publish()
		f.pausing = f.running
		f.tell() // so that the pause ends
	default:
		f.tell()
	}
	f.passOn()
}

// Read returns what get reads of the state, which it must not keep.
func Read[T any](f *Fleet, get func(s *endpointstate.State) T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return get(f.state)
}

// tell wakes Run.
func (f *Fleet) tell() {
	select {
	case f.news <- struct{}{}:
	default:
	}
}

// publish puts what is known in force. The caller holds mu.
func (f *Fleet) publish() {
	view, told := f.state.View(f.Now())
	f.view.Store(view)
	f.state.Seal()
	for _, t := range told {
		if t.Open {
			f.Log.Warn("most endpoints of the pool look bad; picking among all that are not out", "pool", t.Pool.String(), "faulty", t.Faulty, "lost", t.Lost)
		} else {
			f.Log.Info("the pool's endpoints look well again", "pool", t.Pool.String())
		}
	}
	f.told()
	f.Published(view)
	f.passOn()
}

// told tells operators of which pools predictions are trusted from now on, or are not any more. The caller holds mu.
func (f *Fleet) told() {
	for _, l := range f.state.Times.TakeTrustChanges() {
		args := []any{"pool", l.Pool.String(), "why", l.Why, "off", fmt.Sprintf("%.0f %%", 100*l.Residual), "measurements", l.Rows}
		if l.Trusted {
			f.Log.Info("how long the pool's engines take is known well enough: policy latency decides", args...)
		} else {
			f.Log.Warn("how long the pool's engines take is not known well enough: policy proposal decides in place of latency", args...)
		}
	}
}

// passOn has others told of news for them: what is urgent for control, and what caches hold. The caller holds mu.
func (f *Fleet) passOn() {
	if news := f.state.TakeCaches(); len(news) > 0 {
		f.prefixes.hear(news)
	}
	if f.state.TakeUrgent() {
		f.hurry()
	}
}

// Urgent is sent to, at most once until it is received from, when control should be told something at once: the last
// request of a copy that takes no more has ended, a copy is missing, or an engine is stopping.
func (f *Fleet) Urgent() <-chan struct{} { return f.urgent }

func (f *Fleet) hurry() {
	select {
	case f.urgent <- struct{}{}:
	default:
	}
}

// SetWorld puts new objects in force: when it returns, every View has them. Endpoints that stay keep what is known of
// them.
func (f *Fleet) SetWorld(w *objects.World) {
	f.locked(func() {
		f.state.SetWorld(w)
		f.publish()
	})
}

// Hear puts in force what control says: when it returns, no request begins any more at a copy that is Unloading or gone,
// and [Fleet.InFlight] counts every one that began there.
func (f *Fleet) ApplyPlacement(n endpointstate.PlacementUpdate) {
	f.locked(func() {
		f.state.ApplyPlacement(n, f.Now())
		f.publish()
	})
	f.names.hear(n) // then copies are known of what requests go to from now on
}

// Look is one look at an endpoint, from its beginning.
type Scrape struct {
	endpointstate.Scrape
	fleet *Fleet
}

// Look begins a look at an endpoint. It ends with one of Saw, Failed or [Fleet.Refused].
func (f *Fleet) Scrape(address string) (l Scrape) {
	f.locked(func() { l = Scrape{f.state.Scrape(address, f.Now()), f} })
	return l
}

// Saw ends a look that the endpoint answered.
func (l Scrape) Succeeded(load engine.Load) {
	l.fleet.Update(Later, func(s *endpointstate.State, _ time.Time) { s.ScrapeSucceeded(l.Scrape, load) })
}

// Failed ends a look that the endpoint did not answer in time, or not in words that make sense.
func (l Scrape) Failed() {
	l.fleet.Update(Later, func(s *endpointstate.State, _ time.Time) { s.ScrapeFailed(l.Scrape) })
}

// Lists says what the endpoint of a look lists.
func (l Scrape) Listed(m engine.Models) {
	l.fleet.Update(Later, func(s *endpointstate.State, _ time.Time) { s.ModelsListed(l.Scrape, m) })
}

// SetModels says what an endpoint answers to, as a look that begins and ends now.
func (f *Fleet) SetModels(address string, m engine.Models) { f.Scrape(address).Listed(m) }

// Settled says whether as much is known of every endpoint as a look tells, and all that control has to say, if there is control: a
// process that takes the place of another decides no worse then.
func (f *Fleet) Settled() (settled bool) {
	f.locked(func() { settled = f.state.Settled() })
	return settled && (!f.Placed || f.Heard())
}
