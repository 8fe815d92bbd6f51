package limits_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/internal/objects"
)

// With control, a process may send no request of a limited route until control has told it its
// part. Then all processes together send as many as the limit allows.
func TestProcessesShareLimits(t *testing.T) {
	now := time.Unix(1e9, 0)
	route := objects.Name{Namespace: "ns", Name: "route"}
	s := &objects.Sharing{PerRoute: objects.Limit{RequestsPerMinute: 10}}
	var books []*limits.Book
	for range 3 {
		b := limits.NewAt(func() time.Time { return now })
		b.Shared()
		books = append(books, b)
	}
	admitted := func() (n int) {
		for _, b := range books {
			for range 20 {
				if ticket, _ := b.Admit(route, s, 0, 1); ticket != nil {
					ticket.End()
					n++
				}
			}
		}
		return n
	}
	if n := admitted(); n > 0 {
		t.Errorf("%d requests are admitted before control has reported a part", n)
	}
	for i, b := range books {
		b.Share(i, len(books))
	}
	if n := admitted(); n > 0 {
		t.Errorf("%d requests are admitted before other processes have heard of the parts", n)
	}
	now = now.Add(time.Second)
	for _, b := range books {
		b.Sweep() // a part that grows does so empty
	}
	admitted()
	if now = now.Add(time.Minute); admitted() != 10 {
		t.Errorf("the processes together do not send 10 requests")
	}
	books[0].Share(0, 0)
	books[0].Share(5, 3)
	if now = now.Add(2 * time.Minute); admitted() != 10 {
		t.Error("after an invalid share the processes together do not send 10 requests")
	}
}

// A process that starts while control is away uses the limits of its routes by itself, until
// control reports its part.
func TestProcessWithoutControlUsesWholeLimits(t *testing.T) {
	now := time.Unix(1e9, 0)
	route := objects.Name{Namespace: "ns", Name: "route"}
	s := &objects.Sharing{PerRoute: objects.Limit{Concurrent: 4}}
	b := limits.NewAt(func() time.Time { return now })
	b.Shared()
	admitted := func() (n int64) {
		var all []*limits.Ticket
		for range 10 {
			if ticket, _ := b.Admit(route, s, 0, 1); ticket != nil {
				all, n = append(all, ticket), n+1
			}
		}
		for _, ticket := range all {
			ticket.End()
		}
		return n
	}
	for _, c := range []struct {
		after time.Duration
		want  int64
	}{{0, 0}, {9 * time.Second, 0}, {time.Second, 4}, {time.Hour, 4}} {
		if now = now.Add(c.after); admitted() != c.want {
			t.Errorf("after %v more it does not admit %d requests", c.after, c.want)
		}
	}
	b.Share(0, 2)
	if n := admitted(); n != 0 {
		t.Errorf("it admits %d requests before other processes have heard of the parts", n)
	}
	if now = now.Add(time.Second); admitted() != 2 {
		t.Error("it does not admit its part")
	}
}
