package decide_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// All engines lose their models, and storage is out for 20 minutes. Afterwards, models that must be
// loaded, were used in the last hour, or are used during the outage are loaded again as their
// failures expire, without a new request. Each load begins at most a tick after the expiry and
// after its turn at the engine, which loads one model at a time.
func TestStorageOutage(t *testing.T) {
	const (
		outage  = 20 * time.Minute
		expiry  = 15 * time.Minute // default failure expiry; half of it for models in use
		took    = 2 * time.Second
		engines = 4
		used    = 24 // number of models used before; the first one is used throughout
		must    = 4  // number of models that must have a copy
		turn    = (used+must)/engines*took + took
	)
	s, now := decide.New(decide.Config{}), start
	for i := range engines {
		s.SetEndpoint(address(i), []objects.Name{pool})
		s.Scraped(decide.ScrapeResult{Began: now, Endpoint: decide.Endpoint{
			Address: address(i), CanLoad: true, Bytes: 1000,
			DefaultBytes: 100,
			Loads:        1,
		}}, now)
	}
	type book struct {
		min     bool
		failed  []time.Time
		loading bool
		loaded  bool
		tries   int
	}
	books := make(map[decide.Key]*book)
	for i := range used + must {
		b := &book{min: i >= used}
		e := objects.Entry{ModelKey: key(numbered(i)), Size: 100}
		lastUsed := now.Add(-time.Duration(2*i) * time.Minute)
		if b.min {
			e.Min, lastUsed = 1, time.Time{}
		}
		e.Pinned = i == 1
		s.SetModel(e.Complete(nil), lastUsed)
		books[e.ModelKey] = b
	}
	type ending struct {
		decide.CopyKey
		at time.Time
	}
	var going []ending
	for second := 0; now.Before(start.Add(outage + expiry + turn + decide.TickInterval)); second++ {
		now = start.Add(time.Duration(second) * time.Second)
		if second%10 == 0 {
			s.Tick()
		}
		if first := key(numbered(0)); second%30 == 0 {
			s.Used(first, decide.Use{Requests: 1, Last: now})
		}
		for len(going) > 0 && !going[0].at.After(now) {
			key, b := going[0].CopyKey, books[going[0].ModelKey]
			going, b.loading = going[1:], false
			if now.Before(start.Add(outage)) {
				b.failed = append(b.failed, now)
				s.LoadEnded(key, decide.LoadResult{Failed: true, Message: "storage is out"}, now)
				continue
			}
			b.loaded = true
			s.LoadEnded(key, decide.LoadResult{Took: took}, now)
		}
		todo, _ := s.Decide(now)
		for _, a := range todo {
			if a.Kind != decide.Load {
				t.Fatalf("%s is to %s %s", a.Endpoint, a.Kind, a.Model.ID)
			}
			b := books[a.Model.ModelKey]
			b.loading = true
			b.tries++
			going = append(going, ending{decide.CopyKey{ModelKey: a.Model.ModelKey, Endpoint: a.Endpoint}, now.Add(took)})
		}
		for k, b := range books {
			counts := expiry
			if k == key(numbered(0)) {
				counts /= 2
			}
			for len(b.failed) > 0 && now.Sub(b.failed[0]) >= counts+turn+decide.TickInterval {
				b.failed = b.failed[1:]
			}
			// A model that must have a copy is tried at three endpoints.
			blocked := len(b.failed) > 0 && !b.min || len(b.failed) >= 3
			if !b.loading && !b.loaded && !blocked && now.Sub(start) > turn+decide.TickInterval {
				t.Fatalf("after %v: %s is not being loaded, %d loads after the first, and none has failed of late", now.Sub(start), k.ID,
					b.tries)
			}
		}
	}
	for k, b := range books {
		if !b.loaded || b.tries < 2 {
			t.Errorf("%s: loaded: %v, after %d loads", k.ID, b.loaded, b.tries)
		}
	}
}
