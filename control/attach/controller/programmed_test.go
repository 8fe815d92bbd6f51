package controller

import (
	"maps"
	"testing"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/internal/objects"
)

// A Gateway is programmed while one of its Envoys has all current resources.
func TestGatewayIsProgrammedOnceAnEnvoyHasAllResources(t *testing.T) {
	g, h := objects.Name{Namespace: "ns", Name: "g"}, objects.Name{Namespace: "ns", Name: "h"}
	one, two := ads.Envoy{Gateway: g, Stream: 1}, ads.Envoy{Gateway: g, Stream: 2}
	f := newFollowers()
	given := map[objects.Name]order.Snapshot{}
	give := func(change uint64, to map[objects.Name]order.Snapshot) {
		f.give(given, to, change)
		given = to
	}
	expect := func(what string, want ...objects.Name) {
		t.Helper()
		all := map[objects.Name]bool{}
		for _, name := range want {
			all[name] = true
		}
		if got := f.programmed(); !maps.Equal(got, all) {
			t.Errorf("%s: %v, want %v", what, got, all)
		}
	}
	give(1, map[objects.Name]order.Snapshot{g: clusters("a=1"), h: clusters("a=1")})
	expect("nobody is there")
	f.envoys[one] = 0
	expect("one came")
	f.envoys[one] = 1
	expect("it has all", g)
	give(2, map[objects.Name]order.Snapshot{g: clusters("a=1"), h: clusters("a=2")})
	expect("another Gateway's changed", g)
	give(3, map[objects.Name]order.Snapshot{g: clusters("a=2"), h: clusters("a=2")})
	expect("its own changed")
	f.envoys[two] = 2
	expect("a second one is behind")
	f.envoys[two] = 3
	expect("the second has all", g)
	delete(f.envoys, two)
	expect("it has left")
	f.envoys[one] = 5
	give(6, map[objects.Name]order.Snapshot{h: clusters("a=2")})
	expect("the Gateway is gone")
	give(7, map[objects.Name]order.Snapshot{g: clusters("a=2"), h: clusters("a=2")})
	expect("it is back")
}
