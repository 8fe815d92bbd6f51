// Package problem converts a CapacityPlan, its profiles and a trace to the input of a planner. It
// is pure. Its errors name the field of the CapacityPlan, and the caller adds the position in the
// file.
package problem

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/workload"
)

// Files contains the contents of the files that a CapacityPlan names.
type Files struct {
	// Engines and Batches contain the profiles. The keys are the file names in the CapacityPlan.
	Engines map[string]profile.Profile
	Batches map[string]*profile.Batches
	// Hardware is the content of the plan's hardwareFile.
	Hardware []v1alpha1.PlanHardware
}

// Slowdown has a factor for the service times of each stage, by stage name. The key "" applies to
// all stages that are not named. Nil means a factor of 1.
type Slowdown map[string]float64

func (s Slowdown) of(stage string) float64 {
	for _, name := range []string{stage, ""} {
		if by, ok := s[name]; ok {
			return by
		}
	}
	return 1
}

// Fault is an error in a field of a CapacityPlan.
type Fault struct {
	Field, Words string
}

func (f *Fault) Error() string { return f.Field + ": " + f.Words }

func fault(field, words string, args ...any) error { return &Fault{field, fmt.Sprintf(words, args...)} }

// New returns the planner's input for a valid CapacityPlan and a trace. queries are the part of the
// trace for planning, rest is the part for the test. All errors are Faults.
func New(o *v1alpha1.CapacityPlan, files Files, slower Slowdown, queries, rest []workload.Query) (*planner.Problem, error) {
	spec := &o.Spec
	p := &planner.Problem{
		Pipeline: &estimate.Pipeline{Stages: len(spec.Stages)}, Seed: uint64(spec.Seed),
		Queries: Queries(queries),
	} //nolint:gosec // not negative
	if len(queries) < 2 || !(queries[len(queries)-1].At > queries[0].At) {
		return nil, fault("spec.trace",
			"the planned part of the trace needs two queries at different times: use a longer trace or a larger --split")
	}
	kinds := make(map[string]v1alpha1.PlanHardware)
	for _, h := range slices.Concat(files.Hardware, spec.Hardware) { // the CapacityPlan's hardware overrides that of the file
		is := kinds[h.Name]
		is.Price, is.MaxUnits = cmp.Or(h.Price, is.Price), cmp.Or(h.MaxUnits, is.MaxUnits)
		kinds[h.Name] = is
	}
	for name, h := range kinds {
		if h.MaxUnits != nil {
			if p.AtMost == nil {
				p.AtMost = make(map[string]int)
			}
			p.AtMost[name] = int(*h.MaxUnits)
		}
	}
	number := make(map[string]int) // stage name -> its number in topological order
	order := objects.InOrder(spec.Stages)
	for n, i := range order {
		number[spec.Stages[i].Name] = n
	}
	parts := []struct {
		name string
		all  []estimate.Query
	}{{"that are planned on", p.Queries}, {"that the plan is tested on", Queries(rest)}}
	for n, i := range order {
		at := fmt.Sprintf("spec.stages[%d]", i)
		s, err := stage(&spec.Stages[i], at, kinds, files)
		if err != nil {
			return nil, err
		}
		slow(&s, slower.of(s.Name))
		if s.MinReplicas, err = least(&s, spec.Stages[i].Memory, at, queries); err != nil {
			return nil, err
		}
		p.Stages = append(p.Stages, s)
		choices := make(map[string]int)
		for _, e := range spec.Stages[i].Next {
			if _, there := choices[e.Choice]; !there && e.Choice != "" {
				choices[e.Choice] = len(choices) + 1
			}
			p.Pipeline.Edges = append(p.Pipeline.Edges,
				estimate.Edge{From: n, To: number[e.Stage], Share: objects.ShareOf(e), Choice: choices[e.Choice]})
		}
		for j, h := range s.Hardware {
			if h.Engine == nil {
				continue
			}
			for _, part := range parts {
				if err := estimate.CheckTokens(part.all, h.Engine); err != nil {
					return nil, fault(fmt.Sprintf("%s.hardware[%d]", at, j),
						"of the queries %s, %v; use a trace with token counts: prompt_tokens and output_tokens in a file, prompt and output in gamma",
						part.name, err)
				}
			}
		}
	}
	for i := range spec.Objectives {
		is, err := objective(&spec.Objectives[i], p, fmt.Sprintf("spec.objectives[%d]", i))
		if err != nil {
			return nil, err
		}
		p.Objectives = append(p.Objectives, is)
	}
	unbind(p)
	if err := p.Check(); err != nil {
		return nil, fault("spec", "%v", err)
	}
	return p, nil
}

// Queries converts the queries of a trace to those of package estimate.
func Queries(all []workload.Query) []estimate.Query {
	is := make([]estimate.Query, len(all))
	for i, q := range all {
		is[i] = estimate.Query{At: q.At, Prompt: q.Prompt, Output: q.Output}
	}
	return is
}

// unbind removes bounds that no useful plan reaches: more replicas than queries have no benefit.
// Otherwise planners would simulate as many replicas as a bound permits, such as a million.
func unbind(p *planner.Problem) {
	units := make(map[string]int) // for each kind of hardware, the most units that a useful plan can have
	for i := range p.Stages {
		s := &p.Stages[i]
		most := max(len(p.Queries), s.MinReplicas)
		if s.MaxReplicas >= most {
			s.MaxReplicas = 0
		}
		for _, h := range s.Hardware {
			units[h.Name] += most * h.Units
		}
	}
	maps.DeleteFunc(p.AtMost, func(kind string, there int) bool { return there >= units[kind] })
}

// stage converts a stage of the CapacityPlan for planners.
func stage(o *v1alpha1.PlanStage, at string, kinds map[string]v1alpha1.PlanHardware, files Files) (planner.Stage, error) {
	s := planner.Stage{Name: o.Name, MinReplicas: 1, Central: o.Queue == "Central", Ahead: o.Batching == "Always"}
	if r := o.Replicas; r != nil {
		if r.Min != nil {
			s.MinReplicas = int(*r.Min)
		}
		if r.Max != nil {
			s.MaxReplicas = int(*r.Max)
		}
	}
	if s.MinReplicas > maxReplicas {
		return s, fault(at+".replicas.min", "%d replicas: no more than %d are simulated", s.MinReplicas, maxReplicas)
	}
	if o.MaxBatchDelay != nil {
		s.Wait = o.MaxBatchDelay.Seconds()
	}
	if o.GatewayOverhead != nil {
		s.GatewayOverhead = o.GatewayOverhead.Seconds()
	}
	if o.Startup != nil {
		s.Startup = o.Startup.Seconds()
	}
	for i := range o.Hardware {
		h, err := hardware(o, &o.Hardware[i], fmt.Sprintf("%s.hardware[%d]", at, i), kinds, files)
		if err != nil {
			return s, err
		}
		if h.Engine != nil && (s.Central || s.Ahead || s.Wait > 0) {
			return s, fault(at, "an LLM engine has its own queue and no batching delay: leave out queue, batching and maxBatchDelay")
		}
		if (h.Engine != nil) != (s.Hardware != nil && s.Hardware[0].Engine != nil) && s.Hardware != nil {
			return s, fault(fmt.Sprintf("%s.hardware[%d]", at, i),
				"either its profile or that of %s is an LLM profile: all hardware of a stage must have the same kind", s.Hardware[0].Name)
		}
		s.Hardware = append(s.Hardware, h)
	}
	return s, nil
}

// maxReplicas is the largest number of replicas of a stage that can be simulated.
const maxReplicas = 100_000

// hardware converts one kind of hardware of a stage for planners.
func hardware(o *v1alpha1.PlanStage, h *v1alpha1.StageHardware, at string, kinds map[string]v1alpha1.PlanHardware,
	files Files,
) (planner.Hardware, error) {
	is := planner.Hardware{Name: h.Name, Units: 1}
	if h.Units != nil {
		is.Units = int(*h.Units)
	}
	switch {
	case h.Engine != nil:
		engine := objects.EngineOf(h)
		is.Engine = &engine
	case len(h.Latencies) > 0:
		is.Times = objects.LatenciesOf(h).Ready()
	default:
		engine, isEngine := files.Engines[h.File]
		is.Times = files.Batches[h.File]
		if isEngine {
			is.Engine = &engine
		}
		if is.Times == nil && is.Engine == nil {
			return is, fault(at+".file", "%s has no profile: measure one with headgate profile --url", h.File)
		}
		if err := same(o, h, &is, at); err != nil {
			return is, err
		}
	}
	if e := is.Engine; e != nil && !(e.PrefillTime(0, 1) > 0 && e.StepTime(profile.Work{Sequences: 1, KVTokens: 1}) > 0) {
		return is, fault(at, "its engine has no prefill or decode time: set prefill and decode")
	}
	switch kind := kinds[h.Name]; {
	case h.Price != nil:
		is.Price = *h.Price
	case kind.Price != nil:
		is.Price = *kind.Price * float64(is.Units)
	case is.Times != nil && is.Times.Price > 0:
		is.Price = is.Times.Price
	default:
		return is, fault(at+".name", "%s has no price: set it in spec.hardware, such as {name: %s, price: 1.20}, or here", h.Name, h.Name)
	}
	for _, size := range h.BatchSizes {
		is.Batches = append(is.Batches, int(size))
	}
	switch {
	case len(is.Batches) > 0:
	case is.Engine != nil:
		is.Batches = []int{is.Engine.Limits.MaxSequences}
	default:
		for _, b := range is.Times.Batches {
			is.Batches = append(is.Batches, b.Size)
		}
	}
	if last := len(is.Batches) - 1; is.Times != nil && is.Batches[last] > is.Times.MaxBatch() {
		return is, fault(fmt.Sprintf("%s.batchSizes[%d]", at, last), "the profile has no batches above %d: leave out %d, or measure it",
			is.Times.MaxBatch(), is.Batches[last])
	}
	return is, nil
}

// slow multiplies all service times of a stage by a factor.
func slow(s *planner.Stage, by float64) {
	for i := range s.Hardware {
		if h := &s.Hardware[i]; h.Engine != nil {
			engine := h.Engine.Times(by)
			h.Engine = &engine
		} else {
			h.Times = h.Times.Times(by)
		}
	}
}

// same checks that a profile is for the model and the hardware of a stage. It returns an error
// otherwise.
func same(o *v1alpha1.PlanStage, h *v1alpha1.StageHardware, is *planner.Hardware, at string) error {
	if is.Times == nil {
		return nil
	}
	for _, f := range []struct{ what, of, want string }{{"model", is.Times.Model, o.Model}, {"hardware", is.Times.Hardware, h.Name}} {
		if f.of != "" && f.want != "" && f.of != f.want {
			return fault(at+".file", "the profile in %s is of the %s %s, and the plan says %s: change the file or the name", h.File, f.what,
				f.of, f.want)
		}
	}
	return nil
}

// objective converts an objective for planners. It returns an error if no configuration can meet
// the objective.
func objective(o *v1alpha1.PlanObjective, p *planner.Problem, at string) (planner.Objective, error) {
	is := planner.Objective{Metric: map[string]planner.Metric{
		"": planner.Latency, "Latency": planner.Latency,
		"TimeToFirstToken": planner.FirstToken, "TimePerOutputToken": planner.PerToken,
	}[o.Metric]}
	is.Seconds, is.Share = objects.Within(o)
	if is.Metric != planner.Latency && !p.Tokens() {
		return is, fault(at+".metric", "no stage is an LLM, so there are no tokens")
	}
	if is.Metric != planner.Latency || p.Tokens() {
		return is, nil // no minimum is known, because latency depends on the tokens of each query
	}
	alone := p.Pipeline.ServiceTime(func(stage int) float64 {
		fastest := math.Inf(1)
		for _, h := range p.Stages[stage].Hardware {
			fastest = min(fastest, h.MinTime())
		}
		return fastest + p.Stages[stage].GatewayOverhead
	})
	if p.Pipeline.Certain() && alone >= is.Seconds {
		return is, fault(at+".within", "a query that never waits takes at least %.4gs on the fastest hardware: use a longer time", alone)
	}
	return is, nil
}

// least returns the smallest number of replicas whose memory is enough for the stage's models.
func least(s *planner.Stage, m *v1alpha1.PlanMemory, at string, queries []workload.Query) (int, error) {
	if m == nil {
		return s.MinReplicas, nil
	}
	each, replicas := m.PerReplica.AsApproximateFloat64(), s.MinReplicas
	if m.Models != nil {
		replicas = max(replicas, int(min(math.Ceil(m.Models.AsApproximateFloat64()/each), maxReplicas+1)))
	}
	if m.MinEvictionAge != nil {
		n, err := replicasForAge(queries, int(each/m.ModelSize.AsApproximateFloat64()), m.MinEvictionAge.Seconds())
		if err != nil {
			return 0, fault(at+".memory.minEvictionAge", "%v", err)
		}
		replicas = max(replicas, n)
	}
	switch {
	case replicas > maxReplicas:
		return 0, fault(at+".memory", "more than %d replicas are needed for it: use units such as Gi", maxReplicas)
	case s.MaxReplicas != 0 && replicas > s.MaxReplicas:
		return 0, fault(at+".memory", "%d replicas are needed for it, and replicas.max is %d", replicas, s.MaxReplicas)
	}
	return replicas, nil
}

// ParseCurrent parses the current configuration, such as detect=a100:3x8+2@10m-1@50m. For each
// stage it has the hardware, the number of replicas, the batch size, and changes in the number of
// replicas at times of the trace. If no batch size is given, the smallest is used.
func ParseCurrent(p *planner.Problem, text string) (*planner.Timetable, error) {
	today := planner.Steady(make(planner.Config, len(p.Stages)))
	there := make(map[int]bool)
	for part := range strings.SplitSeq(text, ",") {
		name, is, ok := strings.Cut(strings.TrimSpace(part), "=")
		i := slices.IndexFunc(p.Stages, func(s planner.Stage) bool { return s.Name == name })
		if !ok || i < 0 {
			return nil, fmt.Errorf("%q: want STAGE=HARDWARE:REPLICASxBATCH, such as %s=%s:3x8; stages are %s", part, p.Stages[0].Name,
				p.Stages[0].Hardware[0].Name, names(p.Stages, stageName))
		}
		if there[i] {
			return nil, fmt.Errorf("%q: the stage %s occurs twice", part, name)
		}
		h, counts := hardwareIn(is, p.Stages[i].Hardware)
		if h < 0 {
			return nil, fmt.Errorf("%q: the stage %s has no profile for that hardware: it may run on %s", part, name,
				names(p.Stages[i].Hardware, hardwareName))
		}
		all := p.Stages[i].Hardware[h].Batches
		s := planner.Setting{Hardware: h, Replicas: 1, Batch: all[0]}
		first := strings.IndexAny(counts+"+", "+-")
		if err := counted(counts[:first], &s); err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		changes, err := changesOf(counts[first:], s.Replicas)
		if err == nil {
			err = estimate.CheckChanges(changes)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		if t := p.Stages[i].Hardware[h].Times; t != nil && s.Batch > t.MaxBatch() {
			return nil, fmt.Errorf("%q: the profile has no batches above %d", part, t.MaxBatch())
		}
		today.Config[i], today.Changes[i], there[i] = s, changes, true
	}
	for i, s := range p.Stages {
		if !there[i] {
			return nil, fmt.Errorf("the stage %s is missing: stages are %s", s.Name, names(p.Stages, stageName))
		}
	}
	return today, nil
}

// hardwareIn finds the name of hardware at the start of a text such as a100:3x8. It returns the
// index of that hardware in all, and the text after the colon. The index is -1 if no name matches.
// Names may contain colons.
func hardwareIn(text string, all []planner.Hardware) (number int, rest string) {
	number = -1
	for i, h := range all {
		after, begins := strings.CutPrefix(text, h.Name)
		if begins && (after == "" || after[0] == ':') && (number < 0 || len(h.Name) > len(all[number].Name)) {
			number, rest = i, strings.TrimPrefix(after, ":")
		}
	}
	return number, rest
}

// changesOf parses changes in the number of replicas, such as +2@10m-1@50m. replicas is the initial
// number.
func changesOf(text string, replicas int) (all []estimate.Change, err error) {
	for text != "" {
		next := 1 + strings.IndexAny(text[1:]+"+", "+-")
		count, at, _ := strings.Cut(text[:next], "@")
		more, err := strconv.Atoi(count)
		when, wrong := time.ParseDuration(at)
		if err != nil || more == 0 || wrong != nil {
			return nil, fmt.Errorf("%s: want a change of replicas and a time, such as +2@10m", text[:next])
		}
		if replicas += more; replicas > maxReplicas {
			return nil, fmt.Errorf("%s: that is %d replicas: no more than %d are simulated", text[:next], replicas, maxReplicas)
		}
		all = append(all, estimate.Change{At: when.Seconds(), Replicas: replicas})
		text = text[next:]
	}
	return all, nil
}

// counted parses a number of replicas with a batch size (3x8) or without one (3). Missing parts do
// not change in s.
func counted(text string, s *planner.Setting) error {
	if text == "" {
		return nil
	}
	replicas, batch, both := strings.Cut(text, "x")
	for _, f := range []struct {
		text string
		into *int
	}{{replicas, &s.Replicas}, {batch, &s.Batch}} {
		if f.text == "" && !both {
			continue
		}
		n, err := strconv.Atoi(f.text)
		if err != nil || n < 1 || n > maxReplicas {
			return fmt.Errorf("want replicas and batch size as 3x8, both from 1 to %d", maxReplicas)
		}
		*f.into = n
	}
	return nil
}

// names joins the names of stages or hardware with commas.
func names[T any](all []T, name func(T) string) string {
	var words []string
	for _, is := range all {
		words = append(words, name(is))
	}
	return strings.Join(words, ", ")
}

func stageName(s planner.Stage) string { return s.Name }

func hardwareName(h planner.Hardware) string { return h.Name }

// ReadFiles reads the files that a CapacityPlan names: first the profiles in order of their names,
// then the hardware file. It calls the function read for each file; field is the field that names
// the file. Errors are Faults, except those of read.
func ReadFiles(o *v1alpha1.CapacityPlan, read func(field, name string) (objects.Set, error)) (Files, error) {
	files := Files{Engines: make(map[string]profile.Profile), Batches: make(map[string]*profile.Batches)}
	fields := make(map[string]string) // file name -> the first field that names the file
	for i := range o.Spec.Stages {
		for j, h := range o.Spec.Stages[i].Hardware {
			if _, named := fields[h.File]; h.File != "" && !named {
				fields[h.File] = fmt.Sprintf("spec.stages[%d].hardware[%d].file", i, j)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		set, err := read(fields[name], name)
		if err != nil {
			return files, err
		}
		for _, is := range set.Profiles {
			files.Engines[name] = is
		}
		for _, is := range set.Batches {
			files.Batches[name] = is
		}
	}
	name := o.Spec.HardwareFile
	if name == "" {
		return files, nil
	}
	set, err := read(hardwareFile, name)
	if err != nil {
		return files, err
	}
	for _, all := range set.Hardware {
		files.Hardware = all
	}
	if len(files.Hardware) == 0 {
		return files, fault(hardwareFile, "%s has no hardware: add a list such as hardware: [{name: a100, price: 3.2}]", name)
	}
	return files, nil
}

// hardwareFile is the field of a CapacityPlan that names the hardware file.
const hardwareFile = "spec.hardwareFile"
