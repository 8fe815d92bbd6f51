package decide

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// The number of copies follows the load with hysteresis. It falls only after three minutes of low
// load, and stays within its limits.
func TestCopiesFollowTheLoad(t *testing.T) {
	for _, c := range []struct {
		name string
		aim  int
		asks float64
		most int
		want int // number of copies after one tick
		then int // number of copies after enough ticks to lower it
	}{
		{"nothing", 0, 0, 8, 0, 0},
		{"little more than it has", 1, 1.5, 8, 1, 1},
		{"more than it has", 1, 1.7, 8, 2, 2},
		{"much more, at once", 1, 5.5, 8, 5, 5},
		{"more than there may be", 1, 20, 8, 8, 8},
		{"a little less", 3, 2, 8, 3, 3},
		{"less, in a while", 3, 1.9, 8, 3, 2},
		{"none, one after the other", 3, 0, 8, 3, 2},
		{"no more than there may be now", 5, 5, 3, 3, 3},
		{"one is enough", 1, 0, 8, 1, 1},
	} {
		l := load{aim: c.aim}
		l.update(c.asks, c.most, 10)
		if l.aim != c.want {
			t.Errorf("%s: aims at %d after a tick, want %d", c.name, l.aim, c.want)
		}
		for range int(calmFor)/10 - 1 {
			l.update(c.asks, c.most, 10)
		}
		if l.aim != c.then {
			t.Errorf("%s: aims at %d after %v s, want %d", c.name, l.aim, calmFor, c.then)
		}
	}
}

// A load that varies by a tenth around a constant mean never changes the number of copies.
func TestNoiseChangesNoCopies(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for asks := 0.5; asks < 40; asks += 0.05 {
		l := load{}
		for range 2 * int(calmFor) / 10 {
			l.update(asks*(0.9+0.2*rng.Float64()), 100, 10)
		}
		settled, moves := l.aim, 0
		for range 2000 {
			if l.update(asks*(0.9+0.2*rng.Float64()), 100, 10); l.aim != settled {
				settled, moves = l.aim, moves+1
			}
		}
		if moves > 1 {
			t.Errorf("a load that asks for %.2f copies, more or less, moved %d times", asks, moves)
		}
	}
}

// A load is the number of requests in flight. A burst raises it within two ticks, as if the burst's
// requests took as long as earlier ones.
func TestLoadIsRequestsInFlight(t *testing.T) {
	l := load{}
	for range 100 { // 5 requests per second that take 2 s each
		l.requests, l.inFlightSeconds = 50, 100
		l.tick(10)
	}
	if l.engines < 9.9 || l.engines > 10.1 {
		t.Errorf("5 requests a second of 2 s are a load of %.2f, want 10", l.engines)
	}
	for range 2 {
		l.requests, l.inFlightSeconds = 500, 400 // ten times as many requests, most of which have not ended
		l.tick(10)
	}
	if l.engines < 40 {
		t.Errorf("two ticks after ten times as many came the load is %.1f, want much of the 100 that it will be", l.engines)
	}
	for range 60 {
		l.tick(10)
	}
	if l.engines > 0.1 {
		t.Errorf("ten minutes after the last request the load is %.2f", l.engines)
	}
}

// The number of copies that a load needs is limited to the model's maximum and to the number of
// endpoints that can load the model.
func TestCopiesForLoadAreLimited(t *testing.T) {
	for _, c := range []struct{ most, want int }{{0, 3}, {2, 2}, {8, 3}} {
		s, p, m := known(objects.Entry{Max: c.most}, noon)
		for _, address := range []string{"a", "b", "c", "static", "down"} {
			s.SetEndpoint(address, []objects.Name{m.Pool})
			s.Scraped(ScrapeResult{Endpoint: Endpoint{Address: address, CanLoad: address != "static", Slots: 1}, Began: noon}, noon)
		}
		s.Down("down")
		p.RPM = 1
		if tickLoads(s, p, []*model{m}, []*model{m}, 10, noon); m.aim != c.want {
			t.Errorf("of at most %d copies the load asks for %d, want %d", c.most, m.aim, c.want)
		}
	}
}

// At constant low load, the number of copies falls by one every three minutes.
func TestOneCopyLessAtATime(t *testing.T) {
	l := load{aim: 3}
	for i := 1; i <= 36; i++ {
		if l.update(1, 9, 10); l.aim != 3-i/18 {
			t.Fatalf("after %d ticks aim is %d, want %d", i, l.aim, 3-i/18)
		}
	}
}

// The length of the interval before the first tick is unknown, so its requests are ignored.
func TestFirstTick(t *testing.T) {
	s, now, key := New(Config{}), time.Unix(1e9, 0), Key{Pool: objects.Name{Namespace: "n", Name: "p"}, ID: "m"}
	s.SetEndpoint("e1", []objects.Name{key.Pool})
	s.Scraped(ScrapeResult{Endpoint: Endpoint{Address: "e1", CanLoad: true, Slots: 3, Loads: 1}, Began: now}, now)
	s.SetModel(objects.Entry{ModelKey: key}.Complete(nil), now)
	m := s.models[key]
	s.InFlight(s.add(m, s.endpoints["e1"], Loaded, now).CopyKey, 1, now)
	for range 2 {
		s.Used(key, Use{Requests: 1000, Last: now})
		now = now.Add(10 * time.Minute)
		s.Tick()
		s.Decide(now)
		now = now.Add(10 * time.Second)
	}
	want := load{requests: 1000, inFlightSeconds: 610}
	want.tick(610)
	if m.load != want {
		t.Errorf("it is %+v, want %+v", m.load, want)
	}
}
