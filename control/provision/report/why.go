package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/control/provision/planner"
)

// enough simulations say what would do: it need not be the cheapest.
const enough = 1000

// wouldDo says what would have to be different for there to be a plan.
func wouldDo(p *planner.Problem, is *planner.Plan) (all []string) {
	var free, bounded []planner.Candidate
	for _, t := range is.Tried {
		switch {
		case t.Config.Unbounded():
			free = append(free, t)
		case p.Fits(t.Config):
			bounded = append(bounded, t)
		}
	}
	if near, ok := nearest(p, free); ok && p.Strain(near.Kept) > 1 {
		return []string{fmt.Sprintf("No number of replicas would do: the model's own time is too long. With as many as there are queries, %s.", kept(p, near))}
	}
	capped, scarce := slices.ContainsFunc(p.Stages, func(s planner.Stage) bool { return s.MaxReplicas != 0 }), len(p.AtMost) > 0
	for _, more := range []struct {
		words              string
		hardware, replicas bool
	}{
		{"With more of the hardware (atMost)", true, false},
		{"With more replicas (replicas.max)", false, true},
		{"With more of the hardware and more replicas", true, true},
	} {
		if more.hardware && !scarce || more.replicas && !capped {
			continue
		}
		other := *p
		other.Stages, other.Most = slices.Clone(p.Stages), 0
		other.Told = func(simulations int, best planner.Candidate) bool {
			return simulations < enough && (p.Told == nil || p.Told(simulations, best))
		}
		if more.hardware {
			other.AtMost = nil
		}
		for i := range other.Stages {
			if more.replicas {
				other.Stages[i].MaxReplicas = 0
			}
		}
		if found := planner.Mended(&other); found.Found {
			all = append(all, fmt.Sprintf("%s it is %s for %.4g an hour: %s.", more.words, Config(p, found.Config), found.Cost, beyond(p, found.Config)))
			break
		}
	}
	if near, ok := nearest(p, bounded); ok {
		all = append(all, fmt.Sprintf("Within these bounds the nearest that was found is %s for %.4g an hour: %s.", Config(p, near.Config), near.Cost, kept(p, near)))
	}
	return all
}

// nearest is the candidate that misses by least.
func nearest(p *planner.Problem, all []planner.Candidate) (near planner.Candidate, ok bool) {
	for i, t := range all {
		if i == 0 || p.Strain(t.Kept) < p.Strain(near.Kept) {
			near, ok = t, true
		}
	}
	return near, ok
}

// kept says what a candidate keeps of each objective.
func kept(p *planner.Problem, is planner.Candidate) string {
	var all []string
	for i, o := range p.Objectives {
		all = append(all, fmt.Sprintf("a %v of %s is kept, where %s is wanted", o.Of, Seconds(is.Kept[i]), Seconds(o.Seconds)))
	}
	return strings.Join(all, ", and ")
}

// beyond says which bounds a configuration breaks.
func beyond(p *planner.Problem, c planner.Config) string {
	var all []string
	for i, is := range c {
		switch s := &p.Stages[i]; {
		case s.MaxReplicas != 0 && is.Replicas > s.MaxReplicas:
			all = append(all, fmt.Sprintf("%s has %d replicas, and replicas.max is %d", s.Name, is.Replicas, s.MaxReplicas))
		case is.Replicas < s.MinReplicas:
			all = append(all, fmt.Sprintf("%s has %d replicas, and must have %d", s.Name, is.Replicas, s.MinReplicas))
		}
	}
	taken := p.Taken(c)
	for i, is := range c {
		kind := p.Stages[i].Hardware[is.Hardware].Name
		if most, bounded := p.AtMost[kind]; bounded && taken[kind] > most {
			all = append(all, fmt.Sprintf("it takes %d of %s, and there are %d", taken[kind], kind, most))
			delete(taken, kind) // it is said
		}
	}
	return strings.Join(all, ", and ")
}

// Explain adds what each single step that saves something would keep: a replica less, or other hardware that is cheaper, in the batch by which it
// comes nearest to the objectives. A step that keeps them would have been taken. Where it is not to go on, the steps so far are told.
func (a *Answer) Explain(p *planner.Problem, c planner.Config, goOn func() bool) error {
	current, taken, utilization := p.Cost(c), p.Taken(c), p.Utilizations()
	for i, is := range c {
		step := func(by string, settings ...planner.Setting) error {
			var best Tried
			least := 0.0
			for _, s := range settings {
				if !goOn() {
					a.Partial = true
					return nil
				}
				other := slices.Clone(c)
				other[i] = s
				_, times, err := measure(p, planner.Steady(other), Trace{Name: by, Queries: p.Queries, Seed: p.Seed})
				if err != nil {
					return err
				}
				t := Tried{By: by, Config: Config(p, other), Cost: p.Cost(other), Keeps: p.Fits(other)}
				if slices.Max(utilization(other)) >= 1 {
					t.Keeps, t.Overloaded = false, true
				}
				for k, o := range times.Objectives {
					t.Takes = append(t.Takes, o.Takes)
					t.Keeps = t.Keeps && o.Missed*float64(o.Queries) <= float64(p.Objectives[k].Misses(o.Queries))+1e-6
				}
				if is := p.Strain(t.Takes); best.By == "" || is < least {
					best, least = t, is
				}
			}
			if best.By != "" {
				a.Cheaper = append(a.Cheaper, best)
			}
			return nil
		}
		stage := &p.Stages[i]
		if is.Replicas > stage.MinReplicas {
			less := is
			less.Replicas--
			if err := step(stage.Name+": a replica less", less); err != nil {
				return err
			}
		}
		for h := range stage.Hardware {
			kind := &stage.Hardware[h]
			if h == is.Hardware {
				continue
			}
			// As many replicas as cost less.
			n := int(min((stage.Hardware[is.Hardware].Price*float64(is.Replicas)-1e-9*current)/kind.Price, float64(len(p.Queries))))
			if stage.MaxReplicas != 0 {
				n = min(n, stage.MaxReplicas)
			}
			if most, bounded := p.AtMost[kind.Name]; bounded {
				n = min(n, (most-taken[kind.Name])/max(1, kind.Units))
			}
			if n < stage.MinReplicas {
				continue
			}
			var all []planner.Setting
			for _, size := range kind.Batches {
				all = append(all, planner.Setting{Hardware: h, Batch: size, Replicas: n})
			}
			if err := step(fmt.Sprintf("%s: %d of %s", stage.Name, n, kind.Name), all...); err != nil {
				return err
			}
		}
	}
	return nil
}
