package fleet

import (
	"hash/fnv"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// health is what is known of an endpoint's well-being. A time is zero if the thing never happened.
type health struct {
	looked  bool      // a look has ended, whatever it found
	heard   time.Time // when the last look that the endpoint answered began
	refused time.Time // when it last turned a connection away or dropped one
	// stopping is when a request last began that it turned away because it is stopping.
	stopping time.Time
	born     time.Time // when the look began that found its process to be another than before
	failed   time.Time // when a request last ended with a fault of the endpoint
	full     time.Time // when it last asked for a request to be tried elsewhere
	// served is when the latest request began that ended well.
	served time.Time
}

// faulty says whether a fault is held against the endpoint.
func (h *health) faulty(now time.Time) bool {
	return !h.failed.IsZero() && now.Sub(h.failed) < forgiveness
}

// fullness is how long an endpoint that asked for a request to be tried elsewhere is taken to be full, unless it serves
// one sooner.
const fullness = time.Second

// forgiveness is how long a fault is held against an endpoint that gets no request to show that it is well. One that has
// many requests and still fails is suspect again with the next.
const forgiveness = 10 * time.Second

// stops says whether the endpoint is stopping, as it said last at one of two times: it has not ended since.
func (h *health) stops(here, elsewhere, now time.Time) bool {
	said := here
	if elsewhere.After(said) {
		said = elsewhere
	}
	return said.After(h.refused) && said.After(h.born) && now.Sub(said) < stoppingFor
}

// state says whether the endpoint may get requests, where told is what control says of it. One whose node is silent gets them
// where no other can: it may be the node that died, or whoever listens to nodes.
func (e *endpoint) state(declared objects.Endpoint, told Leaving, now time.Time, limits settings.Settings) pick.State {
	h := &e.health
	silence := now.Sub(h.heard)
	switch {
	case !declared.Ready, told.Terminating, h.stops(h.stopping, told.Stopping, now), e.load.Asleep, h.heard.IsZero(), !h.heard.After(h.refused):
		return pick.Out
	case silence >= limits.Lost:
		return pick.Lost
	case silence >= limits.Stale, declared.NodeSilent:
		return pick.Stale
	case h.faulty(now), !h.full.IsZero() && now.Sub(h.full) < fullness:
		return pick.Suspect
	}
	return pick.Healthy
}

// trust makes suspects healthy where faults are held against most of the endpoints of a pool that answer looks: then it
// is more likely that the requests are at fault, and the few others must not get everything. It says so once.
func (f *Fleet) trust(p *objects.Pool, endpoints []pick.Endpoint, now time.Time) {
	answer, lost, out := 0, 0, 0
	var faulty []int
	for i := range endpoints {
		switch endpoints[i].State {
		case pick.Healthy, pick.Suspect:
			answer++
			if f.endpoints[endpoints[i].Address].health.faulty(now) {
				faulty = append(faulty, i)
			}
		case pick.Lost:
			lost++
		case pick.Out:
			out++
		}
	}
	most := len(faulty) > 1 && 2*len(faulty) > answer
	if most {
		for _, i := range faulty {
			endpoints[i].State = pick.Healthy
		}
	}
	open := most || (lost > 0 && lost+out == len(endpoints))
	if open == f.failOpen[p.Name] {
		return
	}
	f.failOpen[p.Name] = open
	if open {
		f.Log.Warn("most endpoints of the pool look bad: all that are there are used", "pool", p.Name.String(), "faulty", len(faulty), "lost", lost)
	} else {
		f.Log.Info("the pool is well again", "pool", p.Name.String())
	}
}

// FailOpen returns the pools of which all endpoints are used because most look bad.
func (f *Fleet) FailOpen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var pools []string
	for name, open := range f.failOpen {
		if open {
			pools = append(pools, name.String())
		}
	}
	return pools
}

// Refused says that an endpoint turned a connection away at the door, or dropped one. The endpoint is out until it
// answers a look that begins after this.
func (f *Fleet) Refused(address string) {
	f.change(address, func(e *endpoint) { e.health.refused, e.health.looked = f.Now(), true })
}

// stoppingFor is how long an endpoint that said that it is stopping gets no requests, unless a look finds sooner that it
// has ended: what Kubernetes gives a pod to end, by default (terminationGracePeriodSeconds).
const stoppingFor = 30 * time.Second

// Stopping says that an endpoint turned away a request that began at a time, because it is stopping: it will end, though
// it answers looks until then. It is out until it has refused and then answers a look, or for a while. News that is older
// than what is known is forgotten: the endpoint has ended since, or it is known.
func (f *Fleet) Stopping(address string, began time.Time) {
	f.change(address, func(e *endpoint) {
		if began.After(e.health.stopping) {
			e.health.stopping = began
			f.hurry()
		}
	})
}

// Leaving is why an endpoint is about to end. The zero Leaving is that of one that stays.
type Leaving struct {
	Terminating bool      // its pod is being deleted
	Stopping    time.Time // when its engine was last heard to say that it is stopping; zero if it did not, or has ended since
}

// Leaving returns the endpoints that are about to end, by what engines answered here and by the objects, without what control
// says.
func (f *Fleet) Leaving() map[string]Leaving {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.Now()
	all := make(map[string]Leaving)
	for _, p := range f.world.Pools {
		for _, declared := range p.Endpoints {
			l := Leaving{Terminating: declared.Terminating}
			if h := &f.endpoints[declared.Address].health; h.stops(h.stopping, time.Time{}, now) {
				l.Stopping = h.stopping
			}
			if l != (Leaving{}) {
				all[declared.Address] = l
			}
		}
	}
	return all
}

// Full says that an endpoint would not take a request that another may take. It is suspect until a request that begins
// after this ends well, or for a moment.
func (f *Fleet) Full(address string) {
	f.change(address, func(e *endpoint) { e.health.full = f.Now() })
}

// Failed says that a request ended with an error of the endpoint. It is suspect until a request that begins after this
// ends well, or for forgiveness.
func (f *Fleet) Failed(address string) {
	f.change(address, func(e *endpoint) { e.health.failed = f.Now() })
}

// Served says that a request that began at a time ended well.
func (f *Fleet) Served(address string, began time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoints[address]
	if e == nil || !began.After(e.health.served) {
		return
	}
	e.health.served = began
	h := &e.health
	was := h.failed.IsZero() && h.full.IsZero()
	if began.After(h.failed) {
		h.failed = time.Time{}
	}
	if began.After(h.full) {
		h.full = time.Time{}
	}
	if !was && h.failed.IsZero() && h.full.IsZero() {
		f.publish()
	}
}

// change changes an endpoint and publishes it at once. An endpoint that is gone is forgotten.
func (f *Fleet) change(address string, apply func(*endpoint)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.endpoints[address]; e != nil {
		apply(e)
		f.publish()
	}
}

// Look is one look at an endpoint's load, from its beginning.
type Look struct {
	fleet   *Fleet
	address string
	began   time.Time
	ours    int64
}

// Look begins a look at an endpoint. It ends with one of Saw, Failed or [Fleet.Refused].
func (f *Fleet) Look(address string) Look {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := Look{fleet: f, address: address, began: f.Now()}
	if e := f.endpoints[address]; e != nil {
		l.ours = e.inFlight.Load()
	}
	return l
}

// Saw ends a look that the endpoint answered.
func (l Look) Saw(load engine.Load) {
	l.fleet.mu.Lock()
	defer l.fleet.mu.Unlock()
	e := l.fleet.endpoints[l.address]
	if e == nil {
		return
	}
	if e.load.Kind != load.Kind {
		l.fleet.indexes = nil // it may want adapters to be asked for by other names
	}
	if _, known := e.load.Started.Get(); known && load.Started != e.load.Started {
		e.health.born = l.began
	}
	e.load, e.health.heard, e.health.looked = load, l.began, true
	// The engine counted some time between the beginning and now. Taking the larger of our own counts of then and now
	// makes ghosts of others' requests rarer than of none.
	_, running := load.Running.Get()
	_, waiting := load.Waiting.Get()
	e.seen = seen{at: l.began, known: running && waiting, requests: int(load.Running.Or(0) + load.Waiting.Or(0))}
	ours := max(l.ours, e.inFlight.Load())
	e.others = max(0, int64(load.Running.Or(0)+load.Waiting.Or(0))-ours)
	l.fleet.tell()
}

// Failed ends a look that the endpoint did not answer in time, or not in words that make sense.
func (l Look) Failed() {
	f := l.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.endpoints[l.address]; e != nil {
		e.health.looked = true
	}
	f.tell()
}

// Settled says whether as much is known of every endpoint as a look tells, and all that control has to say, if there is control: a
// process that takes the place of another decides no worse then.
func (f *Fleet) Settled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.world.Pools {
		for _, declared := range p.Endpoints {
			if !f.endpoints[declared.Address].health.looked {
				return false
			}
		}
	}
	return !f.Placed || f.Heard()
}

// Reported says what an endpoint reported of its load with an answer, at a time. It counts as a look at what it tells;
// the rest stays as it was last seen, others' requests too: a report does not say what is running. One that is older
// than the last look is forgotten.
func (f *Fleet) Reported(address string, load engine.Load, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoints[address]
	if e == nil || !at.After(e.health.heard) || at.After(f.Now()) {
		return
	}
	_, waiting := load.Waiting.Get()
	_, usage := load.KVUsage.Get()
	if waiting {
		e.load.Waiting = load.Waiting
	}
	if usage {
		e.load.KVUsage = load.KVUsage
	}
	if waiting || usage {
		e.health.heard = at
		f.tell()
	}
}

func hash(address string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(address))
	return h.Sum64()
}
