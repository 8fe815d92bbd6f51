package fleet

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
)

// leases are the requests in flight whose end may be reported by another stream than their own, or
// never.
type leases struct {
	// mu guards current and requests. Lock order: leases.mu, InFlight.mu, Fleet.mu, then
	// flow.Flow's mu or prefixes.mu.
	mu       sync.Mutex
	current  endpointstate.Leases
	requests map[string]*InFlight // requests with a lease, and those that Keep stored
	inferred atomic.Int64
	expired  atomic.Int64
}

// keep stores a request until take removes it. The caller holds mu.
func (l *leases) keep(id string, i *InFlight) {
	if l.requests == nil {
		l.requests = make(map[string]*InFlight)
	}
	l.requests[id] = i
}

// take removes and returns a request. The caller holds mu.
func (l *leases) take(id string) *InFlight {
	request := l.requests[id]
	delete(l.requests, id)
	return request
}

// Lease counts a request as in flight until [Fleet.Release] is called, until a scrape shows that
// the request must have ended, or until the duration most has passed.
func (f *Fleet) Lease(id string, i *InFlight, most time.Duration) {
	now := f.Now()
	f.leases.mu.Lock()
	defer f.leases.mu.Unlock()
	f.leases.current.Begin(id, now, most)
	f.leases.keep(id, i)
}

// Keep stores a request without a lease, so that [Fleet.Release] can end it.
func (f *Fleet) Keep(id string, i *InFlight) {
	f.leases.mu.Lock()
	defer f.leases.mu.Unlock()
	f.leases.keep(id, i)
}

// completed records the number of output tokens of a request with a lease.
func (f *Fleet) completed(id string, tokens int64) {
	f.leases.mu.Lock()
	defer f.leases.mu.Unlock()
	f.leases.requests[id].Completed(tokens)
}

// Renew extends the lease of a request that made progress, see [endpointstate.Leases.Renew].
func (f *Fleet) Renew(id string) {
	now := f.Now()
	f.leases.mu.Lock()
	defer f.leases.mu.Unlock()
	f.leases.current.Renew(id, now)
}

// Release ends a request and its lease. It ignores an unknown id.
func (f *Fleet) Release(id string) {
	f.leases.mu.Lock()
	f.leases.current.End(id)
	request := f.leases.take(id)
	f.leases.mu.Unlock()
	request.End()
}

// endLeases ends the requests whose leases have expired, or that a scrape found to have ended.
func (f *Fleet) endLeases() {
	var looks map[string]endpointstate.Seen
	f.locked(func() { looks = f.state.ScrapedRequests() })
	f.leases.mu.Lock()
	late, gone := f.leases.current.Over(f.Now(), looks, func(id string) string { return f.leases.requests[id].where() })
	ended := make([]*InFlight, 0, len(late)+len(gone))
	for _, ids := range [][]string{late, gone} {
		for _, id := range ids {
			ended = append(ended, f.leases.take(id))
		}
	}
	f.leases.mu.Unlock()
	for _, request := range ended {
		request.End()
	}
	f.leases.expired.Add(int64(len(late)))
	f.leases.inferred.Add(int64(len(gone)))
}

// Leases is the current number of leases, and the numbers of leases that ended without a report
// since this process started: Inferred by a scrape, and Expired by their timeout.
type Leases struct {
	Current           int
	Inferred, Expired int64
}

// Leases returns the current Leases.
func (f *Fleet) Leases() Leases {
	f.leases.mu.Lock()
	defer f.leases.mu.Unlock()
	return Leases{f.leases.current.Len(), f.leases.inferred.Load(), f.leases.expired.Load()}
}
