package decide_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// The load times of a type of models in one pool are not used for another pool, whose storage or
// engines may be slower.
func TestLoadTimesArePerPool(t *testing.T) {
	s, now := decide.New(inOrder), start
	other := objects.Name{Namespace: "default", Name: "q"}
	load := func(of objects.Name, id string) decide.Action {
		t.Helper()
		model := decide.Key{Pool: of, ID: id}
		s.SetModel(objects.Entry{ModelKey: model, Type: "adapter"}.Complete(nil), now)
		s.Wanted("x", model, decide.Want{Requests: 1, Since: now})
		todo, _ := s.Decide(now)
		if len(todo) != 1 || todo[0].Kind != decide.Load {
			t.Fatalf("to be done is %+v", todo)
		}
		return todo[0]
	}
	for address, of := range map[string]objects.Name{"e1": pool, "e2": other} {
		s.SetEndpoint(address, []objects.Name{of})
		s.Scraped(decide.ScrapeResult{Endpoint: decide.Endpoint{Address: address, Lists: true, CanLoad: true, Slots: 9}, Began: now}, now)
	}
	for n := range 4 {
		a := load(pool, fmt.Sprint("m", n))
		s.LoadEnded(decide.CopyKey{ModelKey: a.Model.ModelKey, Endpoint: a.Endpoint}, decide.LoadResult{Took: 20 * time.Second}, now)
	}
	if got := load(pool, "m4").Timeout; got != time.Minute {
		t.Errorf("after loads of 20 s the bound is %v, want three times as long", got)
	}
	if got := load(other, "m").Timeout; got != 2*time.Minute {
		t.Errorf("in a pool without loads the bound is %v", got)
	}
}
