package eds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// read converts text to endpoints. A trailing exclamation mark sets Avoid.
func read(texts map[string][]string) map[string][]Endpoint {
	all := make(map[string][]Endpoint)
	for name, endpoints := range texts {
		all[name] = []Endpoint{}
		for _, text := range endpoints {
			address, avoid := strings.CutSuffix(text, "!")
			all[name] = append(all[name], Endpoint{address, avoid})
		}
	}
	return all
}

// written is the inverse of read, for one list.
func written(endpoints []Endpoint) []string {
	all := []string{}
	for _, e := range endpoints {
		if e.Avoid {
			e.Address += "!"
		}
		all = append(all, e.Address)
	}
	return all
}

func TestEndpointLeavesListsLater(t *testing.T) {
	l := make(lists)
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		at   time.Duration
		set  map[string][]string // nil: call only changes
		want string
	}{
		{0, map[string][]string{"a": {"1", "2"}, "b": {}}, "lists a=[1 2] b=[], more in [a], gone []"},
		{0, map[string][]string{"a": {"1", "2"}, "b": {}}, "lists, more in [], gone []"},
		{1, map[string][]string{"a": {"1", "3"}, "b": {"1"}}, "lists a=[1 2 3] b=[1], more in [a b], gone []"},
		{2, map[string][]string{"a": {"3"}, "b": {"1"}}, "lists, more in [], gone []"},
		{3, map[string][]string{"a": {"1", "3"}, "b": {"1"}}, "lists, more in [], gone []"}, // 3 returns before its linger time is over
		{10, nil, "lists, more in [], gone []"},
		{11, nil, "lists a=[1 3], more in [], gone []"},
		{12, nil, "lists, more in [], gone []"},
		{20, map[string][]string{"a": {"1"}}, "lists, more in [], gone []"}, // the pool b is gone, but its endpoint is still listed
		{29, nil, "lists, more in [], gone []"},
		{30, nil, "lists a=[1], more in [], gone [b]"},
		{31, map[string][]string{"a": {"1"}, "b": {}}, "lists b=[], more in [], gone []"},
		{32, map[string][]string{"a": {"1"}}, "lists, more in [], gone [b]"}, // b is removed at once, since it had no endpoint
		{33, map[string][]string{}, "lists, more in [], gone []"},
		{34, map[string][]string{"a": {"1"}}, "lists, more in [], gone []"}, // a exists again
		{60, nil, "lists, more in [], gone []"},
		{61, map[string][]string{"a": {"1!", "2!"}}, "lists a=[1! 2!], more in [a], gone []"},
		{61, map[string][]string{"a": {"1!", "2!"}}, "lists, more in [], gone []"},
		{62, map[string][]string{"a": {"1", "2!"}}, "lists a=[1 2!], more in [], gone []"},
		{63, map[string][]string{"a": {"1"}}, "lists, more in [], gone []"}, // 2 is removed with its last mark
		{64, map[string][]string{"a": {"1", "2"}}, "lists a=[1 2], more in [], gone []"},
		{65, map[string][]string{"a": {"1!"}}, "lists a=[1! 2], more in [], gone []"},
		{75, nil, "lists a=[1!], more in [], gone []"},
		{80, nil, "lists, more in [], gone []"},
	} {
		now := began.Add(step.at * time.Second)
		var n news
		if step.set == nil {
			n = l.changes(now)
		} else {
			n = l.set(read(step.set), now)
		}
		var told strings.Builder
		for _, name := range slices.Sorted(maps.Keys(n.lists)) {
			fmt.Fprintf(&told, " %s=%v", name, written(n.lists[name]))
		}
		if got := fmt.Sprintf("lists%s, more in %v, gone %v", &told, n.more, n.removed); got != step.want {
			t.Errorf("after %d s: %s, want %s", step.at, got, step.want)
		}
	}
	if n := len(l["a"].left); n != 0 || len(l) != 1 {
		t.Errorf("%d endpoints and %d removed resources are still kept", n, len(l)-1)
	}
}

// For random histories, a resource lists the endpoints that it had in the last ten seconds, and
// news reports each change exactly once.
func TestListsCoverTheLastTenSeconds(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := make(lists)
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		until := make(map[string]map[string]time.Time) // when each address was removed, by resource and address; zero if it is current
		told := make(map[string][]string)
		for range 60 {
			now = now.Add(time.Duration(r.IntN(4000)) * time.Millisecond)
			set := make(map[string][]string)
			for _, name := range []string{"a", "b"} {
				if r.IntN(4) == 0 {
					continue
				}
				set[name] = []string{}
				for _, address := range []string{"1", "2", "3"} {
					if r.IntN(2) == 0 {
						set[name] = append(set[name], address)
					}
				}
			}
			for _, name := range []string{"a", "b"} {
				if until[name] == nil {
					until[name] = make(map[string]time.Time)
				}
				for _, address := range []string{"1", "2", "3"} {
					left, was := until[name][address]
					switch has := slices.Contains(set[name], address); {
					case has:
						until[name][address] = time.Time{}
					case was && left.IsZero():
						until[name][address] = now
					case was && now.Sub(left) >= linger:
						delete(until[name], address)
					}
				}
			}
			n := l.set(read(set), now)
			for name, listed := range n.lists {
				endpoints := written(listed)
				more := slices.ContainsFunc(endpoints, func(a string) bool { return !slices.Contains(told[name], a) })
				if more != slices.Contains(n.more, name) {
					t.Fatalf("seed %d: from %v to %v, and more in %v", seed, told[name], endpoints, n.more)
				}
				if slices.Equal(told[name], endpoints) && told[name] != nil {
					t.Fatalf("seed %d: %v is reported twice", seed, endpoints)
				}
				told[name] = endpoints
			}
			for _, name := range n.removed {
				delete(told, name)
			}
			for name, addresses := range until {
				_, set := set[name]
				if listed, ok := told[name]; ok != (set || len(addresses) > 0) ||
					!slices.Equal(listed, slices.Sorted(maps.Keys(addresses))) {
					t.Fatalf("seed %d: %s lists %v, want %v", seed, name, listed, addresses)
				}
			}
		}
	}
}

func TestListsKeepNothingOfTheirCallers(t *testing.T) {
	l := make(lists)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	endpoints := []Endpoint{{"1", false}, {"2", false}}
	l.set(map[string][]Endpoint{"a": endpoints}, now)
	endpoints[0].Address = "0"
	if n := l.set(map[string][]Endpoint{"a": endpoints}, now); !slices.Equal(written(n.lists["a"]), []string{"0", "1", "2"}) {
		t.Errorf("its list is %v", n.lists["a"])
	}
}
