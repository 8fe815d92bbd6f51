package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/headgate/headgate/bench/chart"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/control/profile/survey"
	"github.com/headgate/headgate/headgate/rig"
	profiles "github.com/headgate/headgate/internal/profile"
)

var (
	floodTime = flag.Duration("flood", 0, "how long a tenant floods simulated engines, and how long the others are measured without it")
	floodRuns = flag.Int("flood-runs", 1, "repeat the measurement with the flood this often; figures are medians")
	floodPlot = flag.String("flood-plot", "", "draw the times to first token of the others into this `FILE`, such as flood.svg")
)

// A flood is as in bench flow: tenants that use half of the capacity together, and one that sends
// twice the capacity. Engines take real time, so there are fewer of them, and batches and answers
// are smaller.
const (
	floodEngines   = 4
	floodSequences = 64  // in the batch of an engine
	floodAnswer    = 256 // tokens, at most
	floodTenants   = 8
	floodOthersUse = 0.5
	floodUses      = 2
	flooder        = "flooder"
	// floodMost is how many times the TTFT alone the others may have in a flood.
	floodMost = 3
	// floodPatience is how long the test waits for first tokens after the last request.
	floodPatience = 10 * time.Second
)

// sentRequest is a request of a tenant, and what became of it.
type sentRequest struct {
	at            time.Duration // since the beginning
	tenant        string
	prompt        int // words of the prompt, which are about as many tokens
	answer        int // tokens
	first         time.Duration
	waits, failed bool // it has no first token yet, or never will
}

// In a flood, tenants get their first tokens almost as early as without it, through a real Envoy.
// Run it with make bench-flow.
func TestFloodDelaysOtherTenantsLittle(t *testing.T) {
	runs(t, alone)
	if *floodTime == 0 {
		t.Skip("-flood says how long it takes")
	}
	lengths := fleet.Conversation()
	for i := range lengths {
		lengths[i].Output = min(lengths[i].Output, floodAnswer)
	}
	capacity := floodCapacity(t, lengths)
	t.Logf("%d engines; capacity %.1f requests per second", floodEngines, capacity)

	var lines []chart.Line
	var ratios []float64
	for n := range *floodRuns {
		for _, mode := range []string{"Off", "On"} {
			alone, flooded := floodedIn(t, uint64(n), mode, capacity, lengths)
			is, was := ttft99(flooded), ttft99(alone)
			t.Logf("flow %s: TTFT of the others: alone p50 %.2f s, p99 %.2f s, of %d; in the flood p50 %.2f s, p99 %.2f s, of %d", mode,
				ttft(alone, 0.5), was, len(alone), ttft(flooded, 0.5), is, len(flooded))
			if mode == "On" {
				ratios = append(ratios, is/was)
			}
			if n == 0 {
				lines = append(lines, chart.Line{Name: "flow: " + mode, Points: ttftByTime(append(alone, flooded...))})
			}
		}
	}
	if *floodPlot != "" {
		drawFlood(t, *floodPlot, lines)
	}
	slices.Sort(ratios)
	verdict, ratio := "met", ratios[len(ratios)/2]
	if ratio > floodMost {
		verdict = "MISSED"
		t.Error("a target was missed")
	}
	t.Logf("%s  real Envoy: TTFT p99 of the others in the flood, times alone  %.3f  at most %d", verdict, ratio, floodMost)
}

// floodProfile returns the profile of the engines.
func floodProfile(t *testing.T) profiles.Profile {
	t.Helper()
	text, err := os.ReadFile(root + "/headgate/simulated/llm/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := profiles.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	p.Limits.MaxSequences = floodSequences
	return p
}

// floodCapacity returns how many requests per second the engines complete, in simulation.
func floodCapacity(t *testing.T, lengths fleet.Lengths) float64 {
	t.Helper()
	f := fleet.Fleet{
		Profile: floodProfile(t), Endpoints: floodEngines, Pickers: 1, ScrapeInterval: 0.2, AdapterSync: 1, BacklogSync: 0.02,
	}
	capacity, err := f.Capacity(fleet.Stream{Lengths: lengths})
	if err != nil {
		t.Fatal(err)
	}
	return capacity
}

// floodedIn measures the others without a flood and then in a flood, on engines of their own.
func floodedIn(t *testing.T, seed uint64, mode string, capacity float64, lengths fleet.Lengths) (alone, flooded []sentRequest) {
	t.Helper()
	s := start(t, pods(t, floodEngines), func(c *rig.Config) {
		profile, settings := filepath.Join(c.Objects, "..", "flood.yaml"), filepath.Join(c.Objects, "settings.yaml")
		route := strings.ReplaceAll(routes(baseRoute), "spec:\n", "spec:\n  tenantHeader: x-tenant-id\n")
		for file, text := range map[string]string{
			profile: string(profiles.Format(floodProfile(t))), settings: poolSettings("flow: {mode: '" + mode + "'}"),
			filepath.Join(c.Objects, "routes.yaml"): route,
		} {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c.EngineFlags = append(c.EngineFlags, "--profile", profile)
	})
	defer s.Stop(5 * time.Second)
	warm := *floodTime / 4
	all := floodRequests(seed, capacity, lengths, warm+*floodTime, warm+2**floodTime)
	s.sendAll(t, all)
	for _, r := range all {
		switch {
		case r.tenant == flooder || r.at < warm:
		case r.failed:
			t.Errorf("flow %s: a request of %s after %v failed", mode, r.tenant, r.at)
		case r.at < warm+*floodTime:
			r.at -= warm
			alone = append(alone, r)
		default:
			r.at -= warm
			flooded = append(flooded, r)
		}
	}
	return alone, flooded
}

// floodRequests returns requests with Poisson arrivals in order of time. The flood begins at a time
// and lasts until the end.
func floodRequests(seed uint64, capacity float64, lengths fleet.Lengths, from, end time.Duration) (all []sentRequest) {
	for i := range floodTenants + 1 {
		random := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // the same in each run
		tenant, rate, at := fmt.Sprintf("tenant-%d", i), floodOthersUse*capacity/floodTenants, time.Duration(0)
		if i == floodTenants {
			tenant, rate, at = flooder, floodUses*capacity, from
		}
		for {
			if at += time.Duration(random.ExpFloat64() / rate * float64(time.Second)); at >= end {
				break
			}
			l := lengths[random.IntN(len(lengths))]
			all = append(all, sentRequest{at: at, tenant: tenant, prompt: l.Prompt, answer: l.Output})
		}
	}
	slices.SortFunc(all, func(a, b sentRequest) int { return int(a.at - b.at) })
	return all
}

// sendAll sends each request when it is due, and records when its first token arrives. It waits a
// while for the first tokens of the others, and then cancels all.
func (s *stack) sendAll(t *testing.T, all []sentRequest) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	began := time.Now()
	for i := range all {
		r := &all[i]
		time.Sleep(time.Until(began.Add(r.at)))
		ended.Go(func() { s.sendOne(ctx, r, uint64(i)) })
	}
	time.Sleep(floodPatience)
	cancel()
	ended.Wait()
}

// sendOne sends a request, records the time until its first token, and reads the answer.
func (s *stack) sendOne(ctx context.Context, r *sentRequest, number uint64) {
	random := rand.New(rand.NewPCG(number, 0)) //nolint:gosec // any text does
	body := survey.PromptBody(random, survey.Completions, baseRoute, r.prompt, r.answer)
	began := time.Now()
	r.waits = true
	defer func() {
		if r.waits {
			r.first = time.Since(began)
		}
	}()
	response, err := s.open(ctx, request{body: string(body), header: map[string]string{"X-Tenant-Id": r.tenant}})
	if err != nil {
		r.failed = ctx.Err() == nil
		return
	}
	defer response.Body.Close()
	r.failed = response.StatusCode != http.StatusOK
	lines := bufio.NewReader(response.Body)
	for !r.failed {
		line, err := lines.ReadString('\n')
		if err != nil {
			r.failed = ctx.Err() == nil
			return
		}
		if strings.HasPrefix(line, "data:") {
			r.first, r.waits = time.Since(began), false
			break
		}
	}
	_, _ = io.Copy(io.Discard, lines)
}

// ttft returns a quantile of the times to first token, in seconds. A request without a first token
// counts with the time that it has waited.
func ttft(all []sentRequest, share float64) float64 {
	times := make([]float64, len(all))
	for i, r := range all {
		times[i] = r.first.Seconds()
	}
	slices.Sort(times)
	return times[max(0, int(math.Ceil(share*float64(len(times))))-1)]
}

func ttft99(all []sentRequest) float64 { return ttft(all, 0.99) }

// ttftByTime returns the longest time to first token by time of arrival, in seconds.
func ttftByTime(all []sentRequest) (points plotter.XYs) {
	const interval = 5
	longest := make(map[int]float64)
	for _, r := range all {
		i := int(r.at.Seconds() / interval)
		longest[i] = max(longest[i], r.first.Seconds())
	}
	for i, is := range longest {
		points = append(points, plotter.XY{X: (float64(i) + 0.5) * interval, Y: is})
	}
	slices.SortFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) })
	return points
}

// drawFlood draws the times to first token with and without flow.
func drawFlood(t *testing.T, path string, lines []chart.Line) {
	t.Helper()
	var figure chart.Figure
	p, err := figure.Panel(fmt.Sprintf("A tenant floods from %.0f s on", floodTime.Seconds()), "arrival (s)",
		"longest time to first token of the others (s)", lines)
	if err != nil {
		t.Fatal(err)
	}
	p.Y.Min = 0.1
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	if err := figure.Save(path, 8*vg.Inch, 4*vg.Inch); err != nil {
		t.Fatal(err)
	}
}
