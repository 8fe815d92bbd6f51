package endpointstate

import (
	"slices"
	"time"
)

// Leases are the requests in flight whose end will be reported, if at all, apart from the stream that began them, by their ids.
// The zero Leases has none. It is not safe for concurrent use.
type Leases struct{ current map[string]lease }

type lease struct {
	began, until time.Time
	most         time.Duration
}

// Seen is how many requests the last look saw at an endpoint.
type Seen struct {
	at       time.Time // when the look began
	known    bool
	requests int
}

// transit is how long a request may be on its way to an engine before a look must see it there.
const transit = time.Second

// Begin has a request in flight until [Leases.End] of its id, until a look shows that it must have ended, or for at most a time.
func (l *Leases) Begin(id string, now time.Time, most time.Duration) {
	if l.current == nil {
		l.current = make(map[string]lease)
	}
	l.current[id] = lease{now, now.Add(most), most}
}

// Renew says that a request was seen to go on: it is in flight for as long again. One that is not known, or no longer, stays so.
func (l *Leases) Renew(id string, now time.Time) {
	if is, known := l.current[id]; known {
		is.until = now.Add(is.most)
		l.current[id] = is
	}
}

// End forgets a lease.
func (l *Leases) End(id string) { delete(l.current, id) }

// Len is how many there are.
func (l *Leases) Len() int { return len(l.current) }

// Over ends the leases that ran out, and of those that are long at an endpoint the oldest that are more than the last look saw
// there: a data plane that shows only the beginning of answers reports no end. It returns the ids of both. Where says at which
// endpoint the request of an id is.
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

// Looks returns what the last look saw at each endpoint where that is known.
func (s *State) Looks() map[string]Seen {
	all := make(map[string]Seen, len(s.endpoints))
	for address, e := range s.endpoints {
		if e.seen.known {
			all[address] = e.seen
		}
	}
	return all
}
