package endpointstate

import (
	"slices"
	"time"
)

// Leases are the requests in flight whose end may be reported by another stream than their own, or
// never. They are stored by request id. The zero Leases is empty. Leases is not safe for concurrent
// use.
type Leases struct{ current map[string]lease }

type lease struct {
	began, until time.Time
	most         time.Duration
}

// Seen is the number of requests that the last scrape counted at an endpoint.
type Seen struct {
	at       time.Time // start of the scrape
	known    bool
	requests int
}

// transit is how long a request may take until the engine has it, so that a scrape counts it.
const transit = time.Second

// Begin starts a lease. The lease ends with [Leases.End], when a scrape shows that the request must
// have ended, or when the duration most has passed.
func (l *Leases) Begin(id string, now time.Time, most time.Duration) {
	if l.current == nil {
		l.current = make(map[string]lease)
	}
	l.current[id] = lease{now, now.Add(most), most}
}

// Renew extends a lease by its original duration because the request made progress. Unknown ids are
// ignored.
func (l *Leases) Renew(id string, now time.Time) {
	if is, known := l.current[id]; known {
		is.until = now.Add(is.most)
		l.current[id] = is
	}
}

// End ends a lease.
func (l *Leases) End(id string) { delete(l.current, id) }

// Len returns the number of leases.
func (l *Leases) Len() int { return len(l.current) }

// Over ends expired leases. It also ends the oldest leases at endpoints where the last scrape
// counted fewer requests than there are old leases, because some data planes never report the end
// of a request. It returns the ids of the expired leases as late, and the others as gone. Where
// returns the endpoint of a request.
func (l *Leases) Over(now time.Time, looks map[string]Seen, where func(id string) string) (late, gone []string) {
	at := make(map[string][]string) // ids of old leases by address
	for id, is := range l.current {
		address := where(id)
		switch look, ok := looks[address]; {
		case is.until.Before(now):
			late = append(late, id)
		case ok && is.began.Add(transit).Before(look.at):
			at[address] = append(at[address], id)
		}
	}
	for address, ids := range at {
		excess := len(ids) - looks[address].requests
		if excess <= 0 {
			continue
		}
		slices.SortFunc(ids, func(a, b string) int { return l.current[a].began.Compare(l.current[b].began) })
		gone = append(gone, ids[:excess]...)
	}
	for _, id := range slices.Concat(late, gone) {
		l.End(id)
	}
	return late, gone
}

// ScrapedRequests returns the requests in the last scrape of each endpoint that reports them.
func (s *State) ScrapedRequests() map[string]Seen {
	all := make(map[string]Seen, len(s.endpoints))
	for address, e := range s.endpoints {
		if e.seen.known {
			all[address] = e.seen
		}
	}
	return all
}
