package decide_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// fullFleet returns a fleet without free memory: endpoints with 20 models each, and additional
// models that no endpoint has. It also returns the current time of the fleet.
func fullFleet(b *testing.B, endpoints, more int) (*decide.State, time.Time) {
	b.Helper()
	const each = 20
	s, now := decide.New(decide.Config{}), start
	for i := range endpoints {
		address := address(i)
		s.SetEndpoint(address, []objects.Name{pool})
		s.Scraped(decide.ScrapeResult{Began: now, Endpoint: decide.Endpoint{
			Address: address, CanLoad: true, Bytes: each * 110, DefaultBytes: 100, Loads: each, // a tenth is kept free
		}}, now)
	}
	for i := range each*endpoints + more {
		s.SetModel(objects.Entry{ModelKey: key(numbered(i)), Size: 100}.Complete(nil), time.Time{})
	}
	for i := range each * endpoints {
		at := decide.CopyKey{ModelKey: key(numbered(i)), Endpoint: address(i % endpoints)}
		s.Restore(decide.Record{CopyKey: at, State: decide.Loaded, Bytes: 100, Source: decide.MeasuredSize}, now)
		now = now.Add(time.Millisecond)
		s.Used(at.ModelKey, decide.Use{Requests: 1, Last: now})
	}
	s.Decide(now)
	return s, now
}

func numbered(i int) string { return fmt.Sprintf("m%06d", i) }
func address(i int) string  { return fmt.Sprintf("e%04d", i) }

// A request names a model that no endpoint of a full fleet has: another model is evicted, and the
// requested one is loaded.
func BenchmarkMiss(b *testing.B) {
	for _, endpoints := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			s, now := fullFleet(b, endpoints, 20*endpoints)
			missing := key("")
			for i := 0; b.Loop(); i++ {
				missing.ID = numbered(20*endpoints + i%(20*endpoints))
				now = now.Add(time.Millisecond)
				s.Used(missing, decide.Use{Requests: 1, Last: now})
				s.Wanted("x", missing, decide.Want{Requests: 1, Since: now})
				serve(s, now)
				s.Wanted("x", missing, decide.Want{})
				s.Decide(now)
			}
		})
	}
}

// serve carries out actions immediately until no action is left.
func serve(s *decide.State, now time.Time) {
	for {
		todo, _ := s.Decide(now)
		for _, a := range todo {
			c := decide.CopyKey{ModelKey: a.Model.ModelKey, Endpoint: a.Endpoint}
			switch a.Kind {
			case decide.Load:
				s.LoadEnded(c, decide.LoadResult{Took: time.Second}, now)
			case decide.Unload:
				s.UnloadEnded(c, false, now)
			}
		}
		change := s.Changes()
		for c, is := range change.Copies {
			if is.State == decide.Draining {
				todo = append(todo, s.Drained(c, now)...)
				s.UnloadEnded(c, false, now)
			}
		}
		if len(todo) == 0 {
			return
		}
	}
}

// Models that must have copies find no room in a full fleet, while events occur that may or may not
// make room.
func BenchmarkStuck(b *testing.B) {
	for _, stuck := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("models=%d", stuck), func(b *testing.B) {
			s, now := fullFleet(b, 1000, stuck)
			for i := range 20 * 1000 { // no model may be evicted
				s.SetModel(objects.Entry{ModelKey: key(numbered(i)), Size: 100, Pinned: true}.Complete(nil), now)
			}
			for i := range stuck {
				s.SetModel(objects.Entry{ModelKey: key(numbered(20*1000 + i)), Size: 100, Min: 1}.Complete(nil), time.Time{})
			}
			s.Decide(now)
			for i := 0; b.Loop(); i++ {
				s.Missing(decide.CopyKey{ModelKey: key(numbered(i % 20000)), Endpoint: address(i % 1000)}, now)
				serve(s, now)
			}
		})
	}
}

// A tick in a fleet in which every loaded model is used, some of them a lot.
func BenchmarkTick(b *testing.B) {
	for _, endpoints := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			s, now := fullFleet(b, endpoints, 0)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				now = now.Add(decide.TickInterval)
				for n := range 20 * endpoints {
					c := decide.CopyKey{ModelKey: key(numbered(n)), Endpoint: address(n % endpoints)}
					s.Used(c.ModelKey, decide.Use{Requests: 1 + 1000*endpoints/(n+1), Last: now})
					s.InFlight(c, (n+i)%3, now)
				}
				s.Decide(now)
				b.StartTimer()
				s.Tick()
				s.Decide(now)
				b.StopTimer()
				serve(s, now)
				b.StartTimer()
			}
		})
	}
}
