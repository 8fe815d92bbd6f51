// Package place puts models onto engines before and when requests need them. What is to be done is
// for package decide to know; this package tells it what becomes known and does what it says: it
// looks at engines, drives them by package load, writes down what it asks of them before it asks,
// and tells those who follow what changed.
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
	// DefaultLookInterval is between two looks at an engine: what extproc does not tell, such as an
	// adapter that people load by hand, is known after it.
	DefaultLookInterval = 2 * time.Second
	// startGrace is how long the first looks may take before those who follow are told what is
	// known without them.
	startGrace = 3 * time.Second
	// lookTimeout bounds a look: a busy engine answers late. One that must be made ready first may
	// take longer (ModelMesh waits 180 s for a runtime to be).
	lookTimeout  = 5 * time.Second
	readyTimeout = 3 * time.Minute
	// predictTimeout is ModelMesh's.
	predictTimeout = 500 * time.Millisecond
	// sizeTimeout too.
	sizeTimeout = 30 * time.Second
	// statusInterval is how often the status of models that changed is written down, all together;
	// usedInterval how often that of those is that were only used.
	statusInterval = time.Second
	usedInterval   = 10 * time.Second
)

// Config is what a Placer needs.
type Config struct {
	Memory store.Memory
	Log    *slog.Logger
	// Access is how engines are reached.
	Access engineclient.Access
	// Board is told what changed.
	Board Board
	// Meter is told of loads and unloads.
	Meter Meter
	// RegisteredPool is where models belong that clients register; zero: to the only pool of model
	// runtimes, or where there is none, of engines with a model repository.
	RegisteredPool objects.Name
	// DrainLimit, LookInterval and TickInterval are 0 for the defaults.
	DrainLimit, LookInterval, TickInterval time.Duration
}

// Board is told what changed, in order, and keeps what it is told. It must not call the Placer back
// before it returns.
type Board interface {
	Publish(decide.Change)
	// Takes says which gRPC methods the engine of an endpoint takes.
	Takes(endpoint string, methods engine.Methods)
	// Ready says that what was published is all that there is.
	Ready()
	// Behind returns those who may still send requests for a VModel where they went before, in order.
	Behind(key decide.Key) []string
	// StillSending returns those who may send requests to endpoints as if nobody had said that
	// these are leaving, in order.
	StillSending(endpoints []string) []string
	// AwaitRegistered returns when all who are connected know whether a model is registered, or
	// when they have had long enough for that.
	AwaitRegistered(key decide.Key)
}

// Meter is told how placement goes. Its methods are safe for concurrent use and quick.
type Meter interface {
	// LoadCalled: an engine was told to load a model for which requests waited, waited long after
	// the first of them came, of which stalled was for others to leave, or its turn.
	LoadCalled(waited, stalled time.Duration)
	LoadEnded(took time.Duration, failed bool)
	UnloadEnded(took time.Duration, failed bool)
	Evicted()
	// Decided: something is to be done at an engine.
	Decided(decide.ActionKind, decide.Purpose)
	// CannotLoad: those who ask for a model are told from now on that it cannot be loaded, and why.
	CannotLoad(decide.Reason)
}

// Placer is safe for concurrent use. Make one with [New], and run it with [Placer.Run].
type Placer struct {
	Config
	kick chan struct{} // capacity 1: Decide's own time has changed; never closed

	mu         sync.Mutex // guards the following
	state      *decide.State
	wake       time.Time
	running    context.Context // of Run; nil before
	work       sync.WaitGroup  // what runs for actions and endpoints; Add under mu and only while running
	started    time.Time       // when the first objects were set; zero before
	ready      bool
	paused     bool
	declared   map[decide.Key]*objects.Entry // by objects
	registered map[decide.Key]*v1alpha1.Model
	vmodels    vmodels
	world      *objects.World
	endpoints  map[string]*site
	leaving    map[string]decide.Leaving // why endpoints are about to end of which that was logged
	cancels    map[decide.CopyKey]context.CancelFunc
	watchers   map[decide.Key]map[chan struct{}]bool // each of capacity 1
	unsaved    map[decide.Key]bool                   // whose status is not written; false: it was only used
	savedUse   time.Time                             // when the use of models was written last
	answers    map[decide.Key][]AnswerStatus         // of engines, the latest
	restored   []store.Copy                          // of endpoints that are not set yet
	failed     []store.Status                        // as an earlier process wrote it, of models that are not set yet; with failures
	records    map[string]loader.Record
	used       map[decide.Key]time.Time     // as an earlier process wrote it
	refused    map[decide.Key]decide.Reason // what those who ask are told
	gates      map[objects.Name]store.Gate  // what was said last of pods with endpoints on trial
	rolling    bool                         // endpoints are outgoing
}

// New returns a Placer that knows what an earlier process wrote down.
func New(c Config) (*Placer, error) {
	if c.DrainLimit == 0 {
		c.DrainLimit = decide.DrainLimit
	}
	if c.LookInterval == 0 {
		c.LookInterval = DefaultLookInterval
	}
	if c.TickInterval == 0 {
		c.TickInterval = decide.TickInterval
	}
	p := &Placer{
		Config: c, kick: make(chan struct{}, 1), state: decide.New(decide.Config{DrainLimit: c.DrainLimit}),
		declared: make(map[decide.Key]*objects.Entry), registered: make(map[decide.Key]*v1alpha1.Model),
		world:     objects.Build(objects.Set{}),
		endpoints: make(map[string]*site), leaving: make(map[string]decide.Leaving), cancels: make(map[decide.CopyKey]context.CancelFunc),
		watchers: make(map[decide.Key]map[chan struct{}]bool), unsaved: make(map[decide.Key]bool),
		answers: make(map[decide.Key][]AnswerStatus),
		vmodels: newVModels(), records: make(map[string]loader.Record), used: make(map[decide.Key]time.Time),
		refused: make(map[decide.Key]decide.Reason), gates: make(map[objects.Name]store.Gate),
	}
	err := p.recall()
	// Reading the records leaves as much garbage as live data. It is returned to the OS now: the
	// next collection may be minutes away.
	debug.FreeOSMemory()
	return p, err
}

// Run places until ctx ends, and returns when nothing runs any more. Loads that go on at engines
// are not waited for: they are written down. It calls begun once objects may be set.
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
				if p.rolling { // the roll may have ended, or stand still
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

// stop ends what runs.
func (p *Placer) stop() {
	p.mu.Lock()
	for _, s := range p.endpoints {
		s.stop()
	}
	p.mu.Unlock()
	p.work.Wait()
	p.save(true)
}

// Pause lets no load and no unload begin until it is called with false. All else goes on: engines
// are looked at, and what is known is told.
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

// update tells the state something, and does what is to be done then.
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

// publish tells what changed. The caller holds mu.
func (p *Placer) publish(now time.Time) {
	change := p.state.Changes()
	changed := make(map[decide.Key]bool, len(change.Failures))
	for key, c := range change.Copies {
		changed[key.Key] = true
		if c.There && c.State == decide.Draining {
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
		p.tellWatchers(key)
	}
	for _, key := range change.Unnamed {
		p.loosen(key)
	}
	if len(change.VModels) > 0 {
		p.sweep()
	}
	if len(change.Copies)+len(change.Failures)+len(change.Leaving)+len(change.VModels) > 0 || change.Endpoints != nil {
		p.Board.Publish(change)
	}
	for key := range changed {
		if _, there := p.state.Status(key); !there {
			delete(p.answers, key)
		}
		p.unsaved[key] = true
		p.tellWatchers(key)
	}
	if !p.ready && !p.started.IsZero() && (p.state.Unseen() == 0 || now.Sub(p.started) >= startGrace) {
		p.ready = true
		p.Board.Ready()
	}
}

// tellWatchers wakes those who wait for something about a model or a VModel. The caller holds mu.
func (p *Placer) tellWatchers(key decide.Key) {
	for w := range p.watchers[key] {
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

// Wanted says how many requests wait for a model at an extproc, and since when; 0 is none any more.
func (p *Placer) Wanted(who string, key decide.Key, w decide.Want) {
	p.update(func(now time.Time) []decide.Action {
		p.state.Used(key, decide.Use{Last: now})
		p.state.Wanted(who, key, w)
		return nil
	})
}

// Unwanted says that an extproc has gone, and with it its requests.
func (p *Placer) Unwanted(who string) {
	p.update(func(time.Time) []decide.Action { p.state.Unwanted(who); return nil })
}

// Used says how models were used.
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

// InFlight says how many requests there are at copies.
func (p *Placer) InFlight(all map[decide.CopyKey]int) {
	p.update(func(now time.Time) []decide.Action {
		for key, n := range all {
			p.state.InFlight(key, n, now)
		}
		return nil
	})
}

// Leaving says what one of those who ask knows of endpoints that are about to end; the zero Leaving
// is that of one that stays.
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

// Drained says that nobody sends requests to a draining copy any more, and none is there.
func (p *Placer) Drained(key decide.CopyKey) {
	p.update(func(now time.Time) []decide.Action { return p.state.Drained(key, now) })
}

// Missing says that an engine answered as if it had no such copy. It is looked at: one that lists
// its models tells what it has, and a runtime that may have begun anew has, so that it is made
// ready.
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
		s.look()
	}
}
