package endpointstate

import (
	"slices"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// idle reports whether nothing uses an engine, as far as the arguments show. Own and peers are the
// numbers of requests in flight of this process and of other processes. Load is from the last page,
// and still reports that the engine's counters were the same on the page before. An engine that
// reports neither running nor waiting requests is never idle, since nothing shows the requests of
// unknown sources.
func idle(own, peers int64, load *engine.Load, still bool) bool {
	running, runs := load.Running.Get()
	waiting, waits := load.Waiting.Get()
	return own == 0 && peers == 0 && (runs || waits) && running == 0 && waiting == 0 && still
}

// Schedule is the part of a [State] that determines when endpoints are scraped. It uses the State's
// endpoints.
type Schedule struct {
	endpoints map[string]*endpoint // endpoints of the State, by address
	used      []string             // see TakeUsed
}

// Plan records when the next scrape of an endpoint is due, after a scrape that succeeded: at rarely
// if nothing uses the endpoint, otherwise at soon. It returns that time, and whether it is rarely.
// The endpoint's silence counts from then. An endpoint that is not healthy is due soon, because
// requests cannot show its recovery.
func (s *Schedule) Plan(address string, soon, rarely time.Time) (due time.Time, isIdle bool) {
	e := s.endpoints[address]
	if e == nil {
		return soon, false
	}
	e.health.due = soon
	if isIdle = e.healthy() && idle(e.inFlight.Load(), e.peers.Requests.Load(), &e.load, e.still); isIdle {
		e.health.due = rarely
	}
	for _, t := range e.times {
		t.touch() // the time has moved at which it may become stale
	}
	return e.health.due, isIdle
}

// healthy reports whether the endpoint is healthy in the latest view, in each of its pools.
func (e *endpoint) healthy() bool {
	for _, t := range e.times {
		if t.standing.State != pick.Healthy {
			return false
		}
	}
	return len(e.times) > 0
}

// same reports whether two loads are equal.
func same(a, b *engine.Load) bool {
	return a.Kind == b.Kind && a.Running == b.Running && a.Waiting == b.Waiting && a.Deferred == b.Deferred && a.KVUsage == b.KVUsage &&
		a.KVTokens == b.KVTokens && a.Forgets == b.Forgets && a.MaxAdapters == b.MaxAdapters && a.Asleep == b.Asleep &&
		a.Started == b.Started && slices.Equal(a.Active, b.Active) && a.Totals == b.Totals
}

// silentSince returns when the endpoint's silence began: when the first scrape after the last
// answer was due. It is in the future while no scrape is due.
func (h *health) silentSince() time.Time {
	if h.due.After(h.answeredAt) {
		return h.due
	}
	return h.answeredAt
}

// TakeUsed returns the endpoints at which other processes reported their first requests since the
// previous call.
func (s *Schedule) TakeUsed() []string {
	used := s.used
	s.used = nil
	return used
}
