package metrics_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/metrics"
)

// Waiting requests are reported by pool, band and reason. A pool has a series for each reason even
// while nobody waits. Series of pools that are gone are removed.
func TestHeldRequests(t *testing.T) {
	f := fleet.New(fleet.Config{})
	w := world("10.0.0.1")
	f.SetWorld(w)
	m := metrics.New(f)
	m.SetWorld(w)
	var held []metrics.Held
	m.ReportHeld(func() []metrics.Held { return held })
	lines := func(name string) []string {
		_, page := get(t, m, "/metrics")
		var all []string
		for line := range strings.Lines(page) {
			if regexp.MustCompile(`^headgate_(pool_held|band)` + name).MatchString(line) {
				all = append(all, strings.TrimSpace(line))
			}
		}
		return all
	}
	zeros := []string{
		`headgate_pool_held_requests{pool="ns/pool",reason="copy"} 0`, `headgate_pool_held_requests{pool="ns/pool",reason="endpoint"} 0`,
		`headgate_pool_held_requests{pool="ns/pool",reason="room"} 0`, `headgate_pool_held_requests{pool="ns/pool",reason="turn"} 0`,
	}
	if got := lines(".*"); !slices.Equal(got, zeros) {
		t.Errorf("nobody waits: %q", got)
	}
	ago := time.Now().Add(-time.Hour)
	held = []metrics.Held{
		{Pool: "ns/pool", Band: -1, Reason: "room", Requests: 2, Since: ago}, {Pool: "ns/pool", Band: 7, Reason: "room", Requests: 3, Since: ago},
	}
	got := lines(".*")
	for _, want := range []string{
		`headgate_pool_held_requests{pool="ns/pool",reason="room"} 5`,
		`headgate_band_held_requests{band="-1",pool="ns/pool",reason="room"} 2`,
		`headgate_band_held_requests{band="7",pool="ns/pool",reason="room"} 3`,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q lacks %s", got, want)
		}
	}
	if oldest := lines("_held_oldest"); len(oldest) != 2 || !regexp.MustCompile(`\} 36\d\d\.`).MatchString(oldest[0]) {
		t.Errorf("the oldest have waited %q", oldest)
	}
	held = nil
	m.Waited("ns/pool", 7, "turn", 3*time.Second)
	m.Waited("ns/gone", 7, "turn", 3*time.Second)
	m.TurnedAway("ns/pool", 7, metrics.QueueFull)
	got = lines(".*")
	for _, want := range []string{
		`headgate_band_held_time_seconds_sum{band="7",pool="ns/pool",reason="turn"} 3`,
		`headgate_band_held_time_seconds_count{band="7",pool="",reason="turn"} 1`,
		`headgate_band_refused_total{band="7",pool="ns/pool",reason="full"} 1`,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q lacks %s", got, want)
		}
	}
	w = world()
	w.Pools = nil
	m.SetWorld(w)
	f.SetWorld(w)
	for _, line := range lines(".*") {
		if strings.Contains(line, "ns/pool") {
			t.Errorf("the pool is gone, but not %s", line)
		}
	}
}
