package decide_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// An endpoint is tried with models of its own pools.
func TestTrialUsesModelsOfItsPools(t *testing.T) {
	s, other := decide.New(inOrder), objects.Name{Namespace: "default", Name: "other"}
	see := func(address string, in objects.Name, listed ...string) {
		s.SetEndpoint(address, []objects.Name{in})
		s.Scraped(decide.ScrapeResult{
			Endpoint: decide.Endpoint{Address: address, CanLoad: true, Lists: true, Slots: 4}, Began: start,
			Listed: listed,
		}, start)
	}
	s.SetModel(objects.Entry{ModelKey: key("a")}.Complete(nil), start)
	see("e1", pool, "a")
	see("e2", other)
	s.SetPod("e2", decide.Pod{Unready: true, OnTrial: true})
	if todo, _ := s.Decide(start.Add(time.Second)); len(todo) > 0 {
		t.Errorf("an endpoint of another pool is told %+v", todo)
	}
	if is, onTrial := s.Trial("e2"); !onTrial || !is.Passed {
		t.Errorf("its trial is %+v", is)
	}
}
