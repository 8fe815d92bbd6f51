package late

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/flow/queue"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// busyFor returns a Predictor of a pool that had this rate while requests waited, at the time now.
func busyFor(rate float64, now time.Time) *Predictor {
	l := New()
	l.drain.wait(true, now.Add(-100*time.Second))
	for i := range 1000 {
		l.drain.left(rate/10, now.Add(-100*time.Second+time.Duration(i+1)*100*time.Millisecond))
	}
	return l
}

// The wait is what is ahead divided by the flow's part of the rate. Clients get times at which what
// is queued and promised is done, each later than the one before.
func TestRetryAfterWhatIsPromised(t *testing.T) {
	l := busyFor(10, noon)
	a := Arrival{Service: 8, Ahead: 20, Part: 0.5, Longest: 5 * time.Second, Identity: 1}
	if _, late := l.Check(a, noon, 0); late {
		t.Error("a wait of 4 s of 5 s is not late")
	}
	a.Ahead = 50
	last := time.Duration(0)
	for i, want := range []float64{12, 14, 16, 18} { // 10 s for what is ahead, then 8/5 s / 0.8 for each
		a.Identity = uint64(i + 1)
		retry, late := l.Check(a, noon, 0)
		if !late || math.Abs(retry.Seconds()-want) > 0.2 {
			t.Errorf("client %d: %v, %v, want %v s", i, retry, late, want)
		}
		if last = retry; retry < last {
			t.Errorf("client %d: %v is earlier than before", i, retry)
		}
	}
	for i := range uint64(100) {
		a.Identity = i + 10
		last, _ = l.Check(a, noon, 1)
	}
	if last != MaxRetry {
		t.Errorf("the last client gets %v", last)
	}
	a.Ahead = 0
	a.Identity = 999
	if _, late := l.Check(a, noon, 0); late {
		t.Error("a request with nothing ahead is not late")
	}
	a.Ahead, a.Longest = 1e9, 0
	if _, late := l.Check(a, noon, 0); late {
		t.Error("a request without a limit is not late")
	}
	a.Longest = time.Second
	if _, late := New().Check(a, noon, 0); late {
		t.Error("no request is late while the rate is unknown")
	}
}

// Rejected requests of any number of flows take a Limited amount of memory.
func TestPromisesAreLimited(t *testing.T) {
	l := busyFor(10, noon)
	a := Arrival{Service: 1, Ahead: 100, Part: 1, Longest: time.Second}
	for i := range uint64(maxPromises + 100) {
		a.Tenant, a.Identity = i, i+1
		if retry, late := l.Check(a, noon, 0); !late || retry < 10*time.Second {
			t.Fatalf("client %d: %v, %v", i, retry, late)
		}
	}
	if len(l.flows) > maxPromises || len(l.clients) > maxPromises || len(l.order) > maxPromises {
		t.Errorf("%d flows, %d promises and %d times are remembered", len(l.flows), len(l.clients), len(l.order))
	}
}

// A client that returns early keeps its time. One that returns in time goes before newcomers, once
// for each time that it was rejected, because it may be several clients.
func TestReturns(t *testing.T) {
	l := busyFor(10, noon)
	a := Arrival{Service: 1, Ahead: 20, Part: 1, Longest: time.Second, Identity: 7}
	retry, late := l.Check(a, noon, 0)
	if !late {
		t.Fatal("a wait of 2 s of 1 s is late")
	}
	if again, late := l.Check(a, noon.Add(time.Second), 0); !late || again != retry-time.Second {
		t.Errorf("a client that returns 1 s later gets %v, %v", again, late)
	}
	for i := range uint64(50) { // more promises
		l.Check(Arrival{Service: 1, Ahead: 20, Part: 1, Longest: time.Second, Identity: 100 + i}, noon, 0)
	}
	then := noon.Add(retry)
	a.Ahead = 5
	newcomer := a
	newcomer.Identity = 8
	if _, late := l.Check(newcomer, then, 0); !late {
		t.Error("a newcomer gets the place of those that were told to return")
	}
	for range 2 {
		if _, late := l.Check(a, then, 0); late {
			t.Error("a client that returned in time was rejected")
		}
	}
	if _, late := l.Check(a, then, 0); !late {
		t.Error("a promise was kept twice")
	}
	l.Check(Arrival{}, noon.Add(time.Hour), 0)
	if len(l.clients)+len(l.order)+len(l.flows) > 0 {
		t.Errorf("an hour later %d promises, %d times and %d flows are remembered", len(l.clients), len(l.order), len(l.flows))
	}
}

// A client that returns early is admitted like a newcomer: if nothing of its flow waits any more.
// Its promise stays, because another client may have it.
func TestEarlyReturnIntoAnEmptyQueue(t *testing.T) {
	l := busyFor(10, noon)
	a := Arrival{Service: 1, Ahead: 20, Part: 1, Longest: time.Second, Identity: 7}
	retry, _ := l.Check(a, noon, 0)
	a.Ahead = 1
	if _, late := l.Check(a, noon.Add(time.Second), 0); !late {
		t.Error("it goes before others that were told to return")
	}
	a.Ahead = 0
	if _, late := l.Check(a, noon.Add(time.Second), 0); late {
		t.Error("it is rejected although nothing waits")
	}
	a.Ahead = 5
	if _, late := l.Check(a, noon.Add(retry), 0); late {
		t.Error("at the promised time it is rejected")
	}
}

// Users whose requests are equal each get a promise: the second one is not taken for the first one.
func TestEqualRequestsOfTwoUsers(t *testing.T) {
	for _, apart := range []time.Duration{0, 100 * time.Millisecond, time.Second} {
		l := busyFor(10, noon)
		a := Arrival{Service: 1, Ahead: 20, Part: 1, Longest: time.Second, Identity: 7}
		one, late := l.Check(a, noon, 0)
		two, also := l.Check(a, noon.Add(apart), 0)
		if !late || !also {
			t.Fatal("a wait of 2 s of 1 s is not late")
		}
		first, second := noon.Add(one), noon.Add(apart+two)
		if own := second.After(first); own != (apart < leastBackoff) {
			t.Errorf("%v apart, the users return at %v and %v", apart, first, second)
		}
		for i := range uint64(50) { // more promises
			a.Identity = 100 + i
			l.Check(a, noon.Add(apart), 0)
		}
		a.Ahead = 5
		for i, at := range []time.Time{first, second} {
			a.Identity = 7
			if _, late := l.Check(a, at, 0); late {
				t.Errorf("%v apart, user %d is rejected again", apart, i)
			}
		}
		if _, late := l.Check(a, second, 0); !late {
			t.Errorf("%v apart, a third user is admitted", apart)
		}
	}
}

// However often a client returns early, its promises take a Limited amount of memory. Beyond it,
// the client keeps its first time.
func TestOneClientReturnsAllTheTime(t *testing.T) {
	l := busyFor(10, noon)
	a := Arrival{Service: 1, Ahead: 20, Part: 1, Longest: time.Second, Identity: 7}
	first, _ := l.Check(a, noon, 0)
	for i := range time.Duration(20_000) {
		now := noon.Add(i * time.Millisecond / 2)
		retry, _ := l.Check(a, now, 0)
		if due := noon.Add(first); i > maxAlike && now.Add(time.Millisecond).Before(due) && !now.Add(retry).Equal(due) {
			t.Fatalf("at %v it gets %v", now, retry)
		}
	}
	if n := len(l.clients[7].promises); n > maxAlike || len(l.order) > 2*maxAlike {
		t.Errorf("%d promises and %d times are remembered", n, len(l.order))
	}
	l.Check(Arrival{}, noon.Add(time.Hour), 0)
	if !l.Idle() {
		t.Error("an hour later something is remembered")
	}
}

// Time in which nobody waits does not change the rate; numbers that are no numbers do not count.
func TestDrain(t *testing.T) {
	var d drain
	d.wait(true, noon)
	d.left(2, noon)
	if _, known := d.rate(noon.Add(500 * time.Millisecond)); known {
		t.Error("a rate is known after half a second")
	}
	for i := range 100 {
		d.left(2, noon.Add(time.Duration(i)*100*time.Millisecond))
	}
	d.left(math.NaN(), noon.Add(10*time.Second))
	d.left(math.Inf(1), noon.Add(10*time.Second))
	d.left(-5, noon.Add(10*time.Second))
	d.wait(false, noon.Add(10*time.Second))
	if rate, known := d.rate(noon.Add(time.Hour)); !known || math.Abs(rate-20) > 1 {
		t.Errorf("the rate is %v, %v, want 20", rate, known)
	}
	d.wait(true, noon.Add(time.Hour))
	if rate, known := d.rate(noon.Add(time.Hour - time.Minute)); !known || rate <= 0 {
		t.Errorf("after the clock jumped back the rate is %v, %v", rate, known)
	}
}

// visit is an Arrival of a client in a simulation.
type visit struct {
	at     time.Time
	client uint64
	tenant uint64
	first  bool
	told   bool
}

type visits []visit

func (h visits) Len() int           { return len(h) }
func (h visits) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h visits) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *visits) Push(x any)        { *h = append(*h, x.(visit)) }
func (h *visits) Pop() any {
	last := len(*h) - 1
	v := (*h)[last]
	*h = (*h)[:last]
	return v
}

// flooded is the result of a simulated flood.
type flooded struct {
	shed, returned, admitted int     // clients that were rejected, and their first returns
	lateWaits                int     // admitted requests that waited longer than limit
	served                   float64 // during the flood, as a part of what was possible
}

// flood simulates a pool that serves rate requests per second, one at a time, during a flood of
// times its rate for 30 s. The flood comes from one tenant; each of the others sends a tenth of the
// rate. Clients obey Retry-After, in whole seconds.
func flood(seed uint64, rate, times float64, others int, limit time.Duration) (is flooded) {
	random := rand.New(rand.NewPCG(seed, 9))
	l, q := New(), queue.New[visit]()
	var todo visits
	id := uint64(0)
	arrive := func(tenant uint64, rate float64, until time.Duration) {
		for at := time.Duration(0); at < until; at += time.Duration(random.ExpFloat64() / rate * float64(time.Second)) {
			id++
			heap.Push(&todo, visit{at: noon.Add(at), client: id * 0x9e3779b97f4a7c15, tenant: tenant, first: true})
		}
	}
	arrive(1, rate*times, 30*time.Second)
	for i := range others {
		arrive(uint64(2+i), rate/10, 100*time.Second)
	}
	service := func() time.Duration { return time.Duration(random.ExpFloat64() / rate * float64(time.Second)) }
	free := noon // when the server is free
	now, served, end := noon, 0, noon.Add(30*time.Second)
	dispatch := func(since time.Time) {
		if free.Before(now) {
			free = now
		}
		if free.Sub(since) > limit+limit/2 {
			is.lateWaits++
		}
		free = free.Add(service())
		if now.Before(end) {
			served++
		}
	}
	for todo.Len() > 0 || !q.Empty() {
		if !q.Empty() && (todo.Len() == 0 || free.Before(todo[0].at)) {
			now = free
			p := q.Next()
			v, since := p.Waiter, p.Since()
			a := q.Dispatch(p)
			l.Left(Group{Path: queue.Path{Tenant: v.tenant}}, 1, true, now)
			dispatch(since)
			a.Settle(1)
			continue
		}
		v := heap.Pop(&todo).(visit)
		now = v.at
		path := Group{Path: queue.Path{Tenant: v.tenant}}
		r := queue.Request{Path: path.Path, Model: "m", Service: 1, Since: now}
		if q.Empty() && !free.After(now) {
			if v.told {
				is.returned++
				is.admitted++
			}
			dispatch(now)
			continue
		}
		ahead, part := q.Ahead(r)
		retry, late := l.Check(Arrival{path, 1, ahead, part, limit, v.client}, now, random.Float64())
		if v.told {
			is.returned++
			if !late {
				is.admitted++
			}
		}
		if late {
			if v.first {
				is.shed++
			}
			wait := (retry + time.Second - 1).Truncate(time.Second)
			heap.Push(&todo, visit{at: now.Add(wait), client: v.client, tenant: v.tenant, told: v.first})
			continue
		}
		q.Join(v, r)
		l.Joined(path, 1, now)
	}
	is.served = float64(served) / (rate * 30)
	return is
}

// Of the clients that were rejected in a flood of 30 s and obey Retry-After, 90 % are admitted when
// they first return, whether they return during the flood or after it. Meanwhile no room is left
// unused, and the admitted are in time.
func TestRetryAfterHolds(t *testing.T) {
	for _, c := range []struct {
		rate, times float64
		others      int
		limit       time.Duration
	}{
		{20, 2, 0, 2 * time.Second},
		{20, 2, 2, 2 * time.Second},
		{20, 1.5, 3, 2 * time.Second},
		{20, 1, 5, 2 * time.Second},
		{100, 2, 2, time.Second},
		{20, 1.3, 0, 2 * time.Second},
		{50, 2, 1, 5 * time.Second},
		{20, 2, 0, 500 * time.Millisecond},
	} {
		var all flooded
		for seed := range uint64(5) {
			is := flood(seed, c.rate, c.times, c.others, c.limit)
			all.shed += is.shed
			all.returned += is.returned
			all.admitted += is.admitted
			all.lateWaits += is.lateWaits
			all.served += is.served / 5
		}
		share := float64(all.admitted) / float64(all.returned)
		t.Logf("%+v: %d shed, %d returned, %.3f admitted at once, %d late, %.3f served", c, all.shed, all.returned, share, all.lateWaits, all.served)
		if all.shed != all.returned || share < 0.9 || all.served < 0.93 {
			t.Errorf("%+v", c)
		}
	}
}
