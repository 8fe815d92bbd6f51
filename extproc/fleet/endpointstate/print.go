package endpointstate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

var healthTimes = [...]string{"heard", "due", "refused", "ended", "dropped", "stopping", "born", "failed", "full", "served"}

// String returns the whole state, one endpoint per line, for the output of failed tests.
func (s *State) String() string {
	var b strings.Builder
	for _, address := range slices.Sorted(maps.Keys(s.endpoints)) {
		e := s.endpoints[address]
		fmt.Fprintf(&b, "%s pools=%v in-flight=%d adapters=%d peers=%d others=%+v there=%v base=%v unlisted=%t",
			address, s.pools[address], e.inFlight.Load(), e.adapters.Load(), e.peers.Requests.Load(), e.others, e.there, e.lists.Base,
			e.lists.Unlisted)
		h := &e.health
		for i, at := range []time.Time{h.answeredAt, h.due, h.refused, h.ended, h.dropped, h.stopping, h.born, h.failed, h.full, h.served} {
			if !at.IsZero() {
				fmt.Fprintf(&b, " %s=%s", healthTimes[i], at.Format(time.StampMilli))
			}
		}
		fmt.Fprintln(&b)
		for _, model := range slices.Sorted(maps.Keys(e.models)) {
			c := e.models[model]
			fmt.Fprintf(&b, "  model=%q in-flight=%d closed=%t limit=%d\n", model, c.Load(), c.Closed.Load(), c.Limit.Load())
		}
	}
	for _, address := range slices.Sorted(maps.Keys(s.control.copies)) {
		for _, model := range slices.Sorted(maps.Keys(s.control.copies[address])) {
			c := s.control.copies[address][model]
			fmt.Fprintf(&b, "control: %s at %s is word=%d limit=%d others=%d missed=%t\n", model, address, c.state, c.limit, c.others,
				c.foundMissing)
		}
	}
	fmt.Fprintf(&b, "control: endpoints=%v failures=%v share=%+v leaving=%v missing=%v own=%v\n", s.control.endpoints, s.control.failures,
		s.control.share, s.control.leaving, s.control.missing, s.control.own)
	fmt.Fprintf(&b, "changed=%v fail-open=%v strays=%v urgent=%t\n", s.changed, s.failOpen, s.unknownBacklogs, s.urgent)
	return b.String()
}
