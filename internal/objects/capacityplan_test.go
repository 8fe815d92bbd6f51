package objects_test

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// stages returns the stages of a plan; next names each stage's successors.
func stages(next map[string]string, names ...string) (all []v1alpha1.PlanStage) {
	for _, name := range names {
		s := v1alpha1.PlanStage{Name: name}
		for to := range strings.FieldsSeq(next[name]) {
			s.Next = append(s.Next, v1alpha1.PlanEdge{Stage: to})
		}
		all = append(all, s)
	}
	return all
}

// Stages are sorted topologically; ties keep the order of the file.
func TestStagesAreInOrder(t *testing.T) {
	for want, all := range map[string][]v1alpha1.PlanStage{
		"a b c":   stages(map[string]string{"a": "b", "b": "c"}, "a", "b", "c"),
		"c b a":   stages(map[string]string{"c": "b", "b": "a"}, "a", "b", "c"),
		"a c b d": stages(map[string]string{"a": "c", "c": "b d", "b": "d"}, "d", "b", "a", "c"),
		"b a":     stages(nil, "b", "a"),
		"a":       stages(map[string]string{"b": "c", "c": "b"}, "a", "b", "c"),
	} {
		var got []string
		for _, i := range objects.InOrder(all) {
			got = append(got, all[i].Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

// goodPlan is a valid plan.
const goodPlan = `
metadata: {name: video}
spec:
  objectives: [{within: 300ms}]
  hardware: [{name: gpu, price: 1, maxUnits: 4}]
  stages:
  - name: detect
    hardware: [{name: gpu, latencies: [{size: 1, mean: 20ms}, {size: 2, mean: 30ms}], batchSizes: [1, 2]}]
    next: [{stage: plate, share: 0.5, choice: what}, {stage: person, share: 0.5, choice: what}]
  - name: plate
    hardware: [{name: gpu, file: plate.yaml}]
    next: [{stage: person}]
  - name: person
    replicas: {min: 1, max: 3}
    memory: {perReplica: 2Gi, models: 5Gi}
    hardware: [{name: gpu, units: 2, engine: {prefill: {base: 0.1}, decode: {base: 0.1}, limits: {maxSequences: 1, maxBatchedTokens: 1, kvBlocks: 1, blockSize: 1}}}]
`

// These rules are not in the CRD, or have other messages there. The CRD's own rules are tested with
// an API server.
func TestErrorsOfCapacityPlans(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"", "", ""},
		{
			"next: [{stage: person}]", "next: [{stage: detect}]",
			`spec.stages: Invalid value: "detect, plate": these stages form a cycle`,
		},
		{
			"share: 0.5, choice: what}]", "share: 0.6, choice: what}]",
			`spec.stages[0].next[1].share: Invalid value: 0.6: the shares of the choice "what" add up to 1.1: they may add up to 1 at most`,
		},
		{"share: 0.5, choice: what}]", "share: 0.6}]", ""},
		{"next: [{stage: person}]", "next: [{stage: nobody}]", `spec.stages[1].next[0].stage: Not found: "nobody"`},
		{
			"{size: 2, mean: 30ms}", "{size: 1, mean: 30ms}",
			"spec.stages[0].hardware[0].latencies[1].size: Invalid value: 1: sizes are in order, each once",
		},
		{
			"{size: 1, mean: 20ms}", "{size: 2, mean: 20ms}",
			"spec.stages[0].hardware[0].latencies: Invalid value: 2: want the latency of a batch of 1 first",
		},
		{
			"batchSizes: [1, 2]", "batchSizes: [2, 1]",
			"spec.stages[0].hardware[0].batchSizes[1]: Invalid value: 1: sizes must be at least 1, in ascending order, without duplicates",
		},
		{
			"{base: 0.1}, decode", "{base: -1}, decode",
			"spec.stages[2].hardware[0].engine.prefill.base: Invalid value: -1: a time in seconds is finite and not negative",
		},
		{"models: 5Gi", "minEvictionAge: 5m", "spec.stages[2].memory.modelSize: Required value: set the mean size of a model"},
		{"models: 5Gi", "models: -5Gi", `spec.stages[2].memory.models: Invalid value: "-5Gi": it must be above 0`},
		{
			"models: 5Gi", "minEvictionAge: 5m, modelSize: 3Gi",
			`spec.stages[2].memory.modelSize: Invalid value: "3Gi": it must be above 0, and at most perReplica`,
		},
		{"{min: 1, max: 3}", "{min: 4, max: 3}", "spec.stages[2].replicas.max: Invalid value: 3: it must be at least min"},
		{"objectives: [{within: 300ms}]", "objectives: []", "spec.objectives: Required value: set at least one objective"},
	} {
		o := new(v1alpha1.CapacityPlan)
		if err := yaml.UnmarshalStrict([]byte(strings.Replace(goodPlan, c.old, c.new, 1)), o); err != nil {
			t.Fatal(err)
		}
		faults := objects.CheckCapacityPlan(o)
		if c.want == "" && len(faults) > 0 || c.want != "" &&
			!slices.ContainsFunc(faults.ToAggregate().Errors(), func(err error) bool { return strings.HasPrefix(err.Error(), c.want) }) {
			t.Errorf("%s: %v, want %s", c.new, faults, c.want)
		}
	}
}
