package decide_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// A model that no VModel names any more is reported once. The previous model of a VModel is treated
// as named while it keeps its copies.
func TestUnnamedModelsAreReported(t *testing.T) {
	s, now := decide.New(inOrder), start
	unnamed := func() (all []string) {
		s.Decide(now)
		for _, key := range s.Changes().Unnamed {
			all = append(all, key.ID)
		}
		slices.Sort(all)
		return all
	}
	set := func(id, target string) {
		s.SetVModel(decide.VModel{Key: key(id), Target: target}, decide.VModelProgress{}, false, now)
	}
	for _, id := range []string{"a", "b", "c"} {
		s.SetModel(objects.Entry{ModelKey: key(id)}, now)
	}
	s.SetEndpoint("e", []objects.Name{pool})
	s.Scraped(decide.ScrapeResult{
		Endpoint: decide.Endpoint{Address: "e", CanLoad: true, Slots: 4, Loads: 1, Lists: true}, Began: now,
		Listed: []string{"a", "b"},
	}, now)
	for i, c := range []struct {
		do   func()
		want []string
	}{
		{func() { set("v", "a"); set("w", "c") }, nil},
		{func() { set("v", "b") }, nil}, // a is not reported: it keeps its copies
		{func() { now = now.Add(10 * time.Minute) }, []string{"a"}},
		{func() {}, nil},
		{func() { set("w", "b") }, []string{"c"}}, // c is reported: it had no copies to keep
		{func() { s.RemoveVModel(key("v")) }, nil},
		{func() { s.RemoveVModel(key("w")) }, []string{"b"}},
	} {
		if c.do(); !slices.Equal(unnamed(), c.want) {
			t.Errorf("step %d: not %v", i, c.want)
		}
	}
}
