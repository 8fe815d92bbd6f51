// Package fleet keeps the state of all endpoints and publishes it as views.
//
// Its inputs arrive outside the path of requests: objects, scrapes of engines, outcomes of
// requests, and control's reports of copies. Package endpointstate, which is pure, turns them into
// a state. A request loads the latest [endpointstate.View] from one atomic pointer. All views share
// the counts of requests in flight, which [Fleet.Begin] and [InFlight.End] change.
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
	// pause is the least time between two views that differ only in the state of endpoints. With
	// hundreds of endpoints, changes arrive thousands of times a second.
	pause = 5 * time.Millisecond
	// sweep is the interval of the checks for expired leases and silent endpoints.
	sweep = time.Second
)

// Fleet is safe for concurrent use. Make one with [New]; run it with [Fleet.Run].
type Fleet struct {
	Config
	Use    Use
	view   atomic.Pointer[endpointstate.View]
	news   chan struct{} // capacity 1; never closed
	leases leases
	makers *lru.Cache[string, Maker] // makers of stored responses, by the response's id
	// nowhere is when all endpoints had answered that they do not have a stored response, by the
	// response's id.
	nowhere      *lru.Cache[string, time.Time]
	made         made
	requestStats *requestStats
	serviceTimes *serviceTimes
	names        names
	// questions are the requests' questions to control about unknown models.
	questions questions

	prefixes prefixes
	urgent   chan struct{} // capacity 1; never closed; see Urgent
	moves    chan struct{} // capacity 1; never closed; see Moves
	moved    atomic.Bool   // a request has begun or ended since the last call of Backlogs

	mu      sync.Mutex // guards the fields below; locked after InFlight.mu, before prefixes.mu and, by Published, flow.Flow's mu
	state   *endpointstate.State
	states  stateLog
	running bool // whether Run is active
	pausing bool // whether the latest view is younger than pause
}

// Config configures a Fleet.
type Config struct {
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Settings are for pools without settings of their own; zero means the defaults.
	Settings settings.Settings
	// Log gets messages for operators; nil discards them.
	Log *slog.Logger
	// Published is called with each View after its publication; nil means no callback. It must be
	// fast and must not call the Fleet except for View.
	Published func(*endpointstate.View)
	// Freed is called with an endpoint and the engine's name of a model when a request for the
	// model has ended there. It must be fast and must not call the Fleet except for View.
	Freed func(address, model string)
	// PrefixCacheBytes bounds the memory for the index of cached prompts, which is allocated at its
	// first use; zero means [prefix.DefaultBytes].
	PrefixCacheBytes int
	// LogEngineErrors adds the message of an engine's error to log lines, although it may quote a
	// prompt.
	LogEngineErrors bool
	// Placed reports that the use of models is sent to control: see [endpointstate.State.Usage].
	Placed bool
}

// New returns an empty Fleet.
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
		c.Freed = func(string, string) {}
	}
	if c.PrefixCacheBytes == 0 {
		c.PrefixCacheBytes = prefix.DefaultBytes
	}
	f := &Fleet{
		Config: c, questions: questions{news: make(chan struct{}, 1)}, prefixes: prefixes{index: prefix.New(c.PrefixCacheBytes)},
		news: make(chan struct{}, 1), urgent: make(chan struct{}, 1), moves: make(chan struct{}, 1),
		makers: remembering[string, Maker](maxAnswers), nowhere: remembering[string, time.Time](maxNowhere),
		requestStats: remembering[objects.ModelKey, *endpointstate.RequestStats](maxRequestStats),
		serviceTimes: remembering[objects.ModelKey, *serviceTime](maxServiceTimes),
		state:        endpointstate.New(endpointstate.Config{Settings: c.Settings, Placed: c.Placed}),
	}
	f.states.log = f.Log
	f.publish()
	return f
}

// View returns the latest view. It never blocks.
func (f *Fleet) View() *endpointstate.View { return f.view.Load() }

// Run publishes changes, at most one view per pause, and ends expired leases, until ctx ends.
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
			f.locked(func() {
				f.state.Age()
				f.states.flush(f.Now())
				f.states.waiting(f.view.Load(), f.state.Settings)
			})
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
			if f.pausing = false; f.state.Changed() { // the channel may have been full when a change was made during the pause
				f.wake()
			}
		})
	}
}

// locked runs call with mu locked.
func (f *Fleet) locked(call func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	call()
}

// When states how soon a change is published.
type When uint8

const (
	// Now means that the change is published before Update returns.
	Now When = iota
	// Soon means that the change is published before Update returns, but at most one view per pause
	// is, so that a burst of failures is coalesced.
	Soon
	// Later means that Run publishes the change.
	Later
)

// Update changes the state. It calls change with the state and the current time. Change must be
// fast, must not keep a reference to the state, and must not call the Fleet.
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
		f.wake() // lets Run end the pause
	default:
		f.wake()
	}
	f.passOn()
}

// Read returns the result of get, which must not keep a reference to the state.
func Read[T any](f *Fleet, get func(s *endpointstate.State) T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return get(f.state)
}

// wake wakes up Run.
func (f *Fleet) wake() {
	select {
	case f.news <- struct{}{}:
	default:
	}
}

// publish publishes a view of the state. The caller holds mu.
func (f *Fleet) publish() {
	view, told := f.state.View(f.Now())
	f.view.Store(view)
	f.state.Seal()
	for _, t := range told {
		if t.Open {
			f.Log.Warn("most endpoints of the pool look unhealthy; picking among all that are not out", "pool", t.Pool.String(), "faulty",
				t.Faulty, "lost", t.Lost)
		} else {
			f.Log.Info("the pool's endpoints have recovered", "pool", t.Pool.String())
		}
	}
	f.logTrustChanges()
	if moves := f.state.Moves.Take(); len(moves) > 0 {
		now := f.Now()
		for _, m := range moves {
			f.states.moved(m, now)
		}
	}
	f.Published(view)
	f.passOn()
}

// logTrustChanges logs the pools whose predictions became trusted or untrusted. The caller holds
// mu.
func (f *Fleet) logTrustChanges() {
	for _, l := range f.state.Times.TakeTrustChanges() {
		args := []any{"pool", l.Pool.String(), "why", l.Why, "off", fmt.Sprintf("%.0f %%", 100*l.Residual), "measurements", l.Rows}
		if l.Trusted {
			f.Log.Info("enough timing data: policy latency decides", args...)
		} else {
			f.Log.Warn("not enough timing data: falling back from policy latency to proposal", args...)
		}
	}
}

// passOn applies changes of caches to the index of prompts, reports the endpoints that other
// processes begin to use, and wakes up the client of control if a report is urgent. The caller
// holds mu.
func (f *Fleet) passOn() {
	for _, address := range f.state.Schedule.TakeUsed() {
		f.Use.report(address)
	}
	if news := f.state.TakeCaches(); len(news) > 0 {
		f.prefixes.apply(news)
	}
	if f.state.TakeUrgent() {
		f.hurry()
	}
}

// Urgent returns a channel that receives a value when control needs a report at once: the last
// request of a closed copy has ended, a copy is missing, or an engine is stopping. The channel
// holds at most one value.
func (f *Fleet) Urgent() <-chan struct{} { return f.urgent }

func (f *Fleet) hurry() {
	select {
	case f.urgent <- struct{}{}:
	default:
	}
}

// SetWorld publishes new objects before it returns. Endpoints that remain keep their state.
func (f *Fleet) SetWorld(w *objects.World) {
	f.locked(func() {
		f.state.SetWorld(w)
		f.states.setWorld(w)
		f.publish()
	})
}

// ApplyPlacement publishes an update of control before it returns. After that no request begins at
// a copy that is Unloading or gone, and [endpointstate.State.InFlight] counts every request that
// began there.
func (f *Fleet) ApplyPlacement(n endpointstate.PlacementUpdate) {
	f.locked(func() {
		f.state.ApplyPlacement(n, f.Now())
		f.publish()
	})
	f.names.apply(n) // last, so that names never lead to models whose copies are still unknown
}

// Scrape is one scrape of an endpoint; it stores when the scrape began.
type Scrape struct {
	endpointstate.Scrape
	fleet *Fleet
}

// Scrape starts a scrape. It ends with Succeeded, Failed or [endpointstate.State.Refused].
func (f *Fleet) Scrape(address string) (l Scrape) {
	f.locked(func() { l = Scrape{f.state.Scrape(address, f.Now()), f} })
	l.Steady = Steady(l.Began)
	return l
}

// Succeeded ends a scrape that the endpoint answered.
func (l Scrape) Succeeded(load engine.Load) {
	l.fleet.Update(Later, func(s *endpointstate.State, _ time.Time) { s.ScrapeSucceeded(l.Scrape, load) })
}

// Failed ends a scrape that got no valid answer in time.
func (l Scrape) Failed() {
	l.fleet.Update(Later, func(s *endpointstate.State, _ time.Time) { s.ScrapeFailed(l.Scrape) })
}

// Listed records the model list that the scrape read.
func (l Scrape) Listed(m engine.Models) {
	l.fleet.Update(Later, func(s *endpointstate.State, _ time.Time) { s.ModelsListed(l.Scrape, m) })
}

// SetModels records the models of an endpoint like a scrape that starts and ends now.
func (f *Fleet) SetModels(address string, m engine.Models) { f.Scrape(address).Listed(m) }

// Settled reports whether every endpoint was scraped and control, if there is one, has sent its
// complete state. A process that takes over then decides as well as the process that it replaces.
func (f *Fleet) Settled() (settled bool) {
	f.locked(func() { settled = f.state.Settled() })
	return settled && (!f.Placed || f.Synced())
}
