// Package place loads models onto engines when requests need them, and before. Package decide makes
// the decisions. This package passes facts to it and carries out its actions: it scrapes engines,
// calls them through package loader, records every load and unload before it begins, and publishes
// changes to followers.
package place

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// DefaultScrapeInterval is the default time between two scrapes of an engine. Scrapes find
	// changes that extproc does not report, such as an adapter that an operator loaded.
	DefaultScrapeInterval = 2 * time.Second
	// startGrace is how long followers wait for the first scrapes. After that they get the state
	// that is known so far.
	startGrace = 3 * time.Second
	// scrapeTimeout is the time limit of a scrape: a busy engine answers late. readyTimeout is the
	// limit for a model runtime, which the scrape may have to make ready (ModelMesh waits 180 s).
	scrapeTimeout = 5 * time.Second
	readyTimeout  = 3 * time.Minute
	// predictTimeout is the time limit of a size prediction, as in ModelMesh.
	predictTimeout = 500 * time.Millisecond
	// sizeTimeout is the time limit of a size query, as in ModelMesh.
	sizeTimeout = 30 * time.Second
	// statusInterval is the time between two writes of the status of all models that changed.
	// usedInterval is the time between two writes for models that were only used.
	statusInterval = time.Second
	usedInterval   = 10 * time.Second
)

// Config is the configuration of a Placer.
type Config struct {
	Memory store.Memory
	Log    *slog.Logger
	// Access defines how to connect to engines.
	Access engineclient.Access
	// Publisher receives changes of placement.
	Publisher Publisher
	// Meter counts loads, unloads and other events.
	Meter Meter
	// RegisteredPool is the pool of models that clients register. Zero means the only pool of model
	// runtimes or, if there is none, the only pool of engines with a model repository.
	RegisteredPool objects.Name
	// DrainLimit, ScrapeInterval and TickInterval are optional; 0 means the default.
	DrainLimit, ScrapeInterval, TickInterval time.Duration
	// ObserveInterval is the minimum time between two reports of the state of endpoints; 0 means
	// the default.
	ObserveInterval time.Duration
}

// Publisher receives changes in order, and stores them. Its methods must not call the Placer.
type Publisher interface {
	Publish(decide.Change)
	// SetMethods reports which gRPC methods the engine of an endpoint serves.
	SetMethods(endpoint string, methods engine.Methods)
	// Ready reports that the changes published so far are the complete state.
	Ready()
	// Behind returns the extprocs that may still send a VModel's requests to its earlier target,
	// sorted.
	Behind(key decide.Key) []string
	// StillSending returns the extprocs that may still send requests to these endpoints, because
	// they may not know yet that the endpoints are about to end. They are sorted.
	StillSending(endpoints []string) []string
	// AwaitRegistered returns when all connected extprocs know whether the model is registered, or
	// after a time limit.
	AwaitRegistered(key decide.Key)
}

// Meter counts events of placement. Its methods are safe for concurrent use and fast.
type Meter interface {
	// LoadCalled: an engine was told to load a model for which requests wait. waited is how long
	// the oldest of these requests has waited. stalled is how long it waited for evictions or for
	// the turn of the load.
	LoadCalled(waited, stalled time.Duration)
	LoadEnded(took time.Duration, failed bool)
	UnloadEnded(took time.Duration, failed bool)
	Evicted()
	// Decided: an action for an engine was decided.
	Decided(decide.ActionKind, decide.Purpose)
	// CannotLoad: requests for a model now begin to fail with this reason.
	CannotLoad(decide.Reason)
}

// Placer carries out placement. It is safe for concurrent use. Create a Placer with [New], and run
// it with [Placer.Run].
type Placer struct {
	Config
	kick chan struct{} // receives when the time of the next Decide has changed; capacity 1, never closed

	mu         sync.Mutex // guards the fields below
	state      *decide.State
	wake       time.Time
	running    context.Context // the context passed to Run; nil before
	work       sync.WaitGroup  // goroutines of actions and endpoints; call Add only under mu and while running
	started    time.Time       // when the first World was set; zero before
	ready      bool
	paused     bool
	declared   map[decide.Key]*objects.Entry // models declared by objects
	registered map[decide.Key]*v1alpha1.Model
	vmodels    vmodels
	world      *objects.World
	endpoints  map[string]*endpointWorker
	leaving    map[string]decide.Leaving // why endpoints are about to end, as already logged
	cancels    map[decide.CopyKey]context.CancelFunc
	watchers   watchers
	unsaved    map[decide.Key]bool                // models whose status must be written; false: only their last use changed
	savedUse   time.Time                          // when the use of models was last written
	answers    map[decide.Key][]decide.CallResult // latest answers of engines
	restored   []store.Copy                       // records of copies that are not restored yet
	failed     []store.Status                     // records of failures that are not restored yet
	records    map[string]loader.Record
	used       map[decide.Key]time.Time     // last use, from an earlier process's records
	refused    map[decide.Key]decide.Reason // published reasons why requests for models fail
	gates      map[objects.Name]store.Gate  // last published gates of pods on trial
	rolling    bool                         // at least one endpoint is outgoing
	drains     map[string]time.Time         // endpoints that operators drain, with the times at which the move of models ends
	observed   observed
}

// New returns a Placer that continues from the records of an earlier process.
func New(c Config) (*Placer, error) {
	if c.DrainLimit == 0 {
		c.DrainLimit = decide.DrainLimit
	}
	if c.ScrapeInterval == 0 {
		c.ScrapeInterval = DefaultScrapeInterval
	}
	if c.ObserveInterval == 0 {
		c.ObserveInterval = observeInterval
	}
	if c.TickInterval == 0 {
		c.TickInterval = decide.TickInterval
	}
	p := &Placer{
		Config: c, kick: make(chan struct{}, 1), state: decide.New(decide.Config{DrainLimit: c.DrainLimit}),
		declared: make(map[decide.Key]*objects.Entry), registered: make(map[decide.Key]*v1alpha1.Model),
		world:     objects.Build(objects.Set{}),
		endpoints: make(map[string]*endpointWorker), leaving: make(map[string]decide.Leaving),
		cancels:  make(map[decide.CopyKey]context.CancelFunc),
		watchers: make(watchers), unsaved: make(map[decide.Key]bool),
		answers: make(map[decide.Key][]decide.CallResult),
		vmodels: newVModels(), records: make(map[string]loader.Record), used: make(map[decide.Key]time.Time),
		refused: make(map[decide.Key]decide.Reason), gates: make(map[objects.Name]store.Gate),
		drains:   make(map[string]time.Time),
		observed: observed{extprocs: make(map[string]*observer)},
	}
	err := p.readRecords()
	// Reading the records leaves as much garbage as live data. Return it to the OS now, because the
	// next garbage collection may be minutes away.
	debug.FreeOSMemory()
	return p, err
}

// Run carries out placement until ctx ends, and returns when all its goroutines have ended. It does
// not wait for loads in progress at engines, which are recorded. It calls begun when SetWorld may
// be called.
func (p *Placer) Run(ctx context.Context, begun func()) error {
	p.mu.Lock()
	p.running = ctx
	p.mu.Unlock()
	defer p.stop()
	begun()
	timer := time.NewTimer(0)
	defer timer.Stop()
	save := time.NewTicker(statusInterval)
	defer save.Stop()
	tick := time.NewTicker(p.TickInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-save.C:
			p.save(false)
			continue
		case <-tick.C:
			p.update(func(now time.Time) []decide.Action {
				if p.rolling { // a rollout may have ended, or may have stopped
					p.setPods(now)
				}
				p.state.Tick()
				return nil
			})
		case <-p.kick:
		case <-timer.C:
		}
		p.update(func(time.Time) []decide.Action { return nil })
		p.mu.Lock()
		next := p.wake
		if !p.ready && !p.started.IsZero() && (next.IsZero() || next.After(p.started.Add(startGrace))) {
			next = p.started.Add(startGrace)
		}
		p.mu.Unlock()
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

// stop ends all goroutines, and writes the status of models.
func (p *Placer) stop() {
	p.mu.Lock()
	for _, s := range p.endpoints {
		s.stop()
	}
	p.mu.Unlock()
	p.work.Wait()
	p.save(true)
}

// Pause stops new loads and unloads, or with false starts them again. Scrapes continue, and changes
// are still published.
func (p *Placer) Pause(paused bool) {
	p.update(func(time.Time) []decide.Action {
		p.paused = paused
		for _, s := range p.endpoints {
			s.loader.Pause(paused)
		}
		p.state.Pause(paused)
		return nil
	})
}

// update calls tell, which passes facts to the state, and carries out the resulting actions.
func (p *Placer) update(tell func(now time.Time) []decide.Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updateLocked(tell)
}

func (p *Placer) updateLocked(tell func(now time.Time) []decide.Action) {
	now := time.Now()
	todo := tell(now)
	more, wake := p.state.Decide(now)
	p.publish(now)
	for _, a := range append(todo, more...) {
		p.Meter.Decided(a.Kind, a.For)
		p.begin(a)
	}
	if !wake.Equal(p.wake) {
		p.wake = wake
		select {
		case p.kick <- struct{}{}:
		default:
		}
	}
}

// publish sends the changes of the state to followers, and records them. The caller holds mu.
func (p *Placer) publish(now time.Time) {
	change := p.state.Changes()
	changed := make(map[decide.Key]bool, len(change.Failures))
	for key, c := range change.Copies {
		changed[key.ModelKey] = true
		if c.State == decide.Draining {
			p.Meter.Evicted()
		}
	}
	for key, why := range change.Failures {
		changed[key] = true
		if why != "" && why != p.refused[key] {
			p.Meter.CannotLoad(why)
		}
		p.observed.changed = true
		if p.refused[key] = why; why == "" {
			delete(p.refused, key)
		}
	}
	for _, key := range change.Gone {
		p.Memory.DeleteCopy(key.Endpoint, key.Pool.String(), key.ID)
		if s := p.endpoints[key.Endpoint]; s != nil {
			delete(s.unloads, key.ID)
		}
	}
	for address, why := range change.Leaving {
		p.noteLeaving(address, why)
	}
	if change.Trials {
		p.noteTrials()
	}
	for key := range change.VModels {
		p.vmodels.unsaved[key] = true
		p.watchers.wake(key)
	}
	for _, key := range change.Unnamed {
		p.markLoose(key)
	}
	if len(change.VModels) > 0 {
		p.sweep()
	}
	if len(change.Copies)+len(change.Failures)+len(change.Leaving)+len(change.VModels) > 0 || change.Endpoints != nil {
		p.Publisher.Publish(change)
	}
	for key := range changed {
		if _, there := p.state.Status(key); !there {
			delete(p.answers, key)
		}
		p.unsaved[key] = true
		p.watchers.wake(key)
	}
	if !p.ready && !p.started.IsZero() && (p.state.Unscraped() == 0 || now.Sub(p.started) >= startGrace) {
		p.ready = true
		p.Publisher.Ready()
	}
}

// watchers are the channels of goroutines that wait for a change of a model or a VModel. Each
// channel has capacity 1. Placer.mu guards them.
type watchers map[decide.Key]map[chan struct{}]bool

// wake wakes the goroutines that wait for a change of a model or a VModel.
func (w watchers) wake(key decide.Key) {
	for w := range w[key] {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// noteLeaving logs that an endpoint is about to end, or no longer is. The caller holds mu.
func (p *Placer) noteLeaving(address string, why decide.Leaving) {
	was := p.leaving[address]
	p.leaving[address] = why
	p.noteMigrated(address, was, why)
	switch {
	case why.Is() && !was.Is():
		p.Log.Info("the endpoint is leaving; loading and unloading nothing there", "endpoint", address, "terminating", why.Terminating,
			"migrating", !why.Migrates.IsZero(), "stopping", !why.Stopping.IsZero())
	case !why.Is() && was.Is():
		p.Log.Info("the leaving endpoint is gone, or takes loads again", "endpoint", address)
	}
	if !why.Is() {
		delete(p.leaving, address)
	}
}

// Wanted records how many requests wait for a model at one extproc, named by who; 0 means none.
func (p *Placer) Wanted(who string, key decide.Key, w decide.Want) {
	p.update(func(now time.Time) []decide.Action {
		p.state.Used(key, decide.Use{Last: now})
		p.state.Wanted(who, key, w)
		return nil
	})
}

// Unwanted records that an extproc has disconnected, so none of its requests waits any more. What
// it has reported of endpoints counts a little longer.
func (p *Placer) Unwanted(who string) {
	p.update(func(time.Time) []decide.Action {
		p.state.Unwanted(who)
		p.observed.leave(who)
		return nil
	})
}

// Used records the use of models.
func (p *Placer) Used(all map[decide.Key]decide.Use) {
	p.update(func(time.Time) []decide.Action {
		for key, u := range all {
			p.state.Used(key, u)
			if !p.unsaved[key] {
				p.unsaved[key] = false
			}
		}
		return nil
	})
}

// InFlight records the number of requests in flight at copies.
func (p *Placer) InFlight(all map[decide.CopyKey]int) {
	p.update(func(now time.Time) []decide.Action {
		for key, n := range all {
			p.state.InFlight(key, n, now)
		}
		return nil
	})
}

// Leaving records which endpoints are about to end, as one extproc, named by who, reports. The zero
// Leaving means that an endpoint stays.
func (p *Placer) Leaving(who string, all map[string]decide.Leaving) {
	p.update(func(now time.Time) []decide.Action {
		for address, is := range all {
			p.state.Terminating(who, address, is.Terminating, is.Migrates)
			if !is.Stopping.IsZero() {
				p.state.Stopping(address, is.Stopping, now)
			}
		}
		return nil
	})
}

// Drained records that a draining copy gets no new requests and has none in flight.
func (p *Placer) Drained(key decide.CopyKey) {
	p.update(func(now time.Time) []decide.Action { return p.state.Drained(key, now) })
}

// Missing records that an engine answered that it lacks the model of a copy. The engine is then
// scraped. If it lists its models, the list is believed. A runtime that may have restarted is
// assumed to have restarted, and is made ready.
func (p *Placer) Missing(key decide.CopyKey) {
	p.update(func(now time.Time) []decide.Action {
		if s := p.endpoints[key.Endpoint]; p.state.Missing(key, now) && s != nil {
			s.anew = true
			delete(p.records, key.Endpoint)
			p.Memory.DeleteRuntime(key.Endpoint)
			p.Log.Warn("the model runtime has begun anew, and nothing but a missing model tells; making it ready", "endpoint", key.Endpoint,
				"model", key.ID)
		}
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.endpoints[key.Endpoint]; s != nil {
		s.requestScrape()
	}
}
