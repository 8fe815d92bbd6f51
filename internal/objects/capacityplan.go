package objects

import (
	"fmt"
	"math"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/profile"
)

// Limits of a CapacityPlan, the same as in its CRD.
const (
	maxPlanObjectives = 8
	maxPlanStages     = 32
	maxPlanEdges      = 16
	maxPlanHardware   = 16 // per stage
	maxPlanKinds      = 32 // kinds of hardware in a plan, in total
	maxPlanBatches    = 32
	maxStageName      = 63
)

// CheckCapacityPlan validates a CapacityPlan. It does not read the files that the plan names.
func CheckCapacityPlan(o *v1alpha1.CapacityPlan) field.ErrorList {
	errs := CheckName(o.Name)
	spec := field.NewPath("spec")
	objectives := spec.Child("objectives")
	if len(o.Spec.Objectives) == 0 {
		errs = append(errs, field.Required(objectives, "set at least one objective, such as {within: 500ms}"))
	}
	errs = append(errs, checkCount(objectives, len(o.Spec.Objectives), maxPlanObjectives)...)
	for i := range o.Spec.Objectives {
		errs = append(errs, checkPlanObjective(objectives.Index(i), &o.Spec.Objectives[i])...)
	}
	errs = append(errs, CheckPlanHardware(spec.Child("hardware"), o.Spec.Hardware)...)
	errs = append(errs, checkLength(spec.Child("hardwareFile"), o.Spec.HardwareFile, maxPath)...)
	errs = append(errs, checkLength(spec.Child("trace"), o.Spec.Trace, maxPath)...)
	if o.Spec.Seed < 0 {
		errs = append(errs, field.Invalid(spec.Child("seed"), o.Spec.Seed, "it must not be negative"))
	}

	stages := spec.Child("stages")
	if len(o.Spec.Stages) == 0 {
		errs = append(errs, field.Required(stages, "list at least one model of the pipeline"))
	}
	errs = append(errs, checkCount(stages, len(o.Spec.Stages), maxPlanStages)...)
	names := make(map[string]bool)
	for i := range o.Spec.Stages {
		is, at := &o.Spec.Stages[i], stages.Index(i)
		errs = append(errs, checkNew(at.Child("name"), is.Name, maxStageName, names)...)
		errs = append(errs, checkStage(at, is)...)
	}
	for i := range o.Spec.Stages {
		errs = append(errs, checkEdges(stages.Index(i).Child("next"), o.Spec.Stages[i].Next, names)...)
	}
	if circle := circleOf(o.Spec.Stages); len(errs) == 0 && circle != nil {
		errs = append(errs, field.Invalid(stages, strings.Join(circle, ", "),
			"these stages form a cycle: a query would never finish"))
	}
	return errs
}

func checkPlanObjective(at *field.Path, o *v1alpha1.PlanObjective) (errs field.ErrorList) {
	if all := []string{"Latency", "TimeToFirstToken", "TimePerOutputToken"}; o.Metric != "" && !slices.Contains(all, o.Metric) {
		errs = append(errs, field.NotSupported(at.Child("metric"), o.Metric, all))
	}
	if o.Within.Duration <= 0 {
		errs = append(errs, field.Invalid(at.Child("within"), o.Within.Duration.String(), "it must be above 0"))
	}
	return append(errs, checkShare(at.Child("quantile"), o.Quantile)...)
}

// checkShare requires a share above 0 and at most 1.
func checkShare(at *field.Path, share *float64) (errs field.ErrorList) {
	if share != nil && !(*share > 0 && *share <= 1) {
		errs = append(errs, field.Invalid(at, *share, "it must be above 0, and 1 at most"))
	}
	return errs
}

// checkPrice requires a price.
func checkPrice(at *field.Path, price *float64) (errs field.ErrorList) {
	if price != nil && (!(*price > 0) || math.IsInf(*price, 0)) {
		errs = append(errs, field.Invalid(at, *price, "it must be above 0"))
	}
	return errs
}

// checkNew refuses a name that is empty, too long or a duplicate.
func checkNew(at *field.Path, name string, most int, there map[string]bool) (errs field.ErrorList) {
	switch {
	case name == "":
		errs = append(errs, field.Required(at, "give it a name"))
	case there[name]:
		errs = append(errs, field.Duplicate(at, name))
	}
	there[name] = true
	return append(errs, checkLength(at, name, most)...)
}

// CheckPlanHardware validates kinds of hardware, which may be in a file of their own.
func CheckPlanHardware(at *field.Path, all []v1alpha1.PlanHardware) field.ErrorList {
	errs := checkCount(at, len(all), maxPlanKinds)
	names := make(map[string]bool)
	for i, h := range all {
		errs = append(errs, checkNew(at.Index(i).Child("name"), h.Name, maxNameLen, names)...)
		errs = append(errs, checkPrice(at.Index(i).Child("price"), h.Price)...)
		if h.MaxUnits != nil && *h.MaxUnits < 0 {
			errs = append(errs, field.Invalid(at.Index(i).Child("maxUnits"), *h.MaxUnits, "it must not be negative"))
		}
	}
	return errs
}

func checkStage(at *field.Path, s *v1alpha1.PlanStage) field.ErrorList {
	errs := checkLength(at.Child("model"), s.Model, maxType)
	hardware := at.Child("hardware")
	if len(s.Hardware) == 0 {
		errs = append(errs, field.Required(hardware, "list at least one kind of hardware that it can run on"))
	}
	errs = append(errs, checkCount(hardware, len(s.Hardware), maxPlanHardware)...)
	names := make(map[string]bool)
	for i := range s.Hardware {
		errs = append(errs, checkNew(hardware.Index(i).Child("name"), s.Hardware[i].Name, maxNameLen, names)...)
		errs = append(errs, checkStageHardware(hardware.Index(i), &s.Hardware[i])...)
	}
	if r := s.Replicas; r != nil {
		least, replicas := int32(1), at.Child("replicas")
		if r.Min != nil {
			least = *r.Min
		}
		if least < 1 {
			errs = append(errs, field.Invalid(replicas.Child("min"), least, "it must be at least 1"))
		}
		if r.Max != nil && *r.Max < max(1, least) {
			errs = append(errs, field.Invalid(replicas.Child("max"), *r.Max, "it must be at least min"))
		}
	}
	for _, f := range []struct {
		name string
		is   *metav1.Duration
	}{{"maxBatchDelay", s.MaxBatchDelay}, {"gatewayOverhead", s.GatewayOverhead}, {"startup", s.Startup}} {
		if f.is != nil && f.is.Duration < 0 {
			errs = append(errs, field.Invalid(at.Child(f.name), f.is.Duration.String(), "it must not be negative"))
		}
	}
	if all := []string{"Replica", "Central"}; s.Queue != "" && !slices.Contains(all, s.Queue) {
		errs = append(errs, field.NotSupported(at.Child("queue"), s.Queue, all))
	}
	if all := []string{"WhenIdle", "Always"}; s.Batching != "" && !slices.Contains(all, s.Batching) {
		errs = append(errs, field.NotSupported(at.Child("batching"), s.Batching, all))
	}
	if s.Batching == "Always" && (s.MaxBatchDelay == nil || s.MaxBatchDelay.Duration <= 0) {
		errs = append(errs, field.Invalid(at.Child("batching"), s.Batching, "set maxBatchDelay: how long a batch waits for more queries"))
	}
	if s.Memory != nil {
		errs = append(errs, checkMemory(at.Child("memory"), s.Memory)...)
	}
	return errs
}

func checkMemory(at *field.Path, m *v1alpha1.PlanMemory) (errs field.ErrorList) {
	if m.PerReplica.Sign() <= 0 {
		errs = append(errs, field.Invalid(at.Child("perReplica"), m.PerReplica.String(), "it must be above 0"))
	}
	if (m.Models == nil) == (m.MinEvictionAge == nil) {
		errs = append(errs, field.Invalid(at, "", "set one of models and minEvictionAge"))
	}
	if m.Models != nil && m.Models.Sign() <= 0 {
		errs = append(errs, field.Invalid(at.Child("models"), m.Models.String(), "it must be above 0"))
	}
	if m.MinEvictionAge != nil {
		if m.MinEvictionAge.Duration <= 0 {
			errs = append(errs, field.Invalid(at.Child("minEvictionAge"), m.MinEvictionAge.Duration.String(), "it must be above 0"))
		}
		if m.ModelSize == nil {
			errs = append(errs, field.Required(at.Child("modelSize"), "set the mean size of a model"))
		}
	}
	if m.ModelSize != nil && (m.ModelSize.Sign() <= 0 || m.ModelSize.Cmp(m.PerReplica) > 0) {
		errs = append(errs, field.Invalid(at.Child("modelSize"), m.ModelSize.String(), "it must be above 0, and at most perReplica"))
	}
	return errs
}

func checkStageHardware(at *field.Path, h *v1alpha1.StageHardware) field.ErrorList {
	errs := checkPrice(at.Child("price"), h.Price)
	if h.Units != nil && *h.Units < 1 {
		errs = append(errs, field.Invalid(at.Child("units"), *h.Units, "it must be at least 1"))
	}
	forms := 0
	for _, given := range []bool{h.File != "", len(h.Latencies) > 0, h.Engine != nil} {
		if given {
			forms++
		}
	}
	if forms != 1 {
		errs = append(errs, field.Invalid(at, "",
			"set one of file, latencies and engine: they state the model's service times, which headgate profile measures"))
	}
	errs = append(errs, checkLength(at.Child("file"), h.File, maxPath)...)
	errs = append(errs, checkCount(at.Child("latencies"), len(h.Latencies), maxPlanBatches)...)
	if len(h.Latencies) > 0 {
		for _, f := range LatenciesOf(h).Faults() {
			errs = append(errs, field.Invalid(at.Child(strings.Replace(f.Field, "batches", "latencies", 1)), f.Value, f.Words))
		}
	}
	if h.Engine != nil {
		for _, f := range inlineProfile(h.Engine).Faults() {
			errs = append(errs, field.Invalid(at.Child("engine").Child(f.Field), f.Value, f.Words))
		}
	}
	errs = append(errs, checkCount(at.Child("batchSizes"), len(h.BatchSizes), maxPlanBatches)...)
	for i, size := range h.BatchSizes {
		if size < 1 || i > 0 && size <= h.BatchSizes[i-1] {
			errs = append(errs, field.Invalid(at.Child("batchSizes").Index(i), size, "sizes must be at least 1, in ascending order, without duplicates"))
		}
	}
	return errs
}

// LatenciesOf returns the latencies written in a CapacityPlan. They are not ready for use: see
// [profile.NewBatches].
func LatenciesOf(h *v1alpha1.StageHardware) *profile.Batches {
	b := &profile.Batches{Name: h.Name, Hardware: h.Name}
	for _, l := range h.Latencies {
		b.Batches = append(b.Batches, profile.Batch{Size: int(l.Size), Mean: l.Mean.Seconds()})
	}
	return b
}

// EngineOf returns the engine profile written in a CapacityPlan.
func EngineOf(h *v1alpha1.StageHardware) profile.Profile { return inlineProfile(h.Engine) }

// ShareOf returns the share of queries that take an edge.
func ShareOf(e v1alpha1.PlanEdge) float64 {
	if e.Share == nil {
		return 1
	}
	return *e.Share
}

func checkEdges(at *field.Path, all []v1alpha1.PlanEdge, stages map[string]bool) field.ErrorList {
	errs := checkCount(at, len(all), maxPlanEdges)
	together := make(map[string]float64) // sum of shares, by choice
	for i, e := range all {
		switch {
		case !stages[e.Stage]:
			errs = append(errs, field.NotFound(at.Index(i).Child("stage"), e.Stage))
		case e.Choice != "":
			if together[e.Choice] += ShareOf(e); together[e.Choice] > 1+1e-9 {
				errs = append(errs, field.Invalid(at.Index(i).Child("share"), ShareOf(e),
					fmt.Sprintf("the shares of the choice %q add up to %.4g: they may add up to 1 at most", e.Choice, together[e.Choice])))
			}
		}
		errs = append(errs, checkShare(at.Index(i).Child("share"), e.Share)...)
		errs = append(errs, checkLength(at.Index(i).Child("choice"), e.Choice, maxStageName)...)
	}
	return errs
}

// circleOf returns stages that form a cycle, nil if there is none.
func circleOf(stages []v1alpha1.PlanStage) (circle []string) {
	for i, s := range stages {
		if !slices.Contains(InOrder(stages), i) {
			circle = append(circle, s.Name)
		}
	}
	// Stages behind the cycle are not part of it.
	leads := func(name string) bool {
		s := stages[slices.IndexFunc(stages, func(s v1alpha1.PlanStage) bool { return s.Name == name })]
		return slices.ContainsFunc(s.Next, func(e v1alpha1.PlanEdge) bool { return slices.Contains(circle, e.Stage) })
	}
	for before := -1; len(circle) != before; {
		before = len(circle)
		circle = slices.DeleteFunc(circle, func(name string) bool { return !leads(name) })
	}
	return circle
}

// InOrder sorts stages topologically and returns their indexes. Ties keep the order of the file.
// Stages in or behind a cycle are left out.
func InOrder(stages []v1alpha1.PlanStage) (order []int) {
	waits := make(map[string]int)
	for _, s := range stages {
		for _, e := range s.Next {
			waits[e.Stage]++
		}
	}
	done := make([]bool, len(stages))
	for again := true; again; {
		again = false
		for i, s := range stages {
			if done[i] || waits[s.Name] > 0 {
				continue
			}
			done[i], again = true, true
			order = append(order, i)
			for _, e := range s.Next {
				waits[e.Stage]--
			}
			break
		}
	}
	return order
}

// Within returns an objective's time in seconds and its quantile.
func Within(o *v1alpha1.PlanObjective) (seconds, quantile float64) {
	quantile = 0.99
	if o.Quantile != nil {
		quantile = *o.Quantile
	}
	return o.Within.Seconds(), quantile
}
