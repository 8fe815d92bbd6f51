// Package place loads models onto engines before and when requests need them. Package decide makes
// the decisions. This package passes facts to it and carries out its actions: it scrapes engines,
// calls them through package loader, records every call before making it, and publishes changes to
// followers.
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
	// DefaultScrapeInterval is the default time between two scrapes of an engine. Changes that
	// extproc does not report, such as an adapter loaded by hand, are found within it.
	DefaultScrapeInterval = 2 * time.Second
	// startGrace is how long the first scrapes may take before followers get what is known without
	// them.
	startGrace = 3 * time.Second
	// scrapeTimeout limits a scrape: a busy engine answers late. readyTimeout limits one that first
	// makes the engine ready (ModelMesh waits 180 s for a runtime).
	scrapeTimeout = 5 * time.Second
	readyTimeout  = 3 * time.Minute
	// predictTimeout is ModelMesh's limit of a size prediction.
	predictTimeout = 500 * time.Millisecond
	// sizeTimeout is ModelMesh's limit of a size query.
	sizeTimeout = 30 * time.Second
	// statusInterval is the interval between writes of the status of models that changed, all in
	// one batch. usedInterval is the interval for models that were only used.
	statusInterval = time.Second
	usedInterval   = 10 * time.Second
)

// Config is the configuration of a Placer.
type Config struct {
	Memory store.Memory
	Log    *slog.Logger
	// Access is the way to reach engines.
	Access engineclient.Access
	// Publisher receives changes.
	Publisher Publisher
	// Meter receives loads and unloads.
	Meter Meter
	// RegisteredPool is the pool of models that clients register; zero means the only pool of model
	// runtimes or, if there is none, of engines with a model repository.
	RegisteredPool objects.Name
	// DrainLimit, ScrapeInterval and TickInterval have defaults; 0 means the default.
	DrainLimit, ScrapeInterval, TickInterval time.Duration
}

// Publisher receives and stores changes, in order. Its methods must not call the Placer.
type Publisher interface {
	Publish(decide.Change)
	// SetMethods reports the gRPC methods that the engine of an endpoint serves.
	SetMethods(endpoint string, methods engine.Methods)
	// Ready reports that the changes published so far are the complete state.
	Ready()
	// Behind returns the extprocs that may still send requests for a VModel to its earlier target,
	// sorted.
	Behind(key decide.Key) []string
	// StillSending returns the extprocs that may not know yet that endpoints are leaving, and may
	// still send them requests, sorted.
	StillSending(endpoints []string) []string
	// AwaitRegistered returns when all connected extprocs know whether a model is registered, or
	// after a time limit.
	AwaitRegistered(key decide.Key)
}

// Meter counts events of placement. Its methods are safe for concurrent use and fast.
type Meter interface {
	// LoadCalled: an engine was told to load a model for which requests wait. waited is how long
	// the oldest of them has waited, and stalled the part of it that was for evictions or for the
	// turn of the load.
	LoadCalled(waited, stalled time.Duration)
	LoadEnded(took time.Duration, failed bool)
	UnloadEnded(took time.Duration, failed bool)
	Evicted()
	// Decided: an engine gets an action.
	Decided(decide.ActionKind, decide.Purpose)
	// CannotLoad: from now on, requests for a model fail with this reason.
	CannotLoad(decide.Reason)
}

// Placer carries out placement. It is safe for concurrent use. Make one with [New], and run it with
// [Placer.Run].
type Placer struct {
	Config
	kick chan struct{} // capacity 1: the time of the next Decide has changed; never closed

	mu         sync.Mutex // guards the following
	state      *decide.State
	wake       time.Time
	running    context.Context // context of Run; nil before
	work       sync.WaitGroup  // goroutines of actions and endpoints; Add under mu and only while running
	started    time.Time       // when the first objects were set; zero before
	ready      bool
	paused     bool
	declared   map[decide.Key]*objects.Entry // by objects
	registered map[decide.Key]*v1alpha1.Model
	vmodels    vmodels
	world      *objects.World
	endpoints  map[string]*endpointWorker
	leaving    map[string]decide.Leaving // reasons, already logged, why endpoints are about to end
	cancels    map[decide.CopyKey]context.CancelFunc
	watchers   watchers
	unsaved    map[decide.Key]bool                // models whose status must be written; false: only their last use
	savedUse   time.Time                          // when the use of models was last written
	answers    map[decide.Key][]decide.CallResult // latest answers of engines
	restored   []store.Copy                       // records of copies whose endpoints do not exist yet
	failed     []store.Status                     // records with failures of models that do not exist yet
	records    map[string]loader.Record
	used       map[decide.Key]time.Time     // from the records of an earlier process
	refused    map[decide.Key]decide.Reason // published reasons why requests fail
	gates      map[objects.Name]store.Gate  // last published gates of pods with endpoints on trial
	rolling    bool                         // some endpoints are outgoing
}

// New returns a Placer with the records of an earlier process.
func New(c Config) (*Placer, error) {
	if c.DrainLimit == 0 {
		c.DrainLimit = decide.DrainLimit
	}
	if c.ScrapeInterval == 0 {
		c.ScrapeInterval = DefaultScrapeInterval
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
	}
	err := p.readRecords()
	// Reading the records leaves as much garbage as live data. It is returned to the OS now: the
	// next collection may be minutes away.
	debug.FreeOSMemory()
	return p, err
}

// Run carries out placement until ctx ends, and returns when all its goroutines have ended. It does
// not wait for loads in progress at engines, which are recorded. It calls begun once SetWorld may
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
				if p.rolling { // the rollout may have ended, or stopped
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

// stop ends all goroutines.
func (p *Placer) stop() {
	p.mu.Lock()
	for _, s := range p.endpoints {
		s.stop()
	}
	p.mu.Unlock()
	p.work.Wait()
	p.save(true)
}

// Pause stops new loads and unloads until it is called with false. Scrapes and publication of
// changes continue.
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

// update passes facts to the state through tell, and carries out the resulting actions.
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

// publish publishes changes. The caller holds mu.
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

// watchers are the channels of those who wait for a change of a model or a VModel, each of capacity
// 1. Placer.mu guards them.
type watchers map[decide.Key]map[chan struct{}]bool

// wake wakes those who watch a model or a VModel.
func (w watchers) wake(key decide.Key) {
	for w := range w[key] {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// noteLeaving logs that an endpoint is about to end, or stays after all. The caller holds mu.
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

// Wanted records how many requests wait for a model at one extproc, and since when; 0 means none.
func (p *Placer) Wanted(who string, key decide.Key, w decide.Want) {
	p.update(func(now time.Time) []decide.Action {
		p.state.Used(key, decide.Use{Last: now})
		p.state.Wanted(who, key, w)
		return nil
	})
}

// Unwanted removes a disconnected extproc with its waiting requests.
func (p *Placer) Unwanted(who string) {
	p.update(func(time.Time) []decide.Action { p.state.Unwanted(who); return nil })
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

// Leaving records what one extproc knows of endpoints that are about to end; the zero Leaving means
// that an endpoint stays.
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

// Drained records that a draining copy gets no requests any more and has none in flight.
func (p *Placer) Drained(key decide.CopyKey) {
	p.update(func(now time.Time) []decide.Action { return p.state.Drained(key, now) })
}

// Missing records that an engine answered that it lacks a copy. The engine is then scraped: if it
// lists its models, the list counts; a runtime that may have restarted counts as restarted, and is
// made ready.
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
