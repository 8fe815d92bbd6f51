package flow

import (
	"cmp"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Reasons are all reasons to wait.
var Reasons = [...]Reason{Endpoint, Copy, Room, Turn}

// String returns the reason as a label: "endpoint", "copy", "room" or "turn".
func (r Reason) String() string {
	return [...]string{Endpoint: "endpoint", Copy: "copy", Room: "room", Turn: "turn"}[r]
}

// Held are the waiting requests of one pool and band that wait for the same reason.
type Held struct {
	Pool     objects.Name
	Band     int32
	Reason   Reason
	Requests int
	Since    time.Time // arrival of the first of them
}

// Held returns the waiting requests, sorted by pool, band and reason. It takes time in proportion
// to their number.
func (f *Flow) Held() []Held {
	if !f.Any() {
		return nil
	}
	all := make(map[Held]Held) // the key has no Requests and Since
	f.mu.Lock()
	for name, p := range f.pools {
		for _, l := range p.lines {
			reason := l.why
			if l.ready {
				reason = Turn
			}
			for e := l.tickets.Front(); e != nil; e = e.Next() {
				t := e.Value.(*Ticket)
				key := Held{Pool: name, Band: t.place.Band(), Reason: reason}
				h, known := all[key]
				if !known {
					h = key
					h.Since = t.since
				}
				h.Requests++
				if t.since.Before(h.Since) {
					h.Since = t.since
				}
				all[key] = h
			}
		}
	}
	f.mu.Unlock()
	sorted := make([]Held, 0, len(all))
	for _, h := range all {
		sorted = append(sorted, h)
	}
	slices.SortFunc(sorted, func(a, b Held) int {
		return cmp.Or(a.Pool.Compare(b.Pool), cmp.Compare(a.Band, b.Band), cmp.Compare(a.Reason, b.Reason))
	})
	return sorted
}
