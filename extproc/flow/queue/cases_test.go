package queue_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/headgate/headgate/extproc/flow/queue"
)

// count serves n requests and counts them by the value that they joined with.
func count(q *queue.Queue[string], n int) map[string]int {
	all := make(map[string]int)
	for range n {
		p := q.Next()
		all[p.Waiter]++
		q.Dispatch(p).Settle(p.Service())
	}
	return all
}

// fill adds requests with the same value.
func fill(q *queue.Queue[string], name string, n int, r queue.Request) {
	for range n {
		q.Join(name, r)
	}
}

func TestInventedProgramsTakeNothingFromOtherTenants(t *testing.T) {
	q := queue.New[string]()
	for i := range 100 {
		inventor := of("r", 1)
		inventor.Program = uint64(i)
		q.Join("inventor", inventor)
	}
	fill(q, "other", 20, of("r", 2))
	if got := count(q, 40); got["other"] != 20 {
		t.Errorf("the other tenant got %d of 40 turns", got["other"])
	}
	// Nor do they protect their requests when the queue is too long.
	fill(q, "other", 20, of("r", 2))
	if got := q.Victim(0, false); got.Waiter != "inventor" {
		t.Errorf("victim %s", got.Waiter)
	}
}

func TestParallelCallsOfAProgramCountAsOneCaller(t *testing.T) {
	q := queue.New[string]()
	agent := of("r", 1)
	agent.Program = 99
	fill(q, "agent", 50, agent)
	for i := range 10 {
		user := of("r", 1)
		user.Program = uint64(i + 1)
		q.Join("user", user)
	}
	if got := count(q, 11); got["user"] != 10 {
		t.Errorf("the first 11 turns: %v", got)
	}
}

func TestReturningTenantStartsLevel(t *testing.T) {
	q := queue.New[string]()
	fill(q, "busy", 100, of("r", 1))
	q.Join("away", of("r", 2))
	count(q, 60) // away has its turn, and pauses
	fill(q, "away", 30, of("r", 2))
	if got := count(q, 20); got["away"] != 10 {
		t.Errorf("the returned tenant got %d of 20 turns", got["away"])
	}
}

func TestTenantWithoutRoomIsPassedOverAndReturnsFirst(t *testing.T) {
	q := queue.New[string]()
	waits := of("r", 1)
	waits.Model = "full"
	fill(q, "waits", 30, waits)
	q.SetReady("full", false)
	fill(q, "goes", 100, of("r", 2))
	if got := count(q, 50); got["goes"] != 50 {
		t.Errorf("while the model is not ready: %v", got)
	}
	if p := q.First(); p.Waiter != "waits" {
		t.Errorf("first in order is %s", p.Waiter)
	}
	q.SetReady("full", true)
	if p := q.Next(); p.Waiter != "waits" {
		t.Errorf("next is %s", p.Waiter)
	}
	if got := count(q, 20); got["waits"] != 10 {
		t.Errorf("after it is ready, it gets %d of 20 turns", got["waits"])
	}
}

func TestArrivalOrderAmongTheModelsOfAFlow(t *testing.T) {
	q := queue.New[string]()
	for _, name := range []string{"a1", "b1", "a2", "b2"} {
		r := of("r", 1)
		r.Model = name[:1]
		q.Join(name, r)
	}
	q.SetReady("a", false)
	if p := q.Next(); p.Waiter != "b1" {
		t.Errorf("next is %s", p.Waiter)
	}
	q.SetReady("a", true)
	expect(t, "order", serve(q), "a1", "b1", "a2", "b2")
	empty(t, q)
}

func TestChargesAreCorrected(t *testing.T) {
	q := queue.New[string]()
	fill(q, "a", 20, of("r", 1))
	fill(q, "b", 20, of("r", 2))
	long := q.Dispatch(q.Next())
	long.Charge(6)
	long.Charge(3) // it has been charged more
	if got := count(q, 6); got["b"] != 6 {
		t.Errorf("while the answer of a runs longer: %v", got)
	}
	long.Settle(3)
	if got := count(q, 3); got["a"] != 3 {
		t.Errorf("after the correction: %v", got)
	}
	long.Settle(100)
	if got := count(q, 8); got["a"] != 4 {
		t.Errorf("in the end: %v", got)
	}
}

func TestEditsApplyToWaitingRequests(t *testing.T) {
	q := queue.New[string]()
	fill(q, "a", 20, of("a", 1))
	fill(q, "b", 20, of("b", 1))
	q.Reprioritize(route("b"), 0, 3)
	if got := count(q, 8); got["b"] != 6 {
		t.Errorf("with a share of 3: %v", got)
	}
	q.Reprioritize(route("a"), 1, 1)
	if p := q.Next(); p.Waiter != "a" || p.Band() != 1 {
		t.Errorf("next is %s of band %d", p.Waiter, p.Band())
	}
	if got := count(q, 10); got["a"] != 10 {
		t.Errorf("in a higher band: %v", got)
	}
	q.Reprioritize(route("unknown"), 5, 5)
	newcomer := of("a", 2)
	newcomer.Band = -1
	q.Join("newcomer", newcomer)
	if b := q.Bands(); len(b) != 2 || b[0].Band != 0 || b[0].Shares != 3 || b[1].Band != -1 || b[1].Shares != 1 {
		t.Errorf("bands: %+v", b)
	}
	serve(q)
	empty(t, q)
}

func TestVictim(t *testing.T) {
	q := queue.New[string]()
	if q.Victim(5, false) != nil {
		t.Error("a victim in an empty queue")
	}
	fill(q, "many", 3, of("r", 1))
	q.Join("many, newest", of("r", 1))
	large := of("r", 2)
	large.Bytes = 1000
	fill(q, "large", 2, large)
	high := of("high", 3)
	high.Band = 7
	fill(q, "high", 10, high)
	if p := q.Victim(7, false); p.Waiter != "many, newest" {
		t.Errorf("by requests: %s", p.Waiter)
	}
	if p := q.Victim(7, true); p.Waiter != "large" {
		t.Errorf("by bytes: %s", p.Waiter)
	}
	if p := q.Victim(-1, false); p != nil {
		t.Errorf("for a lower band: %s", p.Waiter)
	}
	// Among equals it is the newest, which is often the newcomer.
	fill(q, "large", 1, large)
	q.Join("newest", large)
	if p := q.Victim(0, false); p.Waiter != "newest" {
		t.Errorf("among equals: %s", p.Waiter)
	}
}

func TestAhead(t *testing.T) {
	q := queue.New[string]()
	expectAhead := func(what string, r queue.Request, service, part float64) {
		t.Helper()
		if s, p := q.Ahead(r); math.Abs(s-service) > 1e-9 || math.Abs(p-part) > 1e-9 {
			t.Errorf("%s: service %v and part %v, want %v and %v", what, s, p, service, part)
		}
	}
	expectAhead("an empty queue", of("r", 1), 0, 1)
	fill(q, "a", 6, of("r", 1))
	fill(q, "b", 3, of("r", 2))
	expectAhead("the tenant with 6", of("r", 1), 6, 0.5)
	expectAhead("a third tenant", of("r", 3), 0, 1.0/3)
	program := of("r", 1)
	program.Program = 9
	expectAhead("a second program", program, 0, 0.25)
	heavy := of("s", 1)
	heavy.Share = 3
	expectAhead("a route with a share of 3", heavy, 0, 0.75)
	// What higher bands have queued goes first, at the whole rate: 9 / (0.5 × rate) = 4.5 / 0.25.
	low := of("low", 1)
	low.Band = -1
	fill(q, "low", 2, low)
	low.Tenant = 2
	expectAhead("a lower band", low, 9*0.5, 0.5)
}

func TestBadNumbers(t *testing.T) {
	q := queue.New[string]()
	for i, service := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -5, 1e300, 0} {
		bad := of("bad", uint64(i))
		bad.Service, bad.Bytes, bad.Share = service, -1, -3
		fill(q, "bad", 5, bad)
		a := q.Dispatch(q.Next())
		a.Charge(service)
		a.Settle(service)
	}
	if q.Bytes() != 0 {
		t.Errorf("%d bytes", q.Bytes())
	}
	// Requests without service take turns as well.
	for i := range 3 {
		free := of("free", uint64(i))
		free.Band, free.Service = 9, 0
		fill(q, strconv.Itoa(i), 3, free)
	}
	if got := count(q, 3); len(got) != 3 {
		t.Errorf("requests without service: %v", got)
	}
	serve(q)
	empty(t, q)
	var none *queue.Account[string]
	none.Charge(1)
	none.Settle(1)
}

func TestWaiting(t *testing.T) {
	q := queue.New[string]()
	old, high := of("r", 1), of("high", 1)
	old.Since = start.Add(-5)
	high.Band, high.Model = 3, "n"
	q.Join("new", of("r", 2))
	q.Join("old", old)
	q.Join("high", high)
	high.Model = "m"
	q.Join("high", high)
	q.SetReady("n", false)
	want := []queue.Waiting{{3, "m", 1, start, true}, {0, "m", 2, old.Since, true}, {3, "n", 1, start, false}}
	got := q.Waiting()
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%v, want %v", got, want)
	}
	if b := q.Bands(); len(b) != 2 || b[0] != (queue.Band{Band: 3, Requests: 2, Shares: 1, Service: 2}) {
		t.Errorf("bands: %v", b)
	}
}

// A flood keeps 64 requests running, which end at random, and its estimates are four times too
// high. So its tag falls whenever one ends. A newcomer does not wait
// until the flood has made up for that.
func TestNewcomerIsLevelWhileEstimatesAreTooHigh(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 40))
	q := queue.New[string]()
	flood := of("r", 1)
	fill(q, "flood", 100, flood)
	var running []*queue.Account[string]
	before, most := -1, 0 // requests of the flood since the other tenant's arrival; -1 while it does not wait
	for i := range 5000 {
		for range min(random.IntN(16), len(running)) {
			last := random.IntN(len(running))
			running[last].Settle(random.Float64() / 2)
			running = slices.Delete(running, last, last+1)
		}
		if before < 0 && random.IntN(2) == 0 {
			q.Join("other", of("r", uint64(2+i)))
			before = 0
		}
		for range min(random.IntN(16), 64-len(running)) {
			p := q.Next()
			running = append(running, q.Dispatch(p))
			if p.Waiter != "flood" {
				before = -1
				continue
			}
			q.Join("flood", flood)
			if before >= 0 {
				before++
				most = max(most, before)
			}
		}
	}
	if most > 1 {
		t.Errorf("%d requests of the flood went before one of another tenant", most)
	}
}
