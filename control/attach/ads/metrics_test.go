package ads_test

import (
	"sync"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/headgate/headgate/control/attach/envoy"
)

// counted is a Meter that records its calls.
type counted struct {
	mu       sync.Mutex // guards the fields below
	here     map[string]int
	sent     map[string]int
	refusals map[string]int
	took     []time.Duration
}

func (c *counted) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *counted) EnvoyCame(gateway string)        { c.note(func() { c.here[gateway]++ }) }
func (c *counted) EnvoyLeft(gateway string)        { c.note(func() { c.here[gateway]-- }) }
func (c *counted) EnvoySent(kind string, n int)    { c.note(func() { c.sent[kind] += n }) }
func (c *counted) EnvoyRefused(kind string)        { c.note(func() { c.refusals[kind]++ }) }
func (c *counted) EnvoyTook(after time.Duration)   { c.note(func() { c.took = append(c.took, after) }) }
func (c *counted) holds(f func() bool) (held bool) { c.note(func() { held = f() }); return held }

func TestUpdatesAndAnswersOfEnvoysAreCounted(t *testing.T) {
	c := &counted{here: map[string]int{}, sent: map[string]int{}, refusals: map[string]int{}}
	s := newStack(t, 22)
	s.server.Meter = c
	s.stop = s.serve()
	s.backend("a", 21000)
	s.backend("b", 21001)
	began := time.Now()
	s.apply(to("a"))
	s.run(s.place())
	s.await("200 a")
	// One duration is of the ADS stream, the other of the EDS stream.
	await(t, "it has all", func() bool { return c.holds(func() bool { return len(c.took) >= 2 && c.here["ns/g"] == 1 }) })
	c.holds(func() bool {
		if c.sent["clusters"] != 1 || c.sent["listeners"] != 1 || c.sent["routes"] != 1 || c.sent["endpoints"] != 1 ||
			c.sent["secrets"] != 0 {
			t.Errorf("the initial count of sent resources is %v", c.sent)
		}
		c.took = nil
		return true
	})
	s.apply(to("b"))
	s.await("200 b")
	await(t, "it has what changed", func() bool { return c.holds(func() bool { return len(c.took) >= 2 }) })
	c.holds(func() bool {
		for _, d := range c.took { // may include the last ACK before this part of the test
			if d <= 0 || d > time.Since(began) {
				t.Errorf("%v after the beginning, a duration of %v is recorded", time.Since(began), d)
			}
		}
		if c.sent["clusters"] != 3 || c.sent["routes"] != 2 { // one was added and one removed
			t.Errorf("after a change, the count of sent resources is %v", c.sent)
		}
		return true
	})
	s.apply(to("a"), func(r *envoy.Resources) {
		regex := &matcherv3.RegexMatcher{Regex: "(("}
		r.Routes[0].GetVirtualHosts()[0].GetRoutes()[0].GetMatch().PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex}
	})
	await(t, "it refuses what is no expression", func() bool { return c.holds(func() bool { return c.refusals["routes"] == 1 }) })
	s.envoy.Kill()
	await(t, "it is gone", func() bool { return c.holds(func() bool { return c.here["ns/g"] == 0 }) })
}
