package limits_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/internal/objects"
)

// A request that the relay sends again keeps its place until the relay releases it, also if its
// count as in flight ends in the meantime. In the end nothing is left.
func TestHold(t *testing.T) {
	one := &objects.Sharing{PerRoute: objects.Limit{Concurrent: 1}}
	for name, run := range map[string]func(b *limits.Book, q *limits.Ticket, taken func(string, bool)){
		"ends while it is held": func(b *limits.Book, q *limits.Ticket, taken func(string, bool)) {
			release := b.Hold("id")
			q.End()
			taken("it is held", true)
			release()
			release()
			taken("it is released", false)
		},
		"ends later": func(b *limits.Book, q *limits.Ticket, taken func(string, bool)) {
			b.Hold("id")()
			taken("it is released, and runs", true)
			q.End()
		},
		"is held twice": func(b *limits.Book, q *limits.Ticket, taken func(string, bool)) {
			first, second := b.Hold("id"), b.Hold("id")
			q.End()
			first()
			taken("one has not released it", true)
			second()
		},
		"has an outcome while it is held": func(b *limits.Book, q *limits.Ticket, taken func(string, bool)) {
			release := b.Hold("id")
			b.Settle("id", 1, true)
			q.End()
			taken("it is held", true)
			release()
		},
		"is cancelled": func(b *limits.Book, q *limits.Ticket, taken func(string, bool)) {
			release := b.Hold("id")
			q.Cancel()
			taken("it is cancelled", false)
			release()
		},
		"has ended before": func(b *limits.Book, q *limits.Ticket, _ func(string, bool)) {
			q.End()
			b.Hold("id")()
			b.Hold("another")()
		},
	} {
		b := limits.New()
		q, _ := b.Admit(chat, one, 0, 0)
		q.Sent("id")
		taken := func(when string, want bool) {
			t.Helper()
			other, _ := b.Admit(chat, one, 0, 0)
			if got := other == nil; got != want {
				t.Errorf("%s: when %s, its place is taken: %v", name, when, got)
			}
			other.End()
		}
		run(b, q, taken)
		taken("all is over", false)
		if is := b.Sweep(); is.InFlight != 0 {
			t.Errorf("%s: left: %+v", name, is)
		}
	}
}
