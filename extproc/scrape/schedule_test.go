package scrape_test

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/scrape"
)

const metrics = one + "/metrics"

// unused answers as an engine without requests.
func unused(_, path string) (int, string, error) {
	if path == "/v1/models" {
		return 200, models, nil
	}
	return 200, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:prompt_tokens_total 5\n", nil
}

// begin begins a request at the only endpoint of the first pool.
func begin(t *testing.T, f *fleet.Fleet) *fleet.InFlight {
	t.Helper()
	p := f.View().Snapshot.Pools["ns/pool0"]
	i := f.Begin(pick.Decision{Endpoint: p.Endpoints[0], Copy: &p.Base[0]})
	if i == nil {
		t.Fatal("no request can begin")
	}
	return i
}

// scrapesIn returns the number of scrapes of the load in a time.
func scrapesIn(e *engines, d time.Duration) int {
	before := e.count(metrics)
	after(d)
	return e.count(metrics) - before
}

// An endpoint that nothing uses is scraped once a second, load and models, and stays healthy.
func TestIdleEndpointIsScrapedOnceASecond(t *testing.T) {
	runAs(t, unused, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
		after(3 * time.Second)
		load, lists := e.count(metrics), e.count(one+"/v1/models")
		for range 10 * 20 {
			after(50 * time.Millisecond)
			if got := state(f, 0); got != pick.Healthy {
				t.Fatalf("an idle endpoint is %v", got)
			}
		}
		if n := e.count(metrics) - load; n != 10 {
			t.Errorf("%d scrapes of the load in 10 s, want 10", n)
		}
		if n := e.count(one+"/v1/models") - lists; n != 10 {
			t.Errorf("%d scrapes of the models in 10 s, want 10", n)
		}
	}, one)
}

// A request makes its endpoint busy at once, wherever in the long interval it begins. The endpoint
// is idle again when the request has ended and the engine's counters do not change any more.
func TestRequestMakesTheEndpointBusy(t *testing.T) {
	for offset := time.Duration(0); offset < time.Second; offset += 90 * time.Millisecond {
		runAs(t, unused, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
			after(3*time.Second + offset)
			flight := begin(t, f)
			if n := scrapesIn(e, interval); n != 1 {
				t.Errorf("%v: %d scrapes in an interval after the beginning, want 1", offset, n)
			}
			if n := scrapesIn(e, 10*interval); n != 10 {
				t.Errorf("%v: %d scrapes in ten intervals of a request, want 10", offset, n)
			}
			flight.End()
			after(2 * interval)
			if n := scrapesIn(e, 5*time.Second); n != 5 {
				t.Errorf("%v: %d scrapes in 5 s after the end, want 5", offset, n)
			}
			flight = begin(t, f) // one that ends before the next scrape
			flight.End()
			if n := scrapesIn(e, interval); n != 1 {
				t.Errorf("%v: %d scrapes in an interval after a short request, want 1", offset, n)
			}
		}, one)
	}
}

// Requests of other processes make an endpoint busy: at once if they are reported, otherwise with
// the next page that shows them.
func TestRequestsOfOthersMakeTheEndpointBusy(t *testing.T) {
	tell := func(f *fleet.Fleet, requests int64) {
		f.Update(fleet.Later, func(s *endpointstate.State, now time.Time) {
			s.SetPeers([]endpointstate.Backlog{{Endpoint: one, Requests: requests}}, now)
		})
	}
	runAs(t, unused, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
		after(3100 * time.Millisecond)
		tell(f, 2)
		if n := scrapesIn(e, time.Second); n != 5 {
			t.Errorf("%d scrapes in a second with reported requests, want 5", n)
		}
		tell(f, 0)
		after(interval)
		if n := scrapesIn(e, 5*time.Second); n != 5 {
			t.Errorf("%d scrapes in 5 s without requests, want 5", n)
		}
		e.set(healthy) // it has running requests of an unknown source
		after(time.Second)
		if n := scrapesIn(e, time.Second); n != 5 {
			t.Errorf("%d scrapes in a second with running requests, want 5", n)
		}
		e.set(unused)
		after(3 * interval)
		if n := scrapesIn(e, 5*time.Second); n != 5 {
			t.Errorf("%d scrapes in 5 s after these requests, want 5", n)
		}
	}, one)
}

// An idle endpoint that falls silent is stale --stale-after after the scrape that it did not answer
// was due. If requests begin there, the scrape is due earlier.
func TestSilentIdleEndpoint(t *testing.T) {
	for _, busy := range []bool{false, true} {
		runAs(t, unused, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
			after(3 * time.Second)
			for n := e.count(metrics); e.count(metrics) == n; {
				after(time.Millisecond)
			}
			e.set(silent)
			due := time.Second
			if busy {
				begin(t, f)
				due = interval
			}
			began := time.Now()
			for state(f, 0) == pick.Healthy {
				after(time.Millisecond)
			}
			// The fleet looks for silent endpoints once a second.
			if took := time.Since(began); state(f, 0) != pick.Stale || took < due+999*time.Millisecond || took > due+2100*time.Millisecond {
				t.Errorf("busy=%v: after %v the endpoint is %v", busy, took, state(f, 0))
			}
			e.set(unused)
			after(1500 * time.Millisecond)
			if got := state(f, 0); got != pick.Healthy {
				t.Errorf("busy=%v: after it answered again it is %v", busy, got)
			}
		}, one)
	}
}

// A failed scrape ends the long intervals until the endpoint is healthy again.
func TestFailedScrapeEndsIdleness(t *testing.T) {
	runAs(t, unused, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
		after(3 * time.Second)
		e.set(down)
		after(1100 * time.Millisecond)
		if got := state(f, 0); got != pick.Out {
			t.Errorf("a second after its end the endpoint is %v", got)
		}
		if n := e.count(one + "/v1/models"); n < 4 {
			t.Errorf("%d scrapes", n)
		}
		e.set(unused)
		after(interval + 10*time.Millisecond)
		if got := state(f, 0); got != pick.Healthy {
			t.Errorf("an interval after it came back the endpoint is %v", got)
		}
	}, one)
}

// Intervals above one second apply to idle endpoints too, and the models of idle endpoints are read
// as often as those of others.
func TestOtherIntervals(t *testing.T) {
	for _, c := range []struct {
		load, models time.Duration
		loads, lists int // scrapes in 60 s
	}{
		{3 * time.Second, time.Second, 20, 20},
		{200 * time.Millisecond, 500 * time.Millisecond, 120, 120},
		{200 * time.Millisecond, 4 * time.Second, 60, 15},
		{50 * time.Millisecond, 100 * time.Millisecond, 600, 600},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := fleet.New(fleet.Config{})
			f.SetWorld(world(one))
			e := &engines{scrapes: map[string][]time.Time{}, answer: unused}
			s := scrape.New(scrape.Config{
				Fleet: f, Interval: c.load, ModelsInterval: c.models, Log: slog.New(slog.DiscardHandler), Transport: e,
			})
			ctx, cancel := context.WithCancel(t.Context())
			var beside sync.WaitGroup
			beside.Go(func() { _ = s.Run(ctx) })
			beside.Go(func() { _ = f.Run(ctx) })
			s.SetTargets(targets(one))
			after(20 * time.Second)
			loads, lists := e.count(metrics), e.count(one+"/v1/models")
			after(time.Minute)
			if n, m := e.count(metrics)-loads, e.count(one+"/v1/models")-lists; n != c.loads || m != c.lists {
				t.Errorf("load every %v, models every %v: %d and %d scrapes in a minute, want %d and %d", c.load, c.models, n, m, c.loads,
					c.lists)
			}
			cancel()
			beside.Wait()
		})
	}
}

// A request that begins while the loop decides whether the endpoint is idle makes it busy, too: the
// next scrape does not come a second later.
func TestRequestsRaceWithTheSchedule(t *testing.T) {
	f := fleet.New(fleet.Config{})
	f.SetWorld(world(one))
	ended := make(chan struct{}, 1)
	s := scrape.New(scrape.Config{
		Fleet: f, Interval: 2 * time.Millisecond, ModelsInterval: time.Minute, Log: slog.New(slog.DiscardHandler),
		Transport: &engines{scrapes: map[string][]time.Time{}, answer: unused},
		Scraped: func(error) {
			select {
			case ended <- struct{}{}:
			default:
			}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() { _ = s.Run(ctx) })
	beside.Go(func() { _ = f.Run(ctx) })
	s.SetTargets(targets(one))
	for <-ended; f.View().Snapshot.Pools["ns/pool0"].Base == nil || state(f, 0) != pick.Healthy; <-ended {
	}
	for range 200 {
		select {
		case <-ended:
		default:
		}
		<-ended // after this scrape the endpoint becomes idle, just when the request begins
		flight := begin(t, f)
		select {
		case <-ended:
		case <-time.After(700 * time.Millisecond): // an idle endpoint is scraped once a second
			t.Fatal("a request does not make its endpoint busy")
		}
		flight.End()
	}
}

// While the loop decides whether an endpoint is idle, a request that begins can already wake it.
func TestEndpointIsIdleBeforeThatIsDecided(t *testing.T) {
	f := fleet.New(fleet.Config{})
	f.SetWorld(world(one))
	locked, release := make(chan struct{}), make(chan struct{})
	// The loop cannot decide while a reader of the fleet has its lock.
	hold := sync.OnceFunc(func() {
		go fleet.Read(f, func(*endpointstate.State) struct{} {
			close(locked)
			<-release
			return struct{}{}
		})
		<-locked
	})
	s := scrape.New(scrape.Config{
		Fleet: f, Interval: 2 * time.Millisecond, ModelsInterval: time.Minute, Log: slog.New(slog.DiscardHandler),
		Transport: &engines{scrapes: map[string][]time.Time{}, answer: unused}, Scraped: func(error) { hold() },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	defer close(release)
	beside.Go(func() { _ = s.Run(ctx) })
	s.SetTargets(targets(one))
	<-locked
	for began := time.Now(); !s.Idle(one); runtime.Gosched() {
		if time.Since(began) > 5*time.Second {
			t.Fatal("a request that begins now cannot wake the loop")
		}
	}
}
