package pick_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// worker is an endpoint with the service times of all its requests; 0 means that a time is unknown.
type worker struct {
	serviceTimes []int64
	copies       int64 // number of requests for the model
	used         int64
	state        pick.State
}

// randomWorkers returns workers whose values are drawn from few numbers, so that many workers are
// equal.
func randomWorkers(t *testing.T, random *rand.Rand) (workers []worker, f *fleet) {
	t.Helper()
	f = newFleet()
	for i := range 1 + random.IntN(8) {
		w := worker{state: pick.State(random.IntN(2) * random.IntN(int(pick.Out)+1)), used: random.Int64N(3)}
		name := string(rune('a' + i))
		f.endpoint(t, name, []string{"lists=m"})
		e, count := f.pool.Endpoints[i], f.count(name, "m")
		e.State = w.state
		count.Last.Store(w.used)
		for range random.IntN(3) {
			serviceTime := int64(1+random.IntN(3)) * 1e6
			w.serviceTimes = append(w.serviceTimes, serviceTime)
			e.InFlight.Add(1)
			e.Backlog.Timed.Add(1)
			e.Backlog.ServiceTimes.Add(serviceTime)
		}
		for range random.IntN(3) { // requests whose service time is unknown
			w.serviceTimes = append(w.serviceTimes, 0)
			switch random.IntN(3) {
			case 0:
				e.Others++
			case 1:
				e.Peers.Requests.Add(1)
			case 2:
				e.InFlight.Add(1)
			}
		}
		for range random.IntN(3) {
			w.copies++
			if random.IntN(2) == 0 {
				count.Add(1)
			} else {
				count.Others.Add(1)
			}
		}
		workers = append(workers, w)
	}
	return workers, f
}

// takes returns how long a request with this service time takes at the worker: the time of all
// requests before it and its own.
func (w worker) takes(serviceTime int64) (sum int64) {
	for _, p := range append(slices.Clone(w.serviceTimes), 0) {
		if p == 0 {
			p = serviceTime
		}
		sum += p
	}
	return sum
}

// bestOf applies the rule literally, as a sequence of filters. It returns the best workers that are
// not in tried.
func bestOf(workers []worker, tried []int, serviceTime int64) (best []int) {
	for i, w := range workers {
		if w.state != pick.Out && !slices.Contains(tried, i) {
			best = append(best, i)
		}
	}
	least := func(of func(worker) int64) {
		low := int64(math.MaxInt64)
		for _, i := range best {
			low = min(low, of(workers[i]))
		}
		best = slices.DeleteFunc(best, func(i int) bool { return of(workers[i]) != low })
	}
	least(func(w worker) int64 { return int64(w.state) })
	if serviceTime > 0 {
		least(func(w worker) int64 { return w.takes(serviceTime) })
	} else {
		least(func(w worker) int64 { return int64(len(w.serviceTimes)) })
		least(func(w worker) int64 { return w.copies })
	}
	least(func(w worker) int64 { return w.used })
	return best
}

func TestTokenlessAgreesWithItsOracle(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 22))
	for n := range 20_000 {
		workers, f := randomWorkers(t, random)
		rule, serviceTime := pick.Latency, int64(random.IntN(4))*1e6
		if random.IntN(4) == 0 {
			rule = pick.Proposal
		}
		request := pick.Request{
			Pool: thePool, Model: "m", Tokenless: true, Random: random.Uint64() | 1<<32,
			Demand: pick.Demand{ServiceTime: serviceTime},
		}
		if rule == pick.Proposal {
			serviceTime = 0
		}
		picks, err := pick.Pick(pick.Policy{Rule: rule, Threshold: 3}, f.snapshot(), request, make([]pick.Decision, 1+random.IntN(8)))
		if none := len(bestOf(workers, nil, serviceTime)) == 0; none != (err != nil) {
			t.Fatalf("fleet %d: %v", n, err)
		}
		var tried []int
		for _, d := range picks {
			i := d.Copy.Endpoint
			if best := bestOf(workers, tried, serviceTime); !slices.Contains(best, i) {
				t.Fatalf("fleet %d, %s, serviceTime %d: after %v it goes to %d, want one of %v of %+v", n, rule, serviceTime, tried, i, best,
					workers)
			}
			if d.Among != int64(len(workers[i].serviceTimes)+1) {
				t.Fatalf("fleet %d: among is %d, want %d and itself", n, d.Among, len(workers[i].serviceTimes))
			}
			tried = append(tried, i)
		}
	}
}

// A request adds its service time to the Backlog when it begins, and removes it when it ends.
func TestTokenlessRequestAddsItsServiceTime(t *testing.T) {
	f := newFleet()
	f.endpoint(t, "a", []string{"lists=m"})
	backlog := f.pool.Endpoints[0].Backlog
	for _, c := range []struct {
		rule                pick.Rule
		serviceTime         int64
		serviceTimes, timed int64
	}{{pick.Latency, 5e6, 5e6, 1}, {pick.Latency, 0, 0, 0}, {pick.Proposal, 5e6, 0, 0}, {pick.Random, 5e6, 0, 0}} {
		r := pick.Request{Pool: thePool, Model: "m", Tokenless: true, Demand: pick.Demand{ServiceTime: c.serviceTime, Now: now}}
		picks, err := pick.Pick(pick.Policy{Rule: c.rule}, f.snapshot(), r, make([]pick.Decision, 1))
		if err != nil {
			t.Fatal(err)
		}
		if has := picks[0].Among > 0; has != (c.rule != pick.Random) || picks[0].Estimate != (pick.Estimate{}) {
			t.Errorf("%s: among is %d, and the estimate is %+v", c.rule, picks[0].Among, picks[0].Estimate)
		}
		backlog.Begin(picks[0].Claim, now)
		backlog.Begin(picks[0].Claim, now)
		if backlog.ServiceTimes.Load() != 2*c.serviceTimes || backlog.Timed.Load() != 2*c.timed || backlog.Queue.Load() != 0 ||
			backlog.Tokens.Load() != 0 {
			t.Errorf("%s, serviceTime %d: two claim %d of %d", c.rule, c.serviceTime, backlog.ServiceTimes.Load(), backlog.Timed.Load())
		}
		backlog.End(picks[0].Claim, false)
		if backlog.ServiceTimes.Load() != c.serviceTimes || backlog.Timed.Load() != c.timed {
			t.Errorf("%s, serviceTime %d: one claims %d of %d", c.rule, c.serviceTime, backlog.ServiceTimes.Load(), backlog.Timed.Load())
		}
		backlog.End(picks[0].Claim, true)
		if backlog.ServiceTimes.Load() != 0 || backlog.Timed.Load() != 0 {
			t.Errorf("%s, serviceTime %d: none claims %d of %d", c.rule, c.serviceTime, backlog.ServiceTimes.Load(), backlog.Timed.Load())
		}
	}
}
