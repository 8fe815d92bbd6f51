package endpointstate

import (
	"slices"
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
	refused time.Time // when it last refused a connection
	doubted bool      // requests alone have found that; no look since has confirmed or refuted it
	ended   time.Time // when a scrape last found that nobody listens there
	dropped time.Time // when the connection of a request last broke there, or could not be made
	// stopping is when a request last began that it turned away because it is stopping.
	stopping time.Time
	born     time.Time // when the look began that found its process to be another than before
	failed   time.Time // when a request last ended with a fault of the endpoint
	full     time.Time // when it last asked for a request to be tried elsewhere
	// served is when the latest request began that ended well.
	served time.Time
}

// faulty says whether a fault counts against the endpoint.
func (h *health) faulty(now time.Time) bool {
	return !h.failed.IsZero() && now.Sub(h.failed) < forgiveness
}

// fullness is how long an endpoint that asked for a request to be tried elsewhere is taken to be full, unless it serves
// one sooner.
const fullness = time.Second

// forgiveness is how long a fault counts against an endpoint that gets no request to show that it is well. One that has
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

// stateOf says whether an endpoint may get requests, by the objects and by what control says. One whose node is silent gets them
// where no other can: it may be the node that died, or whoever listens to nodes.
func (s *State) stateOf(e *endpoint, declared objects.Endpoint, now time.Time, limits settings.Settings) pick.State {
	h, told := &e.health, s.control.leaving[declared.Address]
	silence := now.Sub(h.heard)
	terminating := declared.Terminating || told.Terminating
	switch {
	case !declared.Ready, terminating && !s.migrates(declared, told, now), h.stops(h.stopping, told.Stopping, now), e.load.Asleep, h.heard.IsZero(), h.refuses():
		return pick.Out
	case silence >= limits.Lost:
		return pick.Lost
	case terminating:
		return pick.Migrating
	case silence >= limits.Stale, declared.NodeSilent, h.drops():
		return pick.Stale
	case h.faulty(now), !h.full.IsZero() && now.Sub(h.full) < fullness:
		return pick.Suspect
	}
	return pick.Healthy
}

// unheard says whether nothing is wrong with an endpoint but that it has not answered a look yet.
func (s *State) unheard(e *endpoint, declared objects.Endpoint) bool {
	h, told := &e.health, s.control.leaving[declared.Address]
	return h.heard.IsZero() && h.refused.IsZero() && declared.Ready && !declared.Terminating && !told.Terminating
}

// migrates says whether an endpoint whose pod is being deleted serves on until its models have copies elsewhere, as control says, else as
// the objects do. Where there is no control nobody moves them, and the pod's hook waits for nothing.
func (s *State) migrates(declared objects.Endpoint, told Leaving, now time.Time) bool {
	until := declared.Migrates
	if told.Terminating {
		until = told.Migrates
	}
	return s.Placed && now.Before(until)
}

// FailOpenChange is a pool of which all endpoints are used because most look bad, or that is well again.
type FailOpenChange struct {
	Pool objects.Name
	// Open says that all are used; else the pool is well.
	Open bool
	// Faulty and Lost are how many of its endpoints are why.
	Faulty, Lost int
}

// trust makes suspects healthy where faults count against most of the endpoints of a pool that answer looks: then it
// is more likely that the requests are at fault, and the few others must not get everything. PlacementUpdate says that this changed.
func (s *State) trust(p *objects.Pool, endpoints []pick.Endpoint, now time.Time) (t FailOpenChange, news bool) {
	answer, lost, out := 0, 0, 0
	var faulty []int
	for i := range endpoints {
		switch endpoints[i].State {
		case pick.Healthy, pick.Suspect:
			answer++
			if s.endpoints[endpoints[i].Address].health.faulty(now) {
				faulty = append(faulty, i)
			}
		case pick.Lost:
			lost++
		case pick.Out:
			out++
		case pick.Stale, pick.Migrating:
		}
	}
	most := len(faulty) > 1 && 2*len(faulty) > answer
	if most {
		for _, i := range faulty {
			endpoints[i].State = pick.Healthy
		}
	}
	open := most || (lost > 0 && lost+out == len(endpoints))
	news = open != s.failOpen[p.Name]
	s.failOpen[p.Name] = open
	return FailOpenChange{p.Name, open, len(faulty), lost}, news
}

// FailOpen returns the pools of which all endpoints are used because most look bad.
func (s *State) FailOpen() []string {
	var pools []string
	for name, open := range s.failOpen {
		if open {
			pools = append(pools, name.String())
		}
	}
	return pools
}

// Refused says that an endpoint turned a connection away at the door. It is out until it answers a look that begins after this.
func (s *State) Refused(address string, now time.Time) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	s.urgent = s.urgent || e.health.doubted || e.health.drops() && !e.health.refuses() // control does not know yet
	e.health.refused, e.health.doubted = now, false
	s.looked(address, e)
	s.touch(address)
}

// Turned reports that an endpoint refused the connection of a request. The endpoint is out, as after Refused, but control is not told that its
// copies are of no use before a scrape has confirmed it.
func (s *State) RequestRefused(address string, now time.Time) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	e.health.doubted = e.health.doubted || !e.health.refuses()
	e.health.refused = now
	s.looked(address, e)
	s.touch(address)
}

// Dropped reports that a request's connection to an endpoint broke, or that no answer shows why an attempt there failed. One request says little
// about the next: other endpoints are preferred until a scrape that begins later is answered. If that scrape fails, the endpoint is out.
func (s *State) ConnectionBroken(address string, now time.Time) {
	if e := s.endpoints[address]; e != nil {
		e.health.dropped = now
		s.touch(address)
	}
}

// Vacant reports whether a scrape found that nobody listens at an endpoint, and none was answered since. Its engine may still have requests.
func (s *State) Vacant(address string) bool {
	e := s.endpoints[address]
	return e != nil && !e.health.ended.IsZero() && !e.health.heard.After(e.health.ended)
}

// drops reports whether no scrape was answered since a connection last broke.
func (h *health) drops() bool { return !h.heard.After(h.dropped) }

// Refuses says whether a look, or the inner server, has found that an endpoint refuses, and it has answered none since.
func (s *State) Refuses(address string) bool {
	e := s.endpoints[address]
	return e != nil && e.health.refuses() && !e.health.doubted
}

// refuses says whether the endpoint has answered no look since it last turned a connection away.
func (h *health) refuses() bool { return !h.heard.After(h.refused) }

// stoppingFor is how long an endpoint that said that it is stopping gets no requests, unless a look finds sooner that it
// has ended: what Kubernetes gives a pod to end, by default (terminationGracePeriodSeconds).
const stoppingFor = 30 * time.Second

// Stopping says that an endpoint turned away a request that began at a time, because it is stopping: it will end, though
// it answers looks until then. It is out until it has refused and then answers a look, or for a while. PlacementUpdate that is older
// than what is known is forgotten: the endpoint has ended since, or it is known.
func (s *State) Stopping(address string, began time.Time) {
	if e := s.endpoints[address]; e != nil && began.After(e.health.stopping) {
		e.health.stopping, s.urgent = began, true
		s.touch(address)
	}
}

// Leaving is why an endpoint is about to end. The zero Leaving is that of one that stays.
type Leaving struct {
	Terminating bool      // its pod is being deleted
	Migrates    time.Time // until when it serves on for its models to get copies elsewhere; else zero
	Stopping    time.Time // when its engine was last heard to say that it is stopping; zero if it did not, or has ended since
}

// Leaving returns the endpoints that are about to end, by what engines answered here and by the objects, without what control
// says.
func (s *State) Leaving(now time.Time) map[string]Leaving {
	all := make(map[string]Leaving)
	for _, p := range s.world.Pools {
		for _, declared := range p.Endpoints {
			l := Leaving{Terminating: declared.Terminating, Migrates: declared.Migrates}
			if h := &s.endpoints[declared.Address].health; h.stops(h.stopping, time.Time{}, now) {
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
func (s *State) Full(address string, now time.Time) {
	if e := s.endpoints[address]; e != nil {
		e.health.full = now
		s.touch(address)
	}
}

// Failed says that a request ended with an error of the endpoint. It is suspect until a request that begins after this
// ends well, or for forgiveness.
func (s *State) RequestFailed(address string, now time.Time) {
	if e := s.endpoints[address]; e != nil {
		e.health.failed = now
		s.touch(address)
	}
}

// Served says that a request that began at a time ended well.
func (s *State) RequestServed(address string, began time.Time) {
	e := s.endpoints[address]
	if e == nil || !began.After(e.health.served) {
		return
	}
	h := &e.health
	h.served = began
	was := h.failed.IsZero() && h.full.IsZero()
	if began.After(h.failed) {
		h.failed = time.Time{}
	}
	if began.After(h.full) {
		h.full = time.Time{}
	}
	if !was && h.failed.IsZero() && h.full.IsZero() {
		s.touch(address)
	}
}

// Scrape is one look at an endpoint's load, from its beginning.
type Scrape struct {
	Address string
	Began   time.Time
	told    int64
}

// Scrape begins a look at an endpoint. It ends with one of Saw, Silent or Refused.
func (s *State) Scrape(address string, now time.Time) Scrape {
	l := Scrape{Address: address, Began: now}
	if e := s.endpoints[address]; e != nil {
		l.told = e.told()
	}
	return l
}

// looked notes that a look at an endpoint has ended. The first one ends that its pools wait for its list.
func (s *State) looked(address string, e *endpoint) {
	if !e.health.looked {
		e.health.looked = true
		s.index(address)
	}
}

// Saw ends a look that the endpoint answered.
func (s *State) ScrapeSucceeded(l Scrape, load engine.Load) {
	e := s.endpoints[l.Address]
	if e == nil {
		return
	}
	s.touch(l.Address)
	if e.load.Kind != load.Kind {
		s.index(l.Address) // it may want adapters to be asked for by other names
	}
	_, known := e.load.Started.Get()
	begun := known && load.Started != e.load.Started
	if begun {
		e.health.born = l.Began
		e.begunAnew()
	}
	told := begun || load.KVTokens != e.load.KVTokens || load.Forgets != e.load.Forgets
	e.load, e.health.heard = load, l.Began
	s.looked(l.Address, e)
	e.health.doubted = e.health.doubted && e.health.refuses()
	if told {
		cache := s.cacheOf(l.Address, e)
		cache.Empty = begun
		s.caches.tell(cache)
	}
	s.Times.learn(l.Address, e, l.Began, &load)
	// The engine counted some time between the beginning and now. Taking the larger of the counts of then and now
	// makes ghosts of others' requests rarer than of none.
	_, running := load.Running.Get()
	_, waiting := load.Waiting.Get()
	e.seen = Seen{at: l.Began, known: running && waiting, requests: int(load.Running.Or(0) + load.Waiting.Or(0))}
	e.others = e.othersOf(load, max(l.told, e.told()))
	e.active(load.Active)
}

// Silent ends a look that the endpoint did not answer in time, or not in words that make sense.
func (s *State) ScrapeFailed(l Scrape) {
	e := s.endpoints[l.Address]
	if e == nil {
		return
	}
	if e.health.doubted && l.Began.After(e.health.refused) {
		e.health.doubted, s.urgent = false, true // it is not well
	}
	if e.health.drops() && !e.health.refuses() && l.Began.After(e.health.dropped) {
		e.health.refused, s.urgent = l.Began, true
	}
	s.looked(l.Address, e)
	s.touch(l.Address)
}

// Lists says what the endpoint of a look lists. PlacementUpdate of an endpoint that is gone is forgotten.
func (s *State) ModelsListed(l Scrape, m engine.Models) {
	e := s.endpoints[l.Address]
	if e == nil {
		return
	}
	was := e.lists
	e.lists = listing{m, true, l.Began}
	there, _ := s.adapters(l.Address, e)
	if was.known && slices.Equal(was.Base, m.Base) && was.Unlisted == m.Unlisted && was.MaxLength == m.MaxLength && slices.Equal(e.there, there) {
		return
	}
	s.index(l.Address)
}

// Settled says whether as much is known of every endpoint as a look tells: a process that takes the place of another decides no
// worse then.
func (s *State) Settled() bool {
	for _, p := range s.world.Pools {
		for _, declared := range p.Endpoints {
			if !s.endpoints[declared.Address].health.looked {
				return false
			}
		}
	}
	return true
}

// Reported says what an endpoint reported of its load with an answer, at a time. It counts as a look at what it tells;
// the rest stays as it was last seen, others' requests too: a report does not say what is running. One that is older
// than the last look is forgotten, and so is one of an endpoint that has to answer a scrape first: it may have been an
// engine's last word, which becomes known after a look found it gone.
func (s *State) LoadReported(address string, load engine.Load, at, now time.Time) {
	e := s.endpoints[address]
	if e == nil || e.health.refuses() || e.health.drops() || !at.After(e.health.heard) || at.After(now) {
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
		s.touch(address)
	}
}
