package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/control/provision/planner"
)

// maxSuggestionSimulations limits the simulations that search for a suggestion. The suggestion need
// not be the cheapest possible.
const maxSuggestionSimulations = 1000

// suggestions describes which changes would make a plan possible.
func suggestions(p *planner.Problem, plan *planner.Plan) (all []string) {
	var free, bounded []planner.Candidate
	for _, t := range plan.Tried {
		switch {
		case t.Config.Unbounded():
			free = append(free, t)
		case p.InBounds(t.Config):
			bounded = append(bounded, t)
		}
	}
	if near, ok := nearest(p, free); ok && p.WorstRatio(near.Values) > 1 {
		return []string{fmt.Sprintf("More replicas cannot help: the service time is too long. With one replica per query, %s.",
			reached(p, near))}
	}
	capped, scarce := slices.ContainsFunc(p.Stages, func(s planner.Stage) bool { return s.MaxReplicas != 0 }), len(p.AtMost) > 0
	for _, more := range []struct {
		words              string
		hardware, replicas bool
	}{
		{"With more of the hardware (maxUnits)", true, false},
		{"With more replicas (replicas.max)", false, true},
		{"With more of the hardware and more replicas", true, true},
	} {
		if more.hardware && !scarce || more.replicas && !capped {
			continue
		}
		other := *p
		other.Stages, other.ProofLimit = slices.Clone(p.Stages), 0
		other.Progress = func(simulations int, best planner.Candidate) bool {
			return simulations < maxSuggestionSimulations && (p.Progress == nil || p.Progress(simulations, best))
		}
		if more.hardware {
			other.AtMost = nil
		}
		for i := range other.Stages {
			if more.replicas {
				other.Stages[i].MaxReplicas = 0
			}
		}
		if found := planner.Search(&other); found.Found {
			all = append(all, fmt.Sprintf("%s the plan is %s for %.4g per hour: %s.", more.words, Config(p, found.Config), found.Cost,
				outOfBounds(p, found.Config)))
			break
		}
	}
	if near, ok := nearest(p, bounded); ok {
		all = append(all, fmt.Sprintf("The closest configuration within the bounds is %s for %.4g per hour: %s.", Config(p, near.Config),
			near.Cost, reached(p, near)))
	}
	return all
}

// nearest returns the candidate that comes closest to meeting its objectives.
func nearest(p *planner.Problem, all []planner.Candidate) (near planner.Candidate, ok bool) {
	for i, t := range all {
		if i == 0 || p.WorstRatio(t.Values) < p.WorstRatio(near.Values) {
			near, ok = t, true
		}
	}
	return near, ok
}

// reached describes the latencies that a candidate reaches.
func reached(p *planner.Problem, is planner.Candidate) string {
	var all []string
	for i, o := range p.Objectives {
		all = append(all, fmt.Sprintf("the %v is %s and the objective %s", o.Metric, Seconds(is.Values[i]), Seconds(o.Seconds)))
	}
	return strings.Join(all, ", and ")
}

// outOfBounds describes the bounds that a configuration exceeds.
func outOfBounds(p *planner.Problem, c planner.Config) string {
	var all []string
	for i, is := range c {
		switch s := &p.Stages[i]; {
		case s.MaxReplicas != 0 && is.Replicas > s.MaxReplicas:
			all = append(all, fmt.Sprintf("%s has %d replicas and replicas.max is %d", s.Name, is.Replicas, s.MaxReplicas))
		case is.Replicas < s.MinReplicas:
			all = append(all, fmt.Sprintf("%s has %d replicas and needs %d", s.Name, is.Replicas, s.MinReplicas))
		}
	}
	used := p.UnitsUsed(c)
	for i, is := range c {
		kind := p.Stages[i].Hardware[is.Hardware].Name
		if most, bounded := p.AtMost[kind]; bounded && used[kind] > most {
			all = append(all, fmt.Sprintf("it uses %d %s and there are %d", used[kind], kind, most))
			delete(used, kind) // report each kind of hardware only once
		}
	}
	return strings.Join(all, ", and ")
}

// Explain simulates every single step that would lower the cost, and adds the results to the
// report. A step is one replica less, or cheaper hardware with the best batch size. Explain stops
// early if goOn returns false.
func (r *Report) Explain(p *planner.Problem, c planner.Config, goOn func() bool) error {
	cost, used, intensity := p.Cost(c), p.UnitsUsed(c), p.TrafficIntensities()
	for i, is := range c {
		step := func(name string, settings ...planner.Setting) error {
			var best Candidate
			least := 0.0
			for _, s := range settings {
				if !goOn() {
					r.Partial = true
					return nil
				}
				other := slices.Clone(c)
				other[i] = s
				_, times, err := measure(p, planner.Steady(other), Trace{Name: name, Queries: p.Queries, Seed: p.Seed})
				if err != nil {
					return err
				}
				t := Candidate{Step: name, Config: Config(p, other), Cost: p.Cost(other), Feasible: p.InBounds(other)}
				if slices.Max(intensity(other)) >= 1 {
					t.Feasible, t.Overloaded = false, true
				}
				for k, o := range times.Objectives {
					t.Values = append(t.Values, o.Value)
					t.Feasible = t.Feasible && o.Missed*float64(o.Queries) <= float64(p.Objectives[k].Misses(o.Queries))+1e-6
				}
				if is := p.WorstRatio(t.Values); best.Step == "" || is < least {
					best, least = t, is
				}
			}
			if best.Step != "" {
				r.Cheaper = append(r.Cheaper, best)
			}
			return nil
		}
		stage := &p.Stages[i]
		if is.Replicas > stage.MinReplicas {
			less := is
			less.Replicas--
			if err := step(stage.Name+": one replica less", less); err != nil {
				return err
			}
		}
		for h := range stage.Hardware {
			kind := &stage.Hardware[h]
			if h == is.Hardware {
				continue
			}
			// n is the largest number of replicas on this hardware that still costs less.
			n := int(min((stage.Hardware[is.Hardware].Price*float64(is.Replicas)-1e-9*cost)/kind.Price, float64(len(p.Queries))))
			if stage.MaxReplicas != 0 {
				n = min(n, stage.MaxReplicas)
			}
			if most, bounded := p.AtMost[kind.Name]; bounded {
				n = min(n, (most-used[kind.Name])/max(1, kind.Units))
			}
			if n < stage.MinReplicas {
				continue
			}
			var all []planner.Setting
			for _, size := range kind.Batches {
				all = append(all, planner.Setting{Hardware: h, Batch: size, Replicas: n})
			}
			if err := step(fmt.Sprintf("%s: %d x %s", stage.Name, n, kind.Name), all...); err != nil {
				return err
			}
		}
	}
	return nil
}
