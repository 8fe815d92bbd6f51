package provision

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/internal/profile"
)

const plans = "../../docs/plans"

// The plans in the docs and their profile files are valid and can be planned. They say that the
// profiles are substitutes.
func TestPlansOfTheDocs(t *testing.T) {
	b := Bench{MaxSimulations: 100}
	if err := b.read(plans); err != nil {
		t.Fatal(err)
	}
	var names []string
	named := make(map[string]bool)
	for _, a := range b.Plans {
		names = append(names, a.Name)
		if _, err := a.Problem(a.Spec.Trace, 0); err != nil {
			t.Error(err)
		}
		p, err := a.Problem("gamma:rate=50,queries=300", 0)
		if err != nil {
			t.Fatal(err)
		}
		is, _, err := b.plan(t.Context(), p, planner.Search)
		if err != nil || !is.Found || !Keeps(p, is.Config) {
			t.Errorf("%s: %+v, %v", a.Name, is.Candidate, err)
		}
		for file, batches := range a.files.Batches {
			named[filepath.Base(file)] = true
			if !strings.HasPrefix(batches.Source, "A substitute") {
				t.Errorf("%s does not say that it is a substitute", file)
			}
		}
	}
	if want := []string{"image-processing", "social-media", "tf-cascade", "video-monitoring"}; !slices.Equal(names, want) {
		t.Errorf("plans are %v, want %v", names, want)
	}
	profiles, err := os.ReadDir(filepath.Join(plans, "profiles"))
	if err != nil || len(profiles) != len(named) {
		t.Errorf("there are %d profiles, of which plans name %d, %v", len(profiles), len(named), err)
	}
}

// fork is a pipeline whose second stage gets half of the queries.
func fork() *planner.Problem {
	times := func(one, two, four float64) *profile.Batches {
		return profile.NewBatches("x", profile.Batch{Size: 1, Mean: one}, profile.Batch{Size: 2, Mean: two},
			profile.Batch{Size: 4, Mean: four})
	}
	of := func(name string, price float64, is *profile.Batches, sizes ...int) planner.Hardware {
		return planner.Hardware{Name: name, Price: price, Times: is, Batches: sizes}
	}
	return &planner.Problem{
		Pipeline: &estimate.Pipeline{Stages: 2, Edges: []estimate.Edge{{From: 0, To: 1, Share: 0.5}}},
		Stages: []planner.Stage{
			{MinReplicas: 1, Hardware: []planner.Hardware{
				of("slow", 1, times(0.02, 0.03, 0.05), 1, 2, 4),
				of("fast", 4, times(0.01, 0.016, 0.028), 1, 2, 4),
			}},
			{MinReplicas: 1, Hardware: []planner.Hardware{of("cpu", 0.5, times(0.02, 0.04, 0.08), 1, 2, 4)}},
		},
		Objectives: []planner.Objective{{Seconds: 0.1, Share: 0.99}},
	}
}

// On the fastest hardware the two stages take 28 + 80 ms for batches of 4, and 16 + 40 ms for
// batches of 2. With 2 the first stage serves 2 / 16 ms = 125 queries/s, and the second one 2 / 40
// ms / 0.5 = 100. So 250 queries/s need 3 copies, each with a cost of 4.5. On the slow hardware the
// first stage serves 2 / 30 ms = 66.7 queries/s, which requires 4 copies with a cost of 1.5 each.
func TestCoarseByHand(t *testing.T) {
	for choose, want := range map[bool]Boxes{false: {[]int{1, 0}, 2, 3}, true: {[]int{0, 0}, 2, 4}} {
		is, ok := Coarse(fork(), 250, choose)
		if !ok || !cmp.Equal(is, want) {
			t.Errorf("%+v, %v, want %+v", is, ok, want)
		}
		if cost := fork().Cost(is.Config()); cost != map[bool]float64{false: 13.5, true: 6}[choose] {
			t.Errorf("it costs %v", cost)
		}
	}
	p := fork()
	p.Stages[1].Hardware[0].Batches = []int{1} // limits only the plans of our planners, not boxes
	if is, _ := Coarse(p, 1, true); is.Batch != 2 {
		t.Errorf("batches are of %d", is.Batch)
	}
	p.Stages[1].Hardware[0].Times = profile.NewBatches("x", profile.Batch{Size: 1, Mean: 0.02})
	if is, _ := Coarse(p, 1, true); is.Batch != 1 {
		t.Errorf("batches are of %d, of which a profile says nothing", is.Batch)
	}
	p.Objectives[0].Seconds = 0.03 // the fast hardware takes exactly this long
	if is, ok := Coarse(p, 1, true); !ok || is.Hardware[0] != 1 {
		t.Errorf("%+v, %v", is, ok)
	}
	p.Objectives[0].Seconds = 0.0299
	if is, ok := Coarse(p, 1, true); ok {
		t.Errorf("%+v keep what cannot be kept", is)
	}
}

func TestRateAndPeakByHand(t *testing.T) {
	all := estimate.Arrivals([]float64{0, 0.05, 0.09, 0.1, 0.3})
	if is := estimate.Rate(all); math.Abs(is-4/0.3) > 1e-9 {
		t.Errorf("the rate is %v", is)
	}
	for seconds, most := range map[float64]float64{0.1: 3, 0.01: 1, 0.2: 4, 1: 5} {
		if is := Peak(all, seconds); math.Abs(is-most/seconds) > 1e-9 {
			t.Errorf("in %v s the peak is %v, want %v queries", seconds, is, most)
		}
	}
}

// Each query takes a second without queueing, and the objective is 1.2 s. Copies get queries
// round-robin, so the number of copies decides how many queries wait.
func TestMissedObjectivesByHand(t *testing.T) {
	p := &planner.Problem{
		Pipeline: &estimate.Pipeline{Stages: 1},
		Stages: []planner.Stage{{MinReplicas: 1, Hardware: []planner.Hardware{
			{Name: "x", Price: 1, Times: profile.NewBatches("x", profile.Batch{Size: 1, Mean: 1}), Batches: []int{1}},
		}}},
		Objectives: []planner.Objective{{Seconds: 1.2, Share: 0.99}},
	}
	for _, c := range []struct {
		at     []float64
		copies int
		want   int
	}{
		{[]float64{0, 0, 0.5, 0.5}, 1, 3},
		{[]float64{0, 0, 0.5, 0.5}, 2, 2},
		{[]float64{0, 0, 0.5, 0.5}, 4, 0},
		{[]float64{0, 0, 0.5, 0.5}, 9, 0},
		{[]float64{0, 0.5, 5, 5.5}, 2, 0}, // copies get queries round-robin, so none waits
		{[]float64{0, 0, 0.1, 0.9, 3, 3, 3, 3}, 3, 1},
	} {
		p.Queries = estimate.Arrivals(c.at)
		b := Boxes{Hardware: []int{0}, Batch: 1, Copies: c.copies}
		if late, err := b.Late(p); late != c.want || err != nil {
			t.Errorf("with %d copies %d of %v are late, %v, want %d", c.copies, late, c.at, err, c.want)
		}
		late, err := Late(p, b.Config()) // the same result: shared queues gain nothing if service times are equal
		if late != c.want || err != nil {
			t.Errorf("with %d replicas %d of %v are late, %v, want %d", c.copies, late, c.at, err, c.want)
		}
	}
}

// A cost is marked if it exceeds that of a tighter objective or is below that of a lower rate.
// Otherwise it is not marked.
func TestMarks(t *testing.T) {
	none := math.Inf(1)
	trend := Trend{Rates: []float64{1, 2, 3}, Objectives: []float64{1, 2, 3}, Costs: [][]float64{
		{none, 2, 2},
		{5, 3, 4},
		{none, none, 3.5},
	}}
	want := [][]Mark{
		{0, 0, 0},
		{Higher, 0, Looser},
		{0, 0, Higher},
	}
	if is := trend.Marks(); !cmp.Equal(is, want) {
		t.Errorf("%v, want %v", is, want)
	}
	trend.Costs = [][]float64{{1, 1 + 1e-12, 3}, {1 - 1e-12, none, 2}, {4, 6, 5}}
	want = [][]Mark{{0, 0, Looser}, {0, Looser, Looser | Higher}, {0, Looser | Higher, Looser}}
	if is := trend.Marks(); !cmp.Equal(is, want) {
		t.Errorf("%v, want %v", is, want)
	}
}

// Each contender plans for one trace, and another trace tests the plan.
func TestCells(t *testing.T) {
	a, err := Read(filepath.Join(plans, "tf-cascade.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	b := Bench{Plans: []*Asked{a}, Queries: 400, Tested: 2000, MaxSimulations: 60}
	told := 0
	loads := []Load{{100, 4}, {50, 1}}
	cells, err := b.Cells(t.Context(), loads, func() { told++ })
	if err != nil || told != 2 || len(cells) != 2 {
		t.Fatalf("%d are done, %v, %v", told, cells, err)
	}
	for i, c := range cells {
		o := c.Outcomes
		if c.Load != loads[i] || c.Pipeline != "tf-cascade" ||
			o[0].Cost > o[1].Cost || o[3].Cost > o[2].Cost || o[4].Cost < o[2].Cost || o[5].Cost < o[3].Cost {
			t.Errorf("%+v", c)
		}
		p, _ := a.Problem(c.trace(400), 0)
		tested, _ := a.Problem(c.trace(2000), 1)
		is, stopped, err := b.plan(t.Context(), p, planner.Search)
		if err != nil || tested.Seed != 1 || o[0].Cost != is.Cost || !is.Found || o[0].Stopped != stopped || is.Simulations > 60 {
			t.Errorf("the plan is %+v, %v", is.Candidate, err)
		}
		if late, err := Late(tested, is.Config); err != nil || o[0].Missed != float64(late)/2000 || o[0].Pooled != o[0].Missed {
			t.Errorf("%d of 2000 are late, %v, and a share of %v is", late, err, o[0].Missed)
		}
		peak, _ := Coarse(p, Peak(p.Queries, 0.3), true)
		late, err := peak.Late(tested)
		pooled, _ := Late(tested, peak.Config())
		if err != nil || o[5].Missed != float64(late)/2000 || o[5].Pooled != float64(pooled)/2000 {
			t.Errorf("%d or %d of 2000 are late in boxes, %v, and %+v", late, pooled, err, o[5])
		}
	}
}

// There is a trend for each pipeline and CV, with a cost for each rate and objective.
func TestTrends(t *testing.T) {
	a, err := Read(filepath.Join(plans, "image-processing.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	b := Bench{Queries: 200, MaxSimulations: 30}
	cvs, rates, objectives := []float64{1, 2}, []float64{20, 50, 80}, []float64{0.01, 0.2} // an objective of 10 ms is impossible
	all, err := b.Trends(t.Context(), []*Asked{a, a}, cvs, rates, objectives, func() {})
	if err != nil || len(all) != 4 {
		t.Fatal(all, err)
	}
	for i, trend := range all {
		for j, rate := range rates {
			p, _ := a.Problem(Load{rate, cvs[i%2]}.trace(200), 0)
			p.Objectives[0].Seconds = 0.2
			is, _, _ := b.plan(t.Context(), p, planner.Search)
			if trend.CV != cvs[i%2] || !math.IsInf(trend.Costs[j][0], 1) || trend.Costs[j][1] != is.Cost {
				t.Errorf("%+v, want %v at a rate of %v", trend, is.Cost, rate)
			}
		}
	}
}

// The output contains each cell, and plots are written.
func TestPipelines(t *testing.T) {
	dir := t.TempDir()
	var out strings.Builder
	args := "--plans " + plans + " --rates 20,50 --cvs 1 --queries 100 --tested 100 --most 5" +
		" --trends tf-cascade --trend-queries 100 --trend-cvs 1,2 --plots " + dir
	if err := pipelines(t.Context(), strings.Fields(args), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"image-processing, 300ms", "video-monitoring, 300ms", "CG-Peak cheapest", "tf-cascade, CV 2", "500 ms"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q is in\n%s", want, out.String())
		}
	}
	for _, name := range []string{"provision-pipelines.svg", "provision-tf-cascade.svg"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), "<svg") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPipelinesRefuse(t *testing.T) {
	for args, want := range map[string]string{
		"x":                                   `unexpected argument "x"; see bench provision pipelines --help`,
		"--rates 0":                           "--rates [0]",
		"--queries 1":                         "want at least 2 queries",
		"--plans nowhere":                     "--plans: there is no plan in nowhere",
		"--plans " + plans + " --trends much": `no plan in ../../docs/plans is called "much"`,
	} {
		if err := pipelines(t.Context(), strings.Fields(args), new(strings.Builder)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
