package run

import (
	"testing"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// noon is the time of the first reading in a test.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(second float64) time.Time { return noon.Add(time.Duration(second * float64(time.Second))) }

// fleet returns extproc's metrics of healthy endpoints at these addresses, read some seconds after
// noon.
func fleet(second float64, addresses ...string) *extprocReading {
	r := &extprocReading{at: at(second), started: engine.Known(1)}
	for _, a := range addresses {
		r.endpoints = append(r.endpoints, endpoint{address: a, state: "healthy", running: engine.Known(4), waiting: engine.Known(2)})
	}
	return r
}

// vllm returns the metrics of an engine whose counters have these values.
func vllm(second, requests, tokens float64) engineReading {
	return engineReading{
		at: at(second), load: engine.Load{Running: engine.Known(3), Waiting: engine.Known(1), Started: engine.Known(100)},
		requests: engine.Known(requests), tokens: engine.Known(tokens), used: engine.Known(1), slots: engine.Known(2),
	}
}

func engines(of ...any) map[string]engineReading {
	all := make(map[string]engineReading)
	for i := 0; i < len(of); i += 2 {
		all[of[i].(string)] = of[i+1].(engineReading)
	}
	return all
}

// Each case contains the readings of consecutive seconds, and the last printed line without its
// time.
func TestLine(t *testing.T) {
	restarted := vllm(2, 3, 30)
	restarted.load.Started = engine.Known(200)
	fast := vllm(2, 500, 5000) // since its restart it has served more than it had before
	fast.load.Started = engine.Known(200)
	unborn, reborn := vllm(0, 400, 4000), vllm(1, 3, 30) // an engine without a start time, before and after its restart
	unborn.load.Started, reborn.load.Started = engine.Value{}, engine.Value{}
	changed := func(r *extprocReading, change func(*extprocReading)) *extprocReading {
		change(r)
		return r
	}
	for _, c := range []struct {
		name       string
		controlled bool
		readings   []reading
		want       string
	}{
		{
			name:     "the first says no rate",
			readings: []reading{{extproc: fleet(0, "a"), engines: engines("a", vllm(0, 10, 100))}},
			want:     "   - req/s     - tok/s | a   3+1   ●○",
		},
		{
			name: "rates are sums over engines",
			readings: []reading{
				{
					extproc: fleet(0, "a", "b"), engines: engines("a", vllm(0, 10, 100), "b", vllm(0, 0, 0)),
					names: map[string]string{"a": "engine-1"},
				},
				{
					extproc: fleet(1, "a", "b"), engines: engines("a", vllm(1, 12, 150), "b", vllm(1, 5, 50)),
					names: map[string]string{"a": "engine-1"},
				},
			},
			want: "   7 req/s   100 tok/s | engine-1   3+1   ●○ | b   3+1   ●○",
		},
		{
			name: "a late reading counts by the time since the last one",
			readings: []reading{
				{extproc: fleet(0, "a"), engines: engines("a", vllm(0, 0, 0))},
				{extproc: fleet(2.5, "a"), engines: engines("a", vllm(2.5, 10, 100))},
			},
			want: "   4 req/s    40 tok/s | a   3+1   ●○",
		},
		{
			name: "an engine that gives no answer is not one without requests",
			readings: []reading{
				{extproc: fleet(0, "a", "b"), engines: engines("a", vllm(0, 0, 0), "b", vllm(0, 0, 0))},
				{
					extproc: changed(fleet(1, "a", "b"), func(r *extprocReading) { r.endpoints[1].state = "out" }),
					engines: engines("a", vllm(1, 5, 50)),
				},
			},
			want: "   5 req/s    50 tok/s | a   3+1   ●○ | b no answer",
		},
		{
			name: "after misses a rate is by the time since the engine's own last answer",
			readings: []reading{
				{extproc: fleet(0, "a", "b"), engines: engines("a", vllm(0, 0, 0), "b", vllm(0, 0, 0))},
				{extproc: fleet(1, "a", "b"), engines: engines("a", vllm(1, 5, 50))},
				{extproc: fleet(2, "a", "b"), engines: engines("a", vllm(2, 10, 100))},
				{extproc: fleet(4, "a", "b"), engines: engines("a", vllm(4, 20, 200), "b", vllm(4, 80, 800))},
			},
			want: "  25 req/s   250 tok/s | a   3+1   ●○ | b   3+1   ●○",
		},
		{
			name: "an engine that restarted begins anew",
			readings: []reading{
				{extproc: fleet(1, "a"), engines: engines("a", vllm(1, 400, 4000))},
				{extproc: fleet(2, "a"), engines: engines("a", restarted)},
			},
			want: "   - req/s     - tok/s | a   3+1   ●○",
		},
		{
			name: "so does one whose counters are past the old ones",
			readings: []reading{
				{extproc: fleet(1, "a"), engines: engines("a", vllm(1, 400, 4000))},
				{extproc: fleet(2, "a"), engines: engines("a", fast)},
			},
			want: "   - req/s     - tok/s | a   3+1   ●○",
		},
		{
			name: "so does one that does not say when it began",
			readings: []reading{
				{extproc: fleet(0, "a"), engines: engines("a", unborn)},
				{extproc: fleet(1, "a"), engines: engines("a", reborn)},
			},
			want: "   - req/s     - tok/s | a   3+1   ●○",
		},
		{
			name: "an endpoint that comes has no rate in its first line",
			readings: []reading{
				{extproc: fleet(0, "a"), engines: engines("a", vllm(0, 0, 0))},
				{extproc: fleet(1, "a", "b"), engines: engines("a", vllm(1, 5, 50), "b", vllm(1, 1e6, 1e7))},
			},
			want: "   5 req/s    50 tok/s | a   3+1   ●○ | b   3+1   ●○",
		},
		{
			name: "one that has gone is gone, and is new when it is back",
			readings: []reading{
				{extproc: fleet(0, "a", "b"), engines: engines("a", vllm(0, 0, 0), "b", vllm(0, 0, 0))},
				{extproc: fleet(1, "a"), engines: engines("a", vllm(1, 5, 50))},
				{extproc: fleet(2, "a", "b"), engines: engines("a", vllm(2, 10, 100), "b", vllm(2, 1000, 1000))},
			},
			want: "   5 req/s    50 tok/s | a   3+1   ●○ | b   3+1   ●○",
		},
		{
			name: "what extproc hears is shown of one that tells us nothing",
			readings: []reading{
				{extproc: fleet(0, "a"), engines: engines()},
				{extproc: changed(fleet(1, "a"), func(r *extprocReading) {
					r.endpoints[0].requests, r.tokens = engine.Known(6), engine.Known(60)
				}), engines: engines()},
				{extproc: changed(fleet(3, "a"), func(r *extprocReading) {
					r.endpoints[0].requests, r.tokens = engine.Known(10), engine.Known(80)
				}), engines: engines()},
			},
			want: "   2 req/s    10 tok/s | a   4+2   -",
		},
		{
			name: "and what it holds against one that does",
			readings: []reading{
				{
					extproc: changed(fleet(0, "a"), func(r *extprocReading) { r.endpoints[0].state = "suspect" }),
					engines: engines("a", vllm(0, 0, 0)),
				},
			},
			want: "   - req/s     - tok/s | a   3+1   ●○ suspect",
		},
		{
			name: "without extproc the engines are those that it told of last",
			readings: []reading{
				{extproc: fleet(0, "a"), engines: engines("a", vllm(0, 0, 0))},
				{engines: engines("a", vllm(1, 5, 50))},
			},
			want: "   5 req/s    50 tok/s | a   3+1   ●○ | extproc does not answer",
		},
		{
			name: "an extproc that restarted counts anew",
			readings: []reading{
				{extproc: changed(fleet(0, "a"), func(r *extprocReading) {
					r.endpoints[0].requests, r.tokens = engine.Known(5), engine.Known(5)
				}), engines: engines()},
				{extproc: changed(fleet(1, "a"), func(r *extprocReading) {
					r.started, r.endpoints[0].requests, r.tokens = engine.Known(2), engine.Known(900), engine.Known(900)
				}), engines: engines()},
			},
			want: "   - req/s     - tok/s | a   4+2   -",
		},
		{
			name:     "names that have no address yet",
			readings: []reading{{extproc: fleet(0)}},
			want:     "   - req/s     - tok/s | no endpoint yet",
		},
		{
			name: "files that are refused",
			readings: []reading{{
				extproc: changed(fleet(0, "a"), func(r *extprocReading) { r.refused = 2 }),
				engines: engines("a", vllm(0, 0, 0)),
			}},
			want: "   - req/s     - tok/s | a   3+1   ●○ | files refused: 2",
		},
		{
			name:     "requests that wait, without control",
			readings: []reading{{extproc: changed(fleet(0), func(r *extprocReading) { r.held = 12 })}},
			want:     "   - req/s     - tok/s |  12 queued | no endpoint yet",
		},
		{
			name: "more slots than dots", controlled: true,
			readings: []reading{{
				extproc: changed(fleet(0, "a"), func(r *extprocReading) { r.held = 7 }), control: &controlReading{loads: 90},
				engines: engines("a", engineReading{used: engine.Known(3), slots: engine.Known(9)}),
			}},
			want: "   - req/s     - tok/s |   7 queued  0 loads  0 evictions | a   -+-   3/9",
		},
		{
			name: "what control did since it last answered", controlled: true,
			readings: []reading{
				{extproc: fleet(0), control: &controlReading{started: engine.Known(1), loads: 10, evictions: 5}},
				{extproc: fleet(1)},
				{extproc: fleet(2), control: &controlReading{started: engine.Known(1), loads: 14, evictions: 6}},
			},
			want: "   - req/s     - tok/s |   0 queued  4 loads  1 evictions | no endpoint yet",
		},
		{
			name: "a control that gives no answer", controlled: true,
			readings: []reading{{extproc: fleet(0)}},
			want:     "   - req/s     - tok/s | control does not answer | no endpoint yet",
		},
		{
			name: "a control that restarted", controlled: true,
			readings: []reading{
				{extproc: fleet(0), control: &controlReading{started: engine.Known(1), loads: 10, evictions: 5}},
				{extproc: fleet(1), control: &controlReading{started: engine.Known(2), loads: 12, evictions: 5}},
			},
			want: "   - req/s     - tok/s |   0 queued  0 loads  0 evictions | no endpoint yet",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m memory
			var line string
			for _, r := range c.readings {
				r.at = noon
				line, m = m.line(r, c.controlled)
			}
			if want := "12:00:00 " + c.want; line != want {
				t.Errorf("it says\n%s\nwant\n%s", line, want)
			}
		})
	}
}
