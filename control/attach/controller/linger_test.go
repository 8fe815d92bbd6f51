package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/internal/objects"
)

// clusters returns a snapshot with some clusters. A name may end in "=" and a version.
func clusters(names ...string) order.Snapshot {
	s := order.Snapshot{order.Clusters: {}, order.Routes: {"r": {Version: "1"}}}
	for _, n := range names {
		name, version, _ := strings.Cut(n, "=")
		s[order.Clusters][name] = order.Resource{Version: version}
	}
	return s
}

// The cluster of a pool that is removed from a plan stays in Envoys for ten seconds. All other
// resources are removed at once.
func TestRemovedPoolsLinger(t *testing.T) {
	g, other := objects.Name{Namespace: "ns", Name: "g"}, objects.Name{Namespace: "ns", Name: "other"}
	begin := time.Unix(1e9, 0)
	l := make(lingering)
	given := map[objects.Name]order.Snapshot{}
	set := func(at time.Duration, to map[objects.Name]order.Snapshot) {
		l.note(given, to, begin.Add(at))
		given = to
	}
	expect := func(what, want string) {
		t.Helper()
		all := l.with(given)
		var got []string
		for _, gateway := range slices.SortedFunc(maps.Keys(all), objects.Name.Compare) {
			var has []string
			for name, c := range all[gateway][order.Clusters] {
				has = append(has, name+"="+c.Version)
			}
			slices.Sort(has)
			got = append(got, fmt.Sprint(gateway.Name, has))
			if len(all[gateway][order.Routes]) != 1 {
				t.Errorf("%s: the routes of %s are %v", what, gateway, all[gateway][order.Routes])
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	end := func(at time.Duration, want bool) {
		t.Helper()
		if got := l.end(begin.Add(at)); got != want {
			t.Errorf("after %v: pools removed: %v", at, got)
		}
	}
	set(0, map[objects.Name]order.Snapshot{g: clusters("pool/ns/a=1", "service/ns/s/80=1"), other: clusters("pool/ns/a=1")})
	expect("at first", "g[pool/ns/a=1 service/ns/s/80=1] other[pool/ns/a=1]")
	before := given
	set(time.Second, map[objects.Name]order.Snapshot{g: clusters("pool/ns/b=1"), other: clusters("pool/ns/a=1")})
	expect("another pool of one Gateway", "g[pool/ns/a=1 pool/ns/b=1] other[pool/ns/a=1]")
	if len(before[g][order.Clusters]) != 2 || len(given[g][order.Clusters]) != 1 {
		t.Error("published resources have changed")
	}
	set(5*time.Second, map[objects.Name]order.Snapshot{g: clusters("pool/ns/c=1"), other: clusters("pool/ns/a=2")})
	expect("another one, and one that changes", "g[pool/ns/a=1 pool/ns/b=1 pool/ns/c=1] other[pool/ns/a=2]")
	end(10*time.Second, false)
	end(11*time.Second, true)
	expect("the first is over", "g[pool/ns/b=1 pool/ns/c=1] other[pool/ns/a=2]")
	set(12*time.Second, map[objects.Name]order.Snapshot{g: clusters("pool/ns/b=2", "pool/ns/c=1"), other: clusters("pool/ns/a=2")})
	expect("one is back", "g[pool/ns/b=2 pool/ns/c=1] other[pool/ns/a=2]")
	end(time.Minute, false)
	set(time.Minute, map[objects.Name]order.Snapshot{g: clusters()})
	expect("a Gateway has gone", "g[pool/ns/b=2 pool/ns/c=1]")
	set(61*time.Second, map[objects.Name]order.Snapshot{})
	expect("all have gone", "")
	end(time.Hour, false)
}
