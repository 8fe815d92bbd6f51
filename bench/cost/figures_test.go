package cost

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		all  []float64
		want spread
		text string
	}{
		{nil, spread{}, "–"},
		{[]float64{2}, spread{2, 2, 2}, "2.0"},
		{[]float64{4, 1, 3}, spread{3, 1, 4}, "3.0 (1.0–4.0)"},
		{[]float64{4, 1, 3, 2}, spread{2.5, 1, 4}, "2.5 (1.0–4.0)"},
	} {
		s := spreadOf(c.all)
		if s != c.want || s.text("%.1f", 1) != c.text {
			t.Errorf("%v: %v, %q; want %v, %q", c.all, s, s.text("%.1f", 1), c.want, c.text)
		}
	}
	if text := (spread{2e-6, 1e-6, 4e-6}).text("%.0f", micro); text != "2 (1–4)" {
		t.Errorf("in microseconds: %q", text)
	}
}

// What idle processes use is subtracted, and what remains is divided by the number of requests.
func TestSampleIsPerRequestAndWithoutIdle(t *testing.T) {
	used := reading{
		envoy: 300 * time.Millisecond, server: 250 * time.Millisecond, engines: 40 * time.Millisecond,
		client: 80 * time.Millisecond, machine: time.Second,
	}
	idle := cores{envoy: 0.05, server: 0.025}
	took := []time.Duration{4 * time.Millisecond, time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}
	s := sampleOf(used, 2*time.Second, took).without(idle)
	want := sample{envoy: 0.05, server: 0.05, p50: 0.002, p99: 0.004, rate: 2, engines: 0.01, client: 0.02, others: 0.165}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	if !near(s.envoy, want.envoy) || !near(s.server, want.server) || s.p50 != want.p50 || s.p99 != want.p99 ||
		!near(s.rate, want.rate) || !near(s.engines, want.engines) || !near(s.client, want.client) || !near(s.others, want.others) {
		t.Errorf("%+v, want %+v", s, want)
	}
	if s := sampleOf(reading{}, time.Second, took).without(idle); !near(s.envoy, -0.0125) || !near(s.server, -0.00625) || s.others != 0 {
		t.Errorf("less than idle: %+v", s)
	}
}

// The median of what an idle gateway uses is subtracted in every round, because a single round
// measures it too briefly.
func TestIdleIsSubtractedByItsMedian(t *testing.T) {
	all, idle := make(results), map[string][]cores{"gateway": {{0.1, 0.3}, {0.2, 0.1}, {0.3, 0.2}}}
	for range 3 {
		all.add("x", "gateway", sample{envoy: 1, server: 2, rate: 2})
		all.add("x", "alone", sample{envoy: 1, rate: 2})
	}
	less := all.without(idle)
	for i, s := range less["x"]["gateway"] {
		if math.Abs(s.envoy-0.9) > 1e-9 || math.Abs(s.server-1.9) > 1e-9 || all["x"]["gateway"][i].envoy != 1 ||
			less["x"]["alone"][i].envoy != 1 {
			t.Errorf("round %d: %+v", i, s)
		}
	}
}

// Ratios compare figures of the same round, so that a busy machine, which slows both, does not
// change them.
func TestRatiosPairRounds(t *testing.T) {
	all := make(results)
	for _, both := range []float64{100, 300, 200} { // microseconds of the floor
		all.add("x", "floor", sample{envoy: both * 0.6 * micro, server: both * 0.4 * micro, p50: both * micro})
		all.add("x", "gateway", sample{envoy: both * micro, server: both * 0.5 * micro, p50: 1.25 * both * micro})
	}
	all["x"]["smg"] = []sample{{server: 50 * micro}} // one round only
	for _, q := range ratios {
		s := q.spread(all["x"])
		want := map[string]float64{"both / floor": 1.5, "both / smg": 3, "p50 / floor": 1.25, "Envoy / floor's": 1 / 0.6}[q.name]
		if math.Abs(s.low-want) > 1e-9 || math.Abs(s.high-want) > 1e-9 {
			t.Errorf("%s: %+v, want %v", q.name, s, want)
		}
	}
}

func TestTables(t *testing.T) {
	all := make(results)
	for _, us := range []float64{40, 44, 60} {
		one := sample{envoy: us * micro, server: 10 * micro, p50: 0.5 * milli, p99: milli, rate: 1000, engines: 9 * micro}
		all.add("1KB-1", "floor", one)
		one.envoy, one.server, one.others = 2*one.envoy, 2*one.server, 0.25
		all.add("1KB-1", "gateway", one)
	}
	var b bytes.Buffer
	all.table(&b, cells, variants)
	all.ratioTable(&b, cells[:2])
	all.sides(&b, cells[:1], map[string][]cores{"gateway": {{0.001, 0.02}, {0.001, 0.04}, {0.001, 0.03}}})
	for _, want := range []string{
		"1 KB, 1 client Envoy, µs server, µs both, µs p50, ms p99, ms requests/s",
		"Envoy, ext_proc, no-op (floor) 44 (40–60) 10 54 (50–70) 0.50 1.00 1000",
		"our envoy.yaml, extproc 88 (80–120) 20 108 (100–140) 0.50 1.00 1000",
		"1 KB, 1 client 2.00 – 1.00 2.00 – – –",
		"1 KB, 32 clients – – – – – – –",
		"1 KB, 1 client 9 – 1 30 (20–40)",
		"Other processes of this machine used 0.12 (0.00–0.25) cores meanwhile.",
	} {
		if got := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, b.String())
		}
	}
}

// The table of endpoints has a row for each number of endpoints, what each further one costs, and
// ratios of figures of the same round.
func TestFleetTable(t *testing.T) {
	is := fleetResults{kind: fleetKinds[1], of: make(map[string][][]fleetSample)}
	for _, n := range []int{8, 64, 1008} {
		var mine, base []fleetSample
		for _, busy := range []float64{1, 3, 2} {
			s := fleetSample{n: n, cores: busy * float64(n) / 1e4, scrapes: 5, age: 0.25, memory: 1e7 + 1e5*float64(n), engines: 0.01}
			if n != 64 {
				s.p50, s.p99, s.loadedAge = busy*milli, (1+float64(n)/1000)*milli, 0.5
			}
			mine = append(mine, s)
			s.cores, s.p99 = 4*s.cores, 2*s.p99
			base = append(base, s)
		}
		is.of["extproc"], is.of["base"] = append(is.of["extproc"], mine), append(is.of["base"], base)
	}
	var b bytes.Buffer
	fleetTable(&b, []fleetResults{is}, []string{"extproc", "base"})
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"page of 82 KB, idle endpoints scraping, cores",
		"extproc 64 0.013 (0.006–0.019) 40 (20–60) 5.0 0.25 16.4 0.010 – – –",
		"extproc 1008 0.202 (0.101–0.302) 40 (20–60) 5.0 0.25 110.8 0.010 2.00 (1.00–3.00) 2.01 0.50",
		"extproc, each further endpoint, 1008 / 8 0.00020 0.100 1.00 × 1.99 ×",
		"extproc / base 64 0.25 0.25 1.00 – –",
		"extproc / base 1008 0.25 0.25 1.00 1.00 0.50",
		"400 requests a second, which bench ext sends without Envoy. Medians of 3 rounds.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, b.String())
		}
	}
}

func TestSum(t *testing.T) {
	page := "# HELP a x\na{x=\"1 2\"} 3\na{x=\"2\"} 4.5\nab{} 7\na 9\na{} NaNsense\n"
	if got := sum(page, "a"); got != 7.5 {
		t.Errorf("the sum is %v", got)
	}
}
