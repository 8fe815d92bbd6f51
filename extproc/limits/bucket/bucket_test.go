package bucket_test

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/limits/bucket"
)

// admit admits n requests with the same tokens, and returns the answer to the last one, and the
// number of those that were admitted.
func admit(r *bucket.Route, n int, tenant uint64, tokens int64, now time.Duration) (last bucket.Answer, admitted int) {
	for range n {
		var q *bucket.Request
		if q, last = r.Admit(tenant, tokens, now); q != nil {
			admitted++
		}
	}
	return last, admitted
}

// A bucket holds the limit of a minute, and is refilled continuously.
func TestRate(t *testing.T) {
	r := bucket.New(bucket.Limits{Tenant: bucket.Limit{Requests: 60}}, bucket.Whole(), 0)
	last, n := admit(r, 61, 1, 0, 0)
	if n != 60 || last.Refused != bucket.Requests || last.Retry != time.Second {
		t.Fatalf("%d were admitted, the last: %+v", n, last)
	}
	if want := (bucket.Status{Limit: 60, Left: 0, Reset: time.Minute}); last.Requests != want {
		t.Errorf("the state is %+v, want %+v", last.Requests, want)
	}
	if _, n := admit(r, 60, 2, 0, 0); n != 60 {
		t.Errorf("another tenant got %d", n)
	}
	if _, n := admit(r, 10, 1, 0, 2500*time.Millisecond); n != 2 {
		t.Errorf("after 2.5 s %d were admitted, want 2", n)
	}
	if last, _ := admit(r, 1, 1, 0, 2500*time.Millisecond); last.Retry != 500*time.Millisecond {
		t.Errorf("Retry is %v, want 500ms", last.Retry)
	}
	if _, n := admit(r, 100, 1, 0, time.Hour); n != 60 {
		t.Errorf("after an hour %d were admitted, want 60", n)
	}
}

// The number of concurrent requests is limited, and an end makes room once.
func TestConcurrent(t *testing.T) {
	r := bucket.New(bucket.Limits{Route: bucket.Limit{Concurrent: 3}, Tenant: bucket.Limit{Concurrent: 2}}, bucket.Whole(), 0)
	first, _ := r.Admit(1, 0, 0)
	_, _ = r.Admit(1, 0, 0)
	if _, a := r.Admit(1, 0, 0); a.Refused != bucket.Concurrent || a.Retry != 0 {
		t.Errorf("a third of a tenant: %+v", a)
	}
	other, _ := r.Admit(2, 0, 0)
	if _, a := r.Admit(3, 0, 0); a.Refused != bucket.Concurrent {
		t.Errorf("a fourth of the route: %+v", a)
	}
	first.End(1)
	first.End(1)
	if _, n := admit(r, 5, 1, 0, 1); n != 1 {
		t.Errorf("after one end %d were admitted, want 1", n)
	}
	other.End(1)
	if r.InFlight() != 2 {
		t.Errorf("%d are in flight, want 2", r.InFlight())
	}
}

// Tokens are reserved. What an answer did not need is given back; what it needed more is a debt.
func TestTokens(t *testing.T) {
	r := bucket.New(bucket.Limits{Tenant: bucket.Limit{Tokens: 6000}}, bucket.Whole(), 0)
	q, a := r.Admit(1, 4000, 0)
	if a.Tokens.Left != 2000 || a.Tokens.Reset != 40*time.Second {
		t.Errorf("the state is %+v", a.Tokens)
	}
	if _, a := r.Admit(1, 2500, 0); a.Refused != bucket.Tokens || a.Retry != 5*time.Second || a.Never {
		t.Errorf("500 tokens too many: %+v", a)
	}
	q.Settle(1000, 0)
	q.Settle(1000, 0)
	if q, a = r.Admit(1, 1000, 0); a.Tokens.Left != 4000 {
		t.Errorf("after a refund the state is %+v", a.Tokens)
	}
	q.Settle(9000, 0) // 4,000 more than the bucket has
	if _, a := r.Admit(1, 1000, 0); a.Refused != bucket.Tokens || a.Retry != 50*time.Second {
		t.Errorf("with a debt: %+v", a)
	}
	if q, _ := r.Admit(1, 1000, 50*time.Second); q == nil {
		t.Error("a client that came back when it was told was refused")
	}
	if _, a := r.Admit(1, 6001, time.Hour); !a.Never || a.Refused != bucket.Tokens {
		t.Errorf("more than the limit: %+v", a)
	}
}

// A refund never makes a bucket hold more than its limit.
func TestRefundOfFullBucket(t *testing.T) {
	r := bucket.New(bucket.Limits{Route: bucket.Limit{Tokens: 6000}}, bucket.Whole(), 0)
	q, _ := r.Admit(0, 6000, 0)
	q.Settle(0, 2*time.Minute)
	if _, n := admit(r, 10, 0, 1000, 2*time.Minute); n != 6 {
		t.Errorf("%d times 1,000 tokens were admitted, want 6", n)
	}
}

// An edit applies at once. What was used stays used.
func TestEdit(t *testing.T) {
	r := bucket.New(bucket.Limits{Tenant: bucket.Limit{Requests: 60}}, bucket.Whole(), 0)
	admit(r, 50, 1, 0, 0)
	r.Set(bucket.Limits{Tenant: bucket.Limit{Requests: 20}}, 0)
	if last, n := admit(r, 1, 1, 0, 0); n != 0 || last.Retry != 93*time.Second {
		t.Errorf("with a lower limit: %d, %+v", n, last)
	}
	r.Set(bucket.Limits{Tenant: bucket.Limit{Requests: 100, Concurrent: 90}}, 0)
	if _, n := admit(r, 60, 1, 0, 0); n != 40 {
		t.Errorf("with a higher limit %d were admitted, want 40", n)
	}
	r.Set(bucket.Limits{Route: bucket.Limit{Requests: 1000}}, 0)
	if _, n := admit(r, 60, 1, 0, 0); n != 60 || r.Tenants() != 0 {
		t.Errorf("without a limit for tenants %d were admitted, and %d tenants are remembered", n, r.Tenants())
	}
}

// A clock that jumps back refills nothing, and stops nothing for good.
func TestClockJumps(t *testing.T) {
	r := bucket.New(bucket.Limits{Route: bucket.Limit{Requests: 60}}, bucket.Whole(), 0)
	admit(r, 59, 0, 0, time.Hour)
	if _, n := admit(r, 60, 0, 0, time.Minute); n != 1 {
		t.Errorf("%d were admitted before the clock's former time, want 1", n)
	}
	if _, n := admit(r, 60, 0, 0, time.Hour+time.Second); n != 1 {
		t.Errorf("%d were admitted, want 1", n)
	}
}

// Parts of a limit add up to the limit, for every tenant, and even if it is smaller than the number
// of processes.
func TestPartsAddUp(t *testing.T) {
	for _, limit := range []int64{1, 2, 3, 7, 60, 1000} {
		for n := 1; n < 9; n++ {
			for tenant := range uint64(50) {
				total := 0
				for i := range n {
					r := bucket.New(bucket.Limits{Tenant: bucket.Limit{Requests: limit}}, bucket.Equal(i, n), 0)
					_, admitted := admit(r, int(limit)+1, tenant*0x9e3779b97f4a7c15, 0, 0)
					total += admitted
				}
				if total != int(limit) {
					t.Fatalf("%d processes admitted %d of %d", n, total, limit)
				}
			}
		}
	}
}

// When a process joins, the first one gives it a part of what is left; when it leaves, the first
// one refills faster. Together they never have more than is left.
func TestPartsChange(t *testing.T) {
	limits := bucket.Limits{Route: bucket.Limit{Requests: 120}, Tenant: bucket.Limit{Requests: 120}}
	first := bucket.New(limits, bucket.Whole(), 0)
	admit(first, 60, 1, 0, 0)
	first.SetPart(bucket.Equal(0, 2), 0)
	if _, n := admit(first, 99, 1, 0, 0); n != 30 {
		t.Errorf("after the part was halved %d of 60 were left, want 30", n)
	}
	second := bucket.New(limits, bucket.Part{}, 0)
	if a, n := admit(second, 1, 1, 0, 0); n != 0 || a.Retry <= 0 {
		t.Errorf("without a part: %d, %+v", n, a)
	}
	second.SetPart(bucket.Equal(1, 2), 0)
	if _, n := admit(second, 99, 1, 0, 0); n != 0 {
		t.Errorf("with a new part %d were admitted at once", n)
	}
	if _, n := admit(second, 99, 2, 0, 30*time.Second); n != 30 {
		t.Errorf("after 30 s %d were admitted, want 30", n)
	}
	first.SetPart(bucket.Whole(), 0)
	if _, n := admit(first, 99, 1, 0, 0); n != 0 {
		t.Errorf("when the other has left, %d were admitted at once", n)
	}
	if _, n := admit(first, 99, 1, 0, 10*time.Second); n != 20 {
		t.Errorf("10 s later %d were admitted, want 20", n)
	}
	third := bucket.New(bucket.Limits{Tenant: limits.Tenant}, bucket.Equal(0, 2), 0)
	admit(third, 10, 1, 0, 0)
	third.SetPart(bucket.Whole(), 0)
	for tenant, want := range map[uint64]int{1: 50, 2: 60} {
		if _, n := admit(third, 199, tenant, 0, 0); n != want {
			t.Errorf("with a larger part tenant %d got %d at once, want %d", tenant, n, want)
		}
	}
}

// event is a number of units that were used, or given back, of a limit.
type event struct {
	at time.Duration
	n  float64
}

// exceeded reports whether a window has more events than size + size per minute.
func exceeded(all []event, size float64) bool {
	for i := range all {
		sum := 0.0
		for _, e := range all[i:] {
			if sum += e.n; sum > size+size*float64(e.at-all[i].at)/float64(time.Minute)+1e-3 {
				return true
			}
		}
	}
	return false
}

// In random histories, with few remembered tenants, no window has more than a limit allows, for the
// route and for each tenant; and nothing is left in the end.
func TestWindows(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		l := bucket.Limits{
			Route:  bucket.Limit{Concurrent: 9, Requests: 60, Tokens: 5000},
			Tenant: bucket.Limit{Concurrent: 3, Requests: 10, Tokens: 1500},
		}
		if seed%2 == 0 { // many tenants come and go
			l.Route = bucket.Limit{}
		}
		r := bucket.New(l, bucket.Whole(), seed)
		r.Remember(1 + random.IntN(4))
		type running struct {
			*bucket.Request
			tenant   uint64
			reserved int64
		}
		var all []running
		var requests, tokens []event
		own := make(map[uint64][2][]event)
		concurrent := make(map[uint64]int)
		var now time.Duration
		use := func(tenant uint64, of int, n float64) {
			o := own[tenant]
			o[of] = append(o[of], event{now, n})
			own[tenant] = o
			if of == 0 {
				requests = append(requests, event{now, n})
			} else {
				tokens = append(tokens, event{now, n})
			}
		}
		end := func(i int) {
			q := all[i]
			settle := func() {
				n := random.Int64N(q.reserved + 1)
				q.Settle(n, now)
				use(q.tenant, 1, float64(n-q.reserved))
			}
			if late := random.IntN(2) == 0; late {
				q.End(now)
				settle()
			} else {
				settle()
				q.End(now)
			}
			concurrent[q.tenant]--
			all = append(all[:i], all[i+1:]...)
		}
		for range 400 {
			now += time.Duration(random.ExpFloat64() * float64(300*time.Millisecond))
			if len(all) > 0 && random.IntN(10) < 9 {
				end(random.IntN(len(all)))
			}
			tenant, n := random.Uint64N(12)*0x9e3779b97f4a7c15, random.Int64N(400)
			if q, _ := r.Admit(tenant, n, now); q != nil {
				all = append(all, running{q, tenant, n})
				concurrent[tenant]++
				use(tenant, 0, 1)
				use(tenant, 1, float64(n))
			}
			if l.Route.Concurrent > 0 && len(all) > 9 || concurrent[tenant] > 3 {
				t.Fatalf("seed %d: %d requests run, %d of a tenant", seed, len(all), concurrent[tenant])
			}
		}
		if l.Route.Concurrent > 0 && (exceeded(requests, 60) || exceeded(tokens, 5000)) {
			t.Fatalf("seed %d: the route's limit is exceeded", seed)
		}
		for _, of := range own {
			if exceeded(of[0], 10) || exceeded(of[1], 1500) {
				t.Fatalf("seed %d: a tenant's limit is exceeded", seed)
			}
		}
		for len(all) > 0 {
			end(0)
		}
		if r.Sweep(now + 10*time.Minute); !r.Empty() {
			t.Fatalf("seed %d: %d tenants are left", seed, r.Tenants())
		}
	}
}

// A client that comes back when it was told is admitted if no other client came.
func TestRetryHolds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	l := bucket.Limits{Route: bucket.Limit{Requests: 37, Tokens: 9000}, Tenant: bucket.Limit{Requests: 13, Tokens: 4000}}
	r := bucket.New(l, bucket.Equal(1, 3), 5)
	var now time.Duration
	refused := 0
	for range 20000 {
		tenant, tokens := random.Uint64N(3)*0x9e3779b97f4a7c15, random.Int64N(1333) // its part of a tenant's limit
		q, a := r.Admit(tenant, tokens, now)
		if q == nil {
			refused++
			now += a.Retry
			if q, a = r.Admit(tenant, tokens, now); q == nil {
				t.Fatalf("refused again: %+v", a)
			}
		}
		q.Settle(random.Int64N(2*tokens+1), now)
		q.End(now)
	}
	if refused < 1000 {
		t.Errorf("only %d were refused", refused)
	}
}

// A million invented tenants take the stated memory, and the limits of others still hold.
func TestMillionTenants(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := bucket.New(bucket.Limits{Tenant: bucket.Limit{Requests: 60, Concurrent: 1}}, bucket.Whole(), 0)
	now, most := time.Duration(0), 0
	for i := range uint64(1_000_000) {
		now += 10 * time.Microsecond
		q, _ := r.Admit((i+1)*0x9e3779b97f4a7c15, 0, now)
		if q == nil {
			t.Fatalf("tenant %d was refused its first request", i)
		}
		q.End(now)
		most = max(most, r.Tenants())
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d tenants, %d bytes, %d each", most, took, took/int64(most))
	if most > bucket.MaxIdle+1 || took > 4<<20 {
		t.Errorf("%d tenants are remembered, in %d bytes", most, took)
	}
	runtime.KeepAlive(r)
}

func BenchmarkAdmit(b *testing.B) {
	r := bucket.New(bucket.Limits{Tenant: bucket.Limit{Requests: 1 << 40, Tokens: 1 << 40}}, bucket.Whole(), 0)
	b.ReportAllocs()
	for i := range b.N {
		now := time.Duration(i) * time.Millisecond
		q, _ := r.Admit(uint64(i%1000)*0x9e3779b97f4a7c15, 100, now)
		q.Settle(50, now)
		q.End(now)
	}
}

// A forgotten tenant pays a debt that becomes known later. Tenants whose buckets are full are
// forgotten while others come.
func TestForgottenTenants(t *testing.T) {
	r := bucket.New(bucket.Limits{Tenant: bucket.Limit{Tokens: 6000}}, bucket.Whole(), 0)
	r.Remember(1)
	q, _ := r.Admit(1, 10, 0)
	q.End(0)
	other, _ := r.Admit(2, 1000, 0)
	other.End(0) // 1 is forgotten, since its bucket is full first
	q.Settle(9000, 0)
	if _, a := r.Admit(1, 10, 0); a.Refused != bucket.Tokens {
		t.Errorf("with a debt: %+v", a)
	}
	r = bucket.New(bucket.Limits{Tenant: bucket.Limit{Requests: 60}}, bucket.Whole(), 0)
	for hour := range time.Duration(3) {
		for tenant := range uint64(100) {
			q, _ := r.Admit(tenant+1000*uint64(hour), 0, hour*time.Hour)
			q.End(hour * time.Hour)
		}
	}
	if r.Tenants() != 100 {
		t.Errorf("%d tenants are remembered, want the last 100", r.Tenants())
	}
}
