package limits_test

import (
	"reflect"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/limits/bucket"
	"github.com/headgate/headgate/internal/objects"
)

var chat = objects.Name{Namespace: "ns", Name: "chat"}

// tokens returns a sharing that limits tokens for each tenant.
func tokens(n int32) *objects.Sharing {
	return &objects.Sharing{PerTenant: objects.Limit{TokensPerMinute: n, Concurrent: 10}}
}

// world returns a World with the route chat, which has these limits; nil means none.
func world(l *v1alpha1.RouteLimits) *objects.World {
	r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "chat"}}
	r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: "pool"}}
	r.Spec.Limits, r.Spec.TenantHeader = l, "x-tenant-id"
	return objects.Build(objects.Set{Routes: []v1alpha1.LLMRoute{r}})
}

// Outcomes settle tokens, whether they come before or after the end of the request, and only once.
// Without one the estimate stays. In the end nothing is left.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limits.New()
		left := func(want int64) {
			t.Helper()
			probe, a := b.Admit(chat, tokens(6000), 1, 0)
			if probe.Cancel(); a.Tokens.Left != want {
				t.Errorf("%d tokens are left, want %d", a.Tokens.Left, want)
			}
		}
		for i, end := range []func(q *limits.Ticket, id string){
			func(q *limits.Ticket, id string) { q.End(); b.Settle(id, 100, true); b.Settle(id, 5000, true) },
			func(q *limits.Ticket, id string) { b.Settle(id, 100, true); q.End(); q.End() },
			func(q *limits.Ticket, _ string) { q.Settle(100); q.End() },
			func(q *limits.Ticket, id string) { q.Cancel(); q.Cancel(); b.Settle(id, 5000, true) },
			func(q *limits.Ticket, id string) { q.End(); b.Settle(id, 0, false) },
			func(q *limits.Ticket, id string) {
				q.End()
				time.Sleep(2 * time.Minute)
				b.Sweep()
				b.Settle(id, 5000, true)
			},
		} {
			q, _ := b.Admit(chat, tokens(6000), 1, 1000)
			q.Sent(strconv.Itoa(i))
			end(q, strconv.Itoa(i))
			left([]int64{5900, 5900, 5900, 6000, 5000, 6000}[i])
			time.Sleep(2 * time.Minute)
		}
		late, _ := b.Admit(chat, tokens(6000), 1, 1000)
		late.End()
		late.Sent("late")
		time.Sleep(2 * time.Minute)
		if got := b.Sweep(); got != (limits.State{Routes: 1}) {
			t.Errorf("left: %+v", got)
		}
		var none *limits.Ticket // of a route without limits
		none.Sent("x")
		none.Settle(1)
		none.Cancel()
		none.End()
	})
}

// Edits apply at once. A route without limits, or that is deleted, leaves no state.
func TestSetWorld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, n, more := limits.New(), int32(1), int32(3)
		w := world(&v1alpha1.RouteLimits{Route: &v1alpha1.Limit{Concurrent: &n}})
		q, _ := b.Admit(chat, w.SharingOf(chat), 0, 0)
		if _, a := b.Admit(chat, w.SharingOf(chat), 0, 0); a.Refused != bucket.Concurrent {
			t.Errorf("the second request: %+v", a)
		}
		w = world(&v1alpha1.RouteLimits{Route: &v1alpha1.Limit{Concurrent: &more}})
		b.SetWorld(w)
		for range 2 {
			if q, a := b.Admit(chat, w.SharingOf(chat), 0, 0); q == nil {
				t.Errorf("after the edit: %+v", a)
			}
		}
		if _, a := b.Admit(chat, w.SharingOf(chat), 0, 0); a.Refused != bucket.Concurrent {
			t.Errorf("the fourth request: %+v", a)
		}
		b.SetWorld(world(nil))
		if q.End(); b.Sweep() != (limits.State{}) {
			t.Errorf("left: %+v", b.Sweep())
		}
	})
}

// Parts apply to routes with and without state, and a Book is safe for concurrent use.
func TestParts(t *testing.T) {
	for _, before := range []bool{true, false} {
		b := limits.New()
		s := &objects.Sharing{PerRoute: objects.Limit{RequestsPerMinute: 100}}
		if before {
			q, _ := b.Admit(chat, s, 0, 0)
			q.Cancel()
		}
		b.SetPart(bucket.Equal(0, 4))
		var all sync.WaitGroup
		var mu sync.Mutex
		admitted := 0
		for i := range 100 {
			all.Go(func() {
				q, _ := b.Admit(chat, s, uint64(i), 0)
				q.Sent(strconv.Itoa(i))
				b.Settle(strconv.Itoa(i), 1, true)
				q.End()
				if q != nil {
					mu.Lock()
					defer mu.Unlock()
					admitted++
				}
			})
		}
		if all.Wait(); admitted < 24 || admitted > 25 {
			t.Errorf("state before: %v: %d were admitted, want a quarter of 100", before, admitted)
		}
	}
}

func TestHeaders(t *testing.T) {
	a := bucket.Answer{Requests: bucket.Status{Limit: 60, Left: 59, Reset: time.Second}}
	want := []limits.Header{
		{"x-ratelimit-limit-requests", "60"}, {"x-ratelimit-remaining-requests", "59"}, {"x-ratelimit-reset-requests", "1s"},
	}
	if got := limits.Headers(a); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	a = bucket.Answer{Tokens: bucket.Status{Limit: 90000, Left: 0, Reset: 6*time.Minute + 119*time.Millisecond + time.Microsecond}}
	want = []limits.Header{
		{"x-ratelimit-limit-tokens", "90000"}, {"x-ratelimit-remaining-tokens", "0"}, {"x-ratelimit-reset-tokens", "6m0.12s"},
	}
	if got := limits.Headers(a); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	for _, c := range []struct {
		bucket.Answer
		want int
	}{
		{bucket.Answer{}, 1},
		{bucket.Answer{Retry: time.Second}, 1},
		{bucket.Answer{Retry: time.Second + 1}, 2},
		{bucket.Answer{Retry: time.Hour, Never: true}, 0},
	} {
		if got := limits.RetryAfter(c.Answer); got != c.want {
			t.Errorf("Retry-After of %+v is %d, want %d", c.Answer, got, c.want)
		}
	}
}
