package plan

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/provision/problem"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/workload"
)

// changed returns a copy of the request with changes, such as slo=200ms,rate=2x.
func (a *request) changed(text string) (*request, error) {
	other := *a
	other.CapacityPlan, other.slowdown = a.DeepCopy(), make(problem.Slowdown)
	for one := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(one), "=")
		if !ok {
			return nil, fmt.Errorf("%q: want NAME=VALUE, such as slo=200ms", one)
		}
		what, of, _ := strings.Cut(key, ".")
		change, known := changes[what]
		if !known {
			return nil, fmt.Errorf("%q: want slo, rate, service-time, price.KIND, maxUnits.KIND, max.STAGE or min.STAGE", key)
		}
		if err := change(&other, of, value); err != nil {
			return nil, fmt.Errorf("%q: %w", one, err)
		}
	}
	if faults := objects.CheckCapacityPlan(other.CapacityPlan); len(faults) > 0 {
		return nil, faults[0]
	}
	return &other, nil
}

// changes has a function for each key of --what-if. of is the part after the dot: a kind of
// hardware or a stage.
var changes = map[string]func(a *request, of, value string) error{
	"slo": func(a *request, of, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil {
			return errors.New("want a time such as 200ms")
		}
		found := false
		for i := range a.Spec.Objectives {
			if of == "" || of == strconv.Itoa(i+1) {
				a.Spec.Objectives[i].Within, found = metav1.Duration{Duration: d}, true
			}
		}
		if !found {
			return fmt.Errorf("there is no objective %q: want 1 to %d", of, len(a.Spec.Objectives))
		}
		return nil
	},
	"rate": func(a *request, of, value string) error {
		if of != "" {
			return errors.New("the rate applies to the whole trace: write rate without a stage")
		}
		number, times := strings.CutSuffix(value, "x")
		factor, err := strconv.ParseFloat(number, 64)
		if err != nil || !(factor > 0) || factor > 1e6 {
			return errors.New("want a factor such as 2x, or queries per second such as 150")
		}
		if !times {
			all := a.planned.all
			factor /= float64(len(all)-1) / (all[len(all)-1].At - all[0].At)
		}
		for _, q := range []*queries{&a.planned, &a.tested} {
			if len(q.all) > 0 {
				q.all = workload.Scaled(q.all, factor)
			}
			q.from /= factor
		}
		return nil
	},
	"service-time": func(a *request, of, value string) error {
		number, times := strings.CutSuffix(value, "x")
		factor, err := strconv.ParseFloat(number, 64)
		if err != nil || !times || !(factor >= 0.01 && factor <= 100) {
			return errors.New("want a factor from 0.01x to 100x, such as 1.3x")
		}
		if of != "" {
			if _, err := a.stage(of); err != nil {
				return err
			}
		}
		a.slowdown[of] = factor
		return nil
	},
	"price": func(a *request, of, value string) error {
		price, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return errors.New("want a price, such as 1.5")
		}
		if !a.runsOn(of) {
			return fmt.Errorf("no stage runs on %q", of)
		}
		for i := range a.Spec.Stages {
			for j := range a.Spec.Stages[i].Hardware {
				if h := &a.Spec.Stages[i].Hardware[j]; h.Name == of {
					h.Price = nil // the price that applies is now that of the hardware kind
				}
			}
		}
		a.kind(of).Price = &price
		return nil
	},
	"maxUnits": func(a *request, of, value string) error {
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return errors.New("want a number, such as 8")
		}
		if !a.runsOn(of) {
			return fmt.Errorf("no stage runs on %q", of)
		}
		most := int32(n)
		a.kind(of).MaxUnits = &most
		return nil
	},
	"max": func(a *request, of, value string) error {
		return a.bound(of, value, func(r *v1alpha1.PlanReplicas, n *int32) { r.Max = n })
	},
	"min": func(a *request, of, value string) error {
		return a.bound(of, value, func(r *v1alpha1.PlanReplicas, n *int32) { r.Min = n })
	},
}

// runsOn reports whether any stage may run on this kind of hardware.
func (a *request) runsOn(kind string) bool {
	return slices.ContainsFunc(a.Spec.Stages, func(s v1alpha1.PlanStage) bool {
		return slices.ContainsFunc(s.Hardware, func(h v1alpha1.StageHardware) bool { return h.Name == kind })
	})
}

// stage returns the stage with this name, or an error.
func (a *request) stage(name string) (*v1alpha1.PlanStage, error) {
	i := slices.IndexFunc(a.Spec.Stages, func(s v1alpha1.PlanStage) bool { return s.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no stage %q", name)
	}
	return &a.Spec.Stages[i], nil
}

// kind returns the plan's entry for a kind of hardware, and adds an empty entry if there is none.
// Empty fields get their values from the hardware file.
func (a *request) kind(name string) *v1alpha1.PlanHardware {
	i := slices.IndexFunc(a.Spec.Hardware, func(h v1alpha1.PlanHardware) bool { return h.Name == name })
	if i < 0 {
		i, a.Spec.Hardware = len(a.Spec.Hardware), append(a.Spec.Hardware, v1alpha1.PlanHardware{Name: name})
	}
	return &a.Spec.Hardware[i]
}

// bound changes a bound on the replicas of a stage: set stores the parsed value.
func (a *request) bound(stage, value string, set func(*v1alpha1.PlanReplicas, *int32)) error {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return errors.New("want a number, such as 4")
	}
	s, err := a.stage(stage)
	if err != nil {
		return err
	}
	if s.Replicas == nil {
		s.Replicas = new(v1alpha1.PlanReplicas)
	}
	is := int32(n)
	set(s.Replicas, &is)
	return nil
}
