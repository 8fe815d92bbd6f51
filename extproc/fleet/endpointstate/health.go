package endpointstate

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// health describes how well an endpoint works. A time is zero if the event never happened.
type health struct {
	scraped    bool      // whether any scrape has ended, with any result
	answeredAt time.Time // start of the last scrape that succeeded
	due        time.Time // time when the next scrape after it was due; see Schedule.Plan
	refused    time.Time // time of the last refused connection
	doubted    bool      // only requests found the refusal so far, and no scrape has confirmed it
	ended      time.Time // time of the last scrape that found no listener
	dropped    time.Time // time when a request's connection last broke
	// stopping is the start of the latest request that the engine rejected because it is stopping.
	stopping time.Time
	born     time.Time // start of the scrape that found a new process
	failed   time.Time // time of the last failure that was the endpoint's fault
	full     time.Time // time of the last rejection for lack of room
	// served is the start of the latest request that succeeded.
	served time.Time
}

// faulty reports whether a recent fault still counts against the endpoint.
func (h *health) faulty(now time.Time) bool {
	return !h.failed.IsZero() && now.Sub(h.failed) < forgiveness
}

// fullness is how long an endpoint stays suspect after it rejected a request for lack of room,
// unless it serves a request sooner.
const fullness = time.Second

// forgiveness is how long a fault counts against an endpoint that gets no more requests. A busy
// endpoint that still fails becomes suspect again with its next request.
const forgiveness = 10 * time.Second

// stops is true if the endpoint is stopping. It uses the later of two reports: here is the time of
// this process's report, elsewhere that of control's.
func (h *health) stops(here, elsewhere, now time.Time) bool {
	said := here
	if elsewhere.After(said) {
		said = elsewhere
	}
	return said.After(h.refused) && said.After(h.born) && now.Sub(said) < stoppingFor
}

// stateOf returns the state of an endpoint, from its health, the objects and control's reports, and
// the reason for the state. An endpoint on a silent node is only stale, because only the node's
// connection to its monitor may have failed.
func (s *State) stateOf(e *endpoint, declared objects.Endpoint, now time.Time, limits settings.Settings) (pick.State, Reason) {
	h, told := &e.health, s.control.leaving[declared.Address]
	silence := now.Sub(h.silentSince())
	terminating := declared.Terminating || told.Terminating
	switch {
	case !declared.Ready:
		return pick.Out, NotReady
	case terminating && !s.migrates(declared, told, now):
		return pick.Out, Terminating
	case h.stops(h.stopping, told.Stopping, now):
		return pick.Out, EngineStopping
	case e.load.Asleep:
		return pick.Out, EngineAsleep
	case h.refuses() && !h.refused.IsZero():
		return pick.Out, ConnectionRefused
	case h.answeredAt.IsZero():
		return pick.Out, NeverAnswered
	case silence >= limits.LostAfter:
		return pick.Lost, ScrapesUnanswered
	case terminating:
		return pick.Migrating, Terminating
	case silence >= limits.StaleAfter:
		return pick.Stale, ScrapesUnanswered
	case declared.NodeSilent:
		return pick.Stale, NodeSilent
	case h.drops():
		return pick.Stale, ConnectionReset
	case h.faulty(now):
		return pick.Suspect, RequestsFail
	case !h.full.IsZero() && now.Sub(h.full) < fullness:
		return pick.Suspect, QueueFull
	}
	return pick.Healthy, ""
}

// stateHolds returns for how long the result of stateOf is certainly the same if nothing is
// reported.
func stateHolds(s *State, e *endpoint, declared *objects.Endpoint, now time.Time, limits settings.Settings) time.Duration {
	h, told := &e.health, s.control.leaving[declared.Address]
	holds := time.Duration(math.MaxInt64)
	for _, change := range [...]time.Time{
		h.silentSince().Add(limits.StaleAfter), h.silentSince().Add(limits.LostAfter), h.failed.Add(forgiveness), h.full.Add(fullness),
		h.stopping.Add(stoppingFor), told.Stopping.Add(stoppingFor), declared.Migrates, told.Migrates,
	} {
		if left := change.Sub(now); left > 0 {
			holds = min(holds, left)
		}
	}
	return holds
}

// Condition is the state of an endpoint as control learns it.
type Condition struct {
	Endpoint string
	// Known is false before the first scrape has ended.
	Known  bool
	State  pick.State
	Reason Reason // why it is not healthy
}

// Conditions visits the condition of every endpoint of a State. An endpoint of several pools has
// the best of their states.
func Conditions(s *State, now time.Time, visit func(Condition)) {
	for address, pools := range s.pools {
		e := s.endpoints[address]
		is := Condition{Endpoint: address, Known: e.health.scraped, State: pick.Out}
		for i, name := range pools {
			p := s.world.Pools[name]
			at, _ := slices.BinarySearchFunc(p.Endpoints, address, func(e objects.Endpoint, address string) int {
				return strings.Compare(e.Address, address)
			})
			state, reason := s.stateOf(e, p.Endpoints[at], now, s.Settings.For(p))
			if i == 0 || state < is.State {
				is.State, is.Reason = state, reason
			}
		}
		visit(is)
	}
}

// unscraped reports whether the only problem of an endpoint is that it has not yet answered a
// scrape.
func (s *State) unscraped(e *endpoint, declared objects.Endpoint) bool {
	h, told := &e.health, s.control.leaving[declared.Address]
	return h.answeredAt.IsZero() && h.refused.IsZero() && declared.Ready && !declared.Terminating && !told.Terminating
}

// migrates is true if an endpoint whose pod is being deleted serves until its models have copies
// elsewhere. Control may report this before the objects show it. Without control nothing moves the
// models, and the pod's hook does not wait.
func (s *State) migrates(declared objects.Endpoint, told Leaving, now time.Time) bool {
	until := declared.Migrates
	if told.Terminating {
		until = told.Migrates
	}
	return s.Placed && now.Before(until)
}

// FailOpenChange reports that a pool uses all its endpoints because most are unhealthy, or that it
// has recovered.
type FailOpenChange struct {
	Pool objects.Name
	// Open reports that all endpoints are used. False means that the pool has recovered.
	Open bool
	// Faulty and Lost are the numbers of endpoints with a fault, and of lost endpoints.
	Faulty, Lost int
}

// FailOpen returns the pools that use all endpoints because most are unhealthy.
func (s *State) FailOpen() []string {
	var pools []string
	for name, open := range s.failOpen {
		if open {
			pools = append(pools, name.String())
		}
	}
	return pools
}

// Refused records that an endpoint refused the connection of a scrape. It is out until a later
// scrape succeeds.
func (s *State) Refused(address string, now time.Time) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	s.urgent = s.urgent || e.health.doubted || e.health.drops() && !e.health.refuses() // control does not know the refusal yet
	e.health.refused, e.health.doubted = now, false
	s.scraped(address, e)
	s.touch(address)
}

// RequestRefused records that an endpoint refused the connection of a request. The endpoint is then
// out, as with [State.Refused], but control is informed only after a scrape has confirmed the
// refusal.
func (s *State) RequestRefused(address string, now time.Time) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	e.health.doubted = e.health.doubted || !e.health.refuses()
	e.health.refused = now
	s.scraped(address, e)
	s.touch(address)
}

// ConnectionBroken records that a request's connection broke, or that an attempt failed for an
// unknown reason. Other endpoints are preferred until a later scrape succeeds. If the next scrape
// fails, the endpoint is out.
func (s *State) ConnectionBroken(address string, now time.Time) {
	if e := s.endpoints[address]; e != nil {
		e.health.dropped = now
		s.touch(address)
	}
}

// Vacant reports whether a scrape found no listener at an endpoint, and no later scrape succeeded.
// The engine that was there may still process requests.
func (s *State) Vacant(address string) bool {
	e := s.endpoints[address]
	return e != nil && !e.health.ended.IsZero() && !e.health.answeredAt.After(e.health.ended)
}

// drops is true if no scrape has succeeded since a connection last broke.
func (h *health) drops() bool { return !h.answeredAt.After(h.dropped) }

// Refuses reports whether a scrape or the relay found that an endpoint refuses connections, and no
// later scrape succeeded.
func (s *State) Refuses(address string) bool {
	e := s.endpoints[address]
	return e != nil && e.health.refuses() && !e.health.doubted
}

// refuses is true if no scrape has succeeded since the endpoint last refused a connection.
func (h *health) refuses() bool { return !h.answeredAt.After(h.refused) }

// stoppingFor is how long a stopping endpoint gets no requests, unless a scrape finds earlier that
// the engine has ended. It equals the default terminationGracePeriodSeconds of Kubernetes.
const stoppingFor = 30 * time.Second

// Stopping records that an endpoint rejected a request because the engine is stopping. Began is the
// start of that request. The endpoint is out until it has refused connections and then answers a
// scrape, or for stoppingFor. Older reports are ignored.
func (s *State) Stopping(address string, began time.Time) {
	if e := s.endpoints[address]; e != nil && began.After(e.health.stopping) {
		e.health.stopping, s.urgent = began, true
		s.touch(address)
	}
}

// Leaving returns the endpoints that will end soon, from the objects and the answers of engines,
// without control's reports.
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

// Full records that an endpoint rejected a request for lack of room. The endpoint is suspect until
// a later request succeeds, or for fullness.
func (s *State) Full(address string, now time.Time) {
	if e := s.endpoints[address]; e != nil {
		e.health.full = now
		e.window.rejected(e.inFlight.Load())
		s.touch(address)
	}
}

// RequestFailed records that a request failed because of the endpoint. The endpoint is suspect
// until a later request succeeds, or for forgiveness.
func (s *State) RequestFailed(address string, now time.Time) {
	if e := s.endpoints[address]; e != nil {
		e.health.failed = now
		s.touch(address)
	}
}

// RequestServed records that a request succeeded. Began is the start of the request.
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

// Scrape is one scrape of an endpoint; it stores when the scrape began.
type Scrape struct {
	Address string
	Began   time.Time
	// Steady is Began on the clock of the times in [pick.Backlog], which is never set back.
	Steady time.Time
	known  int64
}

// Scrape starts a scrape of an endpoint. ScrapeSucceeded, ScrapeFailed or Refused ends it. If the
// clock may be set back, the caller must then set Steady.
func (s *State) Scrape(address string, now time.Time) Scrape {
	l := Scrape{Address: address, Began: now, Steady: now}
	if e := s.endpoints[address]; e != nil {
		l.known = e.knownRequests()
	}
	return l
}

// scraped records that a scrape has ended. After the first scrape of an endpoint, its pools no
// longer wait for the endpoint's list.
func (s *State) scraped(address string, e *endpoint) {
	if !e.health.scraped {
		e.health.scraped = true
		s.index(address)
	}
}

// ScrapeSucceeded ends a scrape that the endpoint answered.
func (s *State) ScrapeSucceeded(l Scrape, load engine.Load) {
	e := s.endpoints[l.Address]
	if e == nil {
		return
	}
	unchanged, others := e.healthy() && same(&e.load, &load), e.others
	if e.load.Kind != load.Kind {
		s.index(l.Address) // the engine's names of adapters may have changed
	}
	_, known := e.load.Started.Get()
	begun := known && load.Started != e.load.Started
	if begun {
		e.health.born = l.Began
		e.begunAnew()
	}
	e.still = load.Totals == e.load.Totals
	told := begun || load.KVTokens != e.load.KVTokens || load.Forgets != e.load.Forgets
	e.load, e.health.answeredAt = load, l.Began
	s.scraped(l.Address, e)
	e.health.doubted = e.health.doubted && e.health.refuses()
	if told {
		cache := s.cacheOf(l.Address, e)
		cache.Empty = begun
		s.caches.add(cache)
	}
	s.Times.learn(l.Address, e, l.Began, &load)
	// The engine counted its requests at some moment between the start of the scrape and now. This
	// process uses the larger of its own counts at these two times, so that its requests do not
	// look like load of other sources.
	_, running := load.Running.Get()
	_, waiting := load.Waiting.Get()
	e.seen = Seen{at: l.Began, known: running && waiting, requests: int(min(load.Running.Or(0)+load.Waiting.Or(0), mostRequests))}
	e.others = e.othersOf(load, max(l.known, e.knownRequests()))
	e.window.scraped(e.inFlight.Load(), load.Running, load.Waiting)
	slots, _ := load.MaxAdapters.Get()
	full := slots > 0 && float64(max(e.adapters.Load(), int64(len(load.Active)))) > slots
	e.batch.scraped(l.Began, &load, full, time.Unix(0, e.backlog.Queue.Load()).Sub(l.Steady))
	e.active(load.Active)
	if !unchanged || e.others != others { // otherwise a new view would be the same
		s.touch(l.Address)
	}
}

// ScrapeFailed ends a scrape that got no valid answer in time.
func (s *State) ScrapeFailed(l Scrape) {
	e := s.endpoints[l.Address]
	if e == nil {
		return
	}
	if e.health.doubted && l.Began.After(e.health.refused) {
		e.health.doubted, s.urgent = false, true // the scrape confirms the refusal
	}
	if e.health.drops() && !e.health.refuses() && l.Began.After(e.health.dropped) {
		e.health.refused, s.urgent = l.Began, true
	}
	s.scraped(l.Address, e)
	s.touch(l.Address)
}

// ModelsListed records the model list that a scrape read. Unknown endpoints are ignored.
func (s *State) ModelsListed(l Scrape, m engine.Models) {
	e := s.endpoints[l.Address]
	if e == nil {
		return
	}
	was := e.lists
	e.lists = listing{m, true, l.Began}
	there, _ := s.adapters(l.Address, e)
	if was.known && was.Kind == m.Kind && slices.Equal(was.Base, m.Base) && was.Unlisted == m.Unlisted && was.MaxLength == m.MaxLength &&
		slices.Equal(e.there, there) {
		return
	}
	s.index(l.Address)
}

// Settled reports whether every endpoint was scraped, so that a process that takes over decides as
// well as the process that it replaces.
func (s *State) Settled() bool {
	for _, p := range s.world.Pools {
		for _, declared := range p.Endpoints {
			if !s.endpoints[declared.Address].health.scraped {
				return false
			}
		}
	}
	return true
}

// LoadReported records the load that an endpoint reported with an answer. It replaces the last
// scrape's values that the report also contains. The load of other sources stays the same, since
// the report has no count of running requests. The report is ignored if it is older than the last
// scrape, or if the endpoint must answer a scrape first: it may be the last answer of an engine
// that has ended.
func (s *State) LoadReported(address string, load engine.Load, at, now time.Time) {
	e := s.endpoints[address]
	if e == nil || e.health.refuses() || e.health.drops() || !at.After(e.health.answeredAt) || at.After(now) {
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
		e.health.answeredAt = at
		s.touch(address)
	}
}
