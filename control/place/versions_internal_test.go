package place

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// In the test cases, each word is a pod: its workload, its version, and its age in minutes.
func TestOutgoingPods(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct{ pods, want string }{
		"nothing is rolled":                       {"d/1/30 d/1/20 d/1/1", ""},
		"a roll":                                  {"d/1/30 d/1/20 d/2/1 d/2/5", "d/1/20 d/1/30"},
		"a roll that ended or stands still":       {"d/1/30 d/1/20 d/2/15", ""},
		"a roll that goes on":                     {"d/1/30 d/2/20 d/2/14", "d/1/30"},
		"a roll back":                             {"d/1/30 d/2/10 d/1/1", ""},
		"a pod of the older version is made anew": {"d/1/30 d/2/10 d/1/2", ""},
		"two at once":                             {"d/1/30 d/2/10 d/3/1", "d/1/30 d/2/10"},
		"another workload":                        {"d/1/30 e/2/1", ""},
		"another workload is rolled":              {"d/1/30 d/1/1 e/2/1 e/1/9", "e/1/9"},
		"nothing makes them anew":                 {"/1/30 /2/1", ""},
		"two that stay side by side":              {"d/1/20 d/1/5 d/2/10 d/2/1", ""},
		"in the same moment":                      {"d/1/5 d/2/5", ""},
	} {
		var all []objects.Engine
		for word := range strings.FieldsSeq(c.pods) {
			parts := strings.Split(word, "/")
			minutes, _ := strconv.Atoi(parts[2])
			var e objects.Engine
			e.Address, e.Pod.Namespace = word, "default"
			e.Version = objects.Version{Workload: parts[0], Template: parts[1], Made: now.Add(-time.Duration(minutes) * time.Minute)}
			all = append(all, e)
		}
		elsewhere := all[0]
		elsewhere.Pod.Namespace, elsewhere.Template, elsewhere.Made = "elsewhere", "9", now
		if got := strings.Join(slices.Sorted(maps.Keys(outgoing(append(all, elsewhere), now))), " "); got != c.want {
			t.Errorf("%s: of %s %q are likely to be replaced, want %q", name, c.pods, got, c.want)
		}
	}
}
