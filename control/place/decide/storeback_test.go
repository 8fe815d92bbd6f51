package decide_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// A store is out for 20 minutes, and agents report that as a transient error. When it is back,
// models that must have a copy or that requests wait for are loaded within the longest pause
// between retries. A model that was used before is loaded when its failures have expired. No
// request comes in meanwhile.
func TestModelsLoadWhenTheStoreIsBack(t *testing.T) {
	const (
		outage = 20 * time.Minute
		took   = time.Second
		retry  = 30 * time.Second // longest pause between retries
		expiry = 15 * time.Minute
		turn   = 3 * took // loads of other models at the same engine
	)
	within := map[string]time.Duration{"must": retry + turn, "waits": retry + turn, "used": expiry + turn + decide.TickInterval}
	s, now := decide.New(decide.Config{}), start
	for i := range 2 {
		s.SetEndpoint(address(i), []objects.Name{pool})
		s.Scraped(decide.ScrapeResult{Began: now, Endpoint: decide.Endpoint{
			Address: address(i), CanLoad: true, Bytes: 1000, DefaultBytes: 100, Loads: 1,
		}}, now)
	}
	s.SetModel(objects.Entry{ModelKey: key("must"), Size: 100, Min: 1}.Complete(nil), time.Time{})
	s.SetModel(objects.Entry{ModelKey: key("waits"), Size: 100}.Complete(nil), time.Time{})
	s.SetModel(objects.Entry{ModelKey: key("used"), Size: 100}.Complete(nil), now.Add(-time.Minute))
	s.Wanted("extproc", key("waits"), decide.Want{Requests: 1, Since: now})

	type load struct {
		decide.CopyKey
		ends time.Time
	}
	var running []load
	loaded, tries := make(map[string]time.Duration), make(map[string]int)
	for second := 0; len(loaded) < len(within) && now.Before(start.Add(outage+time.Hour)); second++ {
		now = start.Add(time.Duration(second) * time.Second)
		if second%10 == 0 {
			s.Tick()
		}
		for len(running) > 0 && !running[0].ends.After(now) {
			of := running[0]
			running = running[1:]
			if now.Before(start.Add(outage)) {
				s.LoadEnded(of.CopyKey, decide.LoadResult{Failed: true, Why: decide.LoadRetried, Message: "the store answers 503"}, now)
				continue
			}
			s.LoadEnded(of.CopyKey, decide.LoadResult{Took: took}, now)
			loaded[of.ID] = now.Sub(start) - outage
			if of.ID == "waits" {
				s.Wanted("extproc", key("waits"), decide.Want{})
			}
		}
		todo, _ := s.Decide(now)
		for _, a := range todo {
			if a.Kind != decide.Load {
				t.Fatalf("%s is to %s %s", a.Endpoint, a.Kind, a.Model.ID)
			}
			tries[a.Model.ID]++
			running = append(running, load{decide.CopyKey{ModelKey: a.Model.ModelKey, Endpoint: a.Endpoint}, now.Add(took)})
		}
	}
	for id, limit := range within {
		if after, is := loaded[id]; !is || after > limit {
			t.Errorf("%s: loaded: %v, %v after the store was back, at most %v; %d loads", id, is, after, limit, tries[id])
		}
	}
	if tries["must"] < 30 || tries["waits"] < 30 {
		t.Errorf("during the outage %v loads were tried", tries)
	}
}
