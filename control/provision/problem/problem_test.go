package problem_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/control/provision/problem"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/workload"
)

// good is a valid CapacityPlan. Its stages are not in topological order.
const good = `
metadata: {name: video}
spec:
  objectives: [{within: 300ms}]
  hardware: [{name: gpu, maxUnits: 4}]
  hardwareFile: prices.yaml
  stages:
  - name: person
    hardware: [{name: gpu, units: 2, latencies: [{size: 1, mean: 30ms}, {size: 8, mean: 100ms}]}]
  - name: detect
    model: yolo
    replicas: {min: 2, max: 9}
    hardware: [{name: gpu, file: yolo.yaml, batchSizes: [1, 2]}]
    next: [{stage: person, share: 0.5, choice: what}]
`

// of converts the test plan, after replacing the text old by is, and returns the result as text or
// the error.
func of(t *testing.T, old, is string, queries []workload.Query) (string, error) {
	t.Helper()
	o := new(v1alpha1.CapacityPlan)
	if !strings.Contains(good, old) {
		t.Fatalf("the text lacks %q", old)
	}
	if err := yaml.UnmarshalStrict([]byte(strings.Replace(good, old, is, 1)), o); err != nil {
		t.Fatal(err)
	}
	if faults := objects.CheckCapacityPlan(o); len(faults) > 0 {
		t.Fatal(faults)
	}
	price := 1.5
	most := int32(9)
	yolo := profile.NewBatches("yolo", profile.Batch{Size: 1, Mean: 0.02}, profile.Batch{Size: 2, Mean: 0.03})
	yolo.Model, yolo.Hardware = "yolo", "gpu"
	files := problem.Files{
		Batches:  map[string]*profile.Batches{"yolo.yaml": yolo},
		Hardware: []v1alpha1.PlanHardware{{Name: "gpu", Price: &price, MaxUnits: &most}},
	}
	p, err := problem.New(o, files, nil, queries, nil)
	if err != nil {
		return "", err
	}
	given, err := problem.ParseCurrent(p, "detect=gpu:2x2,person=gpu")
	if err != nil {
		return "", err
	}
	if c := given.Config; p.AtMost["gpu"] != 4 || p.Cost(c) != 2*1.5+2*1.5 {
		t.Errorf("the limits are %v, and %v costs %v", p.AtMost, c, p.Cost(c))
	}
	if e := p.Pipeline.Edges; p.Stages[0].Name != "detect" || e[0].From != 0 || e[0].To != 1 || e[0].Share != 0.5 || e[0].Choice != 1 {
		t.Errorf("stages are %v, and edges %v", p.Stages, e)
	}
	return p.Stages[0].Name, nil
}

// priced returns the files that the test plan names. The hardware has a price and no bound.
func priced() problem.Files {
	price := 1.0
	yolo := profile.NewBatches("yolo", profile.Batch{Size: 1, Mean: 0.02}, profile.Batch{Size: 2, Mean: 0.03})
	return problem.Files{
		Batches:  map[string]*profile.Batches{"yolo.yaml": yolo},
		Hardware: []v1alpha1.PlanHardware{{Name: "gpu", Price: &price}},
	}
}

// every creates n queries with a constant interval, which use three models in turn.
func every(n int, interval float64) (all []workload.Query) {
	for i := range n {
		all = append(all, workload.Query{At: float64(i) * interval, Model: string(rune('a' + i%3))})
	}
	return all
}

// The plan is merged with the hardware file. Errors name the invalid field.
func TestErrorsOfPlans(t *testing.T) {
	for _, c := range []struct{ old, new, field, words string }{
		{"", "", "", ""},
		{
			"model: yolo", "model: resnet", "spec.stages[1].hardware[0].file",
			"the profile in yolo.yaml is of the model yolo, and the plan says resnet",
		},
		{"file: yolo.yaml", "file: none.yaml", "spec.stages[1].hardware[0].file", "none.yaml has no profile"},
		{"batchSizes: [1, 2]", "batchSizes: [1, 4]", "spec.stages[1].hardware[0].batchSizes[1]", "the profile has no batches above 2"},
		{"{name: gpu, units: 2,", "{name: tpu, units: 2,", "spec.stages[0].hardware[0].name", "tpu has no price"},
		{"min: 2, max: 9", "min: 2000000000", "spec.stages[1].replicas.min", "2000000000 replicas: no more than 100000 are simulated"},
		{
			"replicas: {min: 2, max: 9}", "memory: {perReplica: 80, models: 1Ti}", "spec.stages[1].memory",
			"more than 100000 replicas are needed for it: use units such as Gi",
		},
		{
			"min: 2, max: 9}", "max: 2}\n    memory: {perReplica: 1Gi, models: 5Gi}", "spec.stages[1].memory",
			"5 replicas are needed for it, and replicas.max is 2",
		},
		{"within: 300ms", "within: 30ms", "", ""}, // half of the queries pass only one stage
		{"within: 300ms", "metric: TimeToFirstToken, within: 1s", "spec.objectives[0].metric", "no stage is an LLM"},
		{
			"latencies: [{size: 1, mean: 30ms}, {size: 8, mean: 100ms}]",
			"engine: {prefill: {}, decode: {}, limits: {maxSequences: 1, maxBatchedTokens: 9, kvBlocks: 9, blockSize: 9}}",
			"spec.stages[0].hardware[0]", "its engine has no prefill or decode time",
		},
	} {
		_, err := of(t, c.old, c.new, every(100, 0.1))
		wrong := new(problem.Fault)
		if c.field == "" && err != nil || c.field != "" &&
			(!errors.As(err, &wrong) || wrong.Field != c.field || !strings.Contains(wrong.Words, c.words)) {
			t.Errorf("%s: %v, want %s: %s", c.new, err, c.field, c.words)
		}
	}
	if _, err := of(t, "", "", every(1, 1)); err == nil || !strings.HasPrefix(err.Error(), "spec.trace: ") {
		t.Error(err)
	}
}

// The slowdown of a named stage replaces the general slowdown. The profiles in Files do not change.
func TestModelsThatAreSlower(t *testing.T) {
	o := new(v1alpha1.CapacityPlan)
	if err := yaml.UnmarshalStrict([]byte(strings.Replace(good, "share: 0.5, choice: what", "share: 1", 1)), o); err != nil {
		t.Fatal(err)
	}
	files := priced()
	for _, c := range []struct {
		slower         problem.Slowdown
		detect, person float64
	}{
		{nil, 0.02, 0.03},
		{problem.Slowdown{"": 2}, 0.04, 0.06},
		{problem.Slowdown{"": 2, "detect": 3}, 0.06, 0.06},
		{problem.Slowdown{"person": 0.5}, 0.02, 0.015},
	} {
		p, err := problem.New(o, files, c.slower, every(100, 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []float64{c.detect, c.person} { // stages in topological order
			if got := p.Stages[i].Hardware[0].Times.MeanTime(1); math.Abs(got-want) > 1e-12 {
				t.Errorf("%v: %s takes %v, want %v", c.slower, p.Stages[i].Name, got, want)
			}
		}
	}
	if _, err := problem.New(o, files, problem.Slowdown{"person": 10}, every(100, 1), nil); err == nil ||
		!strings.Contains(err.Error(), "a query that never waits takes at least") {
		t.Errorf("the error for a stage that takes all the time is %v", err)
	}
	if is := files.Batches["yolo.yaml"].MeanTime(1); is != 0.02 {
		t.Errorf("the profile changed to %v", is)
	}
}

// Bounds that no useful plan reaches are removed. Otherwise planners would simulate very many
// replicas.
func TestBoundsThatAreNeverReached(t *testing.T) {
	for _, c := range []struct {
		max, maxUnits string
		replicas      int
		gpus          int
		bounded       bool
	}{
		{"9", "4", 9, 4, true},
		{"99", "299", 99, 299, true}, // 100 queries; replicas have one or two GPUs
		{"100", "300", 0, 0, false},
		{"2000000000", "2000000000", 0, 0, false},
	} {
		o := new(v1alpha1.CapacityPlan)
		text := strings.Replace(strings.Replace(good, "max: 9", "max: "+c.max, 1), "maxUnits: 4", "maxUnits: "+c.maxUnits, 1)
		if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
			t.Fatal(err)
		}
		p, err := problem.New(o, priced(), nil, every(100, 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		if most, bounded := p.AtMost["gpu"]; p.Stages[0].MaxReplicas != c.replicas || most != c.gpus || bounded != c.bounded {
			t.Errorf("with limits of %s replicas and %s GPUs, %d and %v remain", c.max, c.maxUnits, p.Stages[0].MaxReplicas, p.AtMost)
		}
	}
}

// Names of hardware in --current may contain colons.
func TestGivenHardware(t *testing.T) {
	p := &planner.Problem{Stages: []planner.Stage{{Name: "s", Hardware: []planner.Hardware{
		{Name: "a100", Batches: []int{1}}, {Name: "a100:80gb", Batches: []int{2}}, {Name: "a100:80", Batches: []int{3}},
	}}}}
	for text, want := range map[string][3]int{ // index of the hardware, batch size, replicas
		"s=a100": {0, 1, 1}, "s=a100:3": {0, 1, 3}, "s=a100:80gb": {1, 2, 1}, "s=a100:80gb:3x2": {1, 2, 3}, "s=a100:80": {2, 3, 1},
		"s=a100:80x1": {0, 1, 80},
	} {
		if is, err := problem.ParseCurrent(p, text); err != nil ||
			is.Config[0] != (planner.Setting{Hardware: want[0], Batch: want[1], Replicas: want[2]}) {
			t.Errorf("%s is %+v, %v, want %+v", text, is, err, want)
		}
	}
	for text, want := range map[string]string{
		"s=h100:3": "it may run on a100, a100:80gb, a100:80", "s=a1": "it may run on",
		"s=a100,s=a100": "occurs twice",
	} {
		if _, err := problem.ParseCurrent(p, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// The token counts of the test queries are checked before the search starts.
func TestTokensOfTheTestQueries(t *testing.T) {
	o := new(v1alpha1.CapacityPlan)
	text := strings.Replace(good, "latencies: [{size: 1, mean: 30ms}, {size: 8, mean: 100ms}]",
		"engine: {prefill: {base: 0.01}, decode: {base: 0.01}, limits: {maxSequences: 1, maxBatchedTokens: 9, kvBlocks: 9, blockSize: 9}}", 1)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	tokens := []workload.Query{{At: 0, Prompt: 5, Output: 5}, {At: 1, Prompt: 5, Output: 5}}
	if _, err := problem.New(o, priced(), nil, tokens, tokens); err != nil {
		t.Fatal(err)
	}
	_, err := problem.New(o, priced(), nil, tokens, []workload.Query{{At: 0, Prompt: 5, Output: 5}, {At: 1, Prompt: 50, Output: 50}})
	if want := "spec.stages[0].hardware[0]: of the queries that the plan is tested on, query 1 has 100 tokens"; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// If all queries pass all stages, an objective below the shortest service time is rejected. The
// shortest service time is taken over all batch sizes.
func TestObjectivesBelowTheServiceTime(t *testing.T) {
	for within, refused := range map[string]bool{"49ms": true, "51ms": false} {
		text := strings.Replace(strings.Replace(good, "300ms", within, 1), "share: 0.5, choice: what", "share: 1", 1)
		o := new(v1alpha1.CapacityPlan)
		if err := yaml.UnmarshalStrict([]byte(strings.Replace(text, "file: yolo.yaml, batchSizes: [1, 2]",
			"price: 1, latencies: [{size: 1, mean: 20ms}, {size: 8, mean: 100ms}], batchSizes: [8]", 1)), o); err != nil {
			t.Fatal(err)
		}
		price := 1.0
		_, err := problem.New(o, problem.Files{Hardware: []v1alpha1.PlanHardware{{Name: "gpu", Price: &price}}}, nil, every(100, 1), nil)
		if (err != nil) != refused || refused && !strings.HasPrefix(err.Error(),
			"spec.objectives[0].within: a query that never waits takes at least 0.05s") {
			t.Errorf("%s: %v", within, err)
		}
	}
}

// Three models are used in turn, and there is room for two. So each model is evicted two intervals
// after its last use.
func TestAge(t *testing.T) {
	for holds, want := range map[int]float64{1: 1, 2: 2, 3: math.Inf(1)} {
		if got := problem.MeanAge(every(300, 1), holds); got != want {
			t.Errorf("of three models %d fit, and their mean age is %v when evicted, want %v", holds, got, want)
		}
	}
}
