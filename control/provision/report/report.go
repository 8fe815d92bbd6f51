// Package report tells people what a plan is: what it costs, what it keeps, where the time goes, why nothing is cheaper, and where there is no plan
// what would do. It is pure.
package report

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
)

// Answer is a plan, or why there is none, as JSON has it: what a tuner needs is in it. Times are in seconds, costs an hour.
type Answer struct {
	Name    string `json:"name"`
	Planner string `json:"planner"`
	// Found says that there is a plan, Optimal that all that is cheaper was tried, or where there is no plan that nothing is one.
	Found   bool `json:"found"`
	Optimal bool `json:"optimal"`
	// Stopped says that the search was ended from outside: there may be better plans, or one where none was found.
	Stopped bool `json:"stopped,omitempty"`
	// Why there is no plan, and what would do.
	Why  []string `json:"why,omitempty"`
	Cost float64  `json:"cost,omitempty"`
	// Beyond says which bounds a configuration breaks that somebody has, in words; empty if none.
	Beyond string `json:"beyond,omitempty"`
	// Overloaded describes the stages of a given configuration whose throughput is below the rate of the queries.
	Overloaded []string `json:"overloaded,omitempty"`
	// Extrapolated describes the stages whose prompts are longer than all that their profiles were measured with.
	Extrapolated []string `json:"extrapolated,omitempty"`
	// Stages in the order in which queries pass them, and what leads from one to another.
	Stages []Stage `json:"stages,omitempty"`
	Edges  []Edge  `json:"edges,omitempty"`
	// Planned is what the trace that was planned on keeps, Tested another one.
	Planned *Times `json:"planned,omitempty"`
	Tested  *Times `json:"tested,omitempty"`
	// Simulations is how many were run. Tried are the configurations whose whole latency is known.
	Simulations int     `json:"simulations"`
	Tried       []Tried `json:"tried,omitempty"`
	// Cheaper is what each single step that saves something would keep; Partial says that not all steps were tried.
	Cheaper []Tried `json:"cheaper,omitempty"`
	Partial bool    `json:"partial,omitempty"`
}

// Stage is what one stage has, and what it does in the trace that was planned on.
type Stage struct {
	Name     string `json:"name"`
	Hardware string `json:"hardware"`
	Units    int    `json:"units"` // of a replica
	Replicas int    `json:"replicas"`
	// Changes of them at times of the trace, such as +2@10m0s. Utilisation and Busy are by how many there were in the mean in what was planned on, Cost
	// by how many there were in the mean in all, with what was tested on.
	Changes string  `json:"changes,omitempty"`
	Batch   int     `json:"batch"`
	Cost    float64 `json:"cost"`
	LLM     bool    `json:"llm,omitempty"`
	// Share of the queries that pass it (InferLine's s), Throughput of one replica in queries a second (μ), and Alone how long a query takes that has
	// one to itself.
	Share      float64 `json:"share"`
	Throughput float64 `json:"throughput"`
	Alone      float64 `json:"alone"`
	// Utilisation is the rate of its queries by what replicas compute at most (ρ), Busy the share of the time for which they compute.
	Utilisation float64 `json:"utilisation"`
	Busy        float64 `json:"busy"`
	// Queue, Fill and Compute are what a query spends waiting for a replica, for its batch to fill, and being computed, in the mean.
	Queue   float64 `json:"queue"`
	Fill    float64 `json:"fill"`
	Compute float64 `json:"compute"`
	// Latency from when a query comes to the stage, and FirstToken of an LLM.
	Latency    Percentiles  `json:"latency"`
	FirstToken *Percentiles `json:"firstToken,omitempty"`
}

// Edge leads from a stage to another, by their names.
type Edge struct {
	From  string  `json:"from"`
	To    string  `json:"to"`
	Share float64 `json:"share"`
}

// Percentiles of a time, right to 0.4 %.
type Percentiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// Times is how long the queries of a trace take.
type Times struct {
	Trace   string  `json:"trace"`
	Queries int     `json:"queries"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate"`
	// CV is the coefficient of variation of the times between queries, and Envelope the most of them in any time of a length: from how long a query
	// takes alone on, doubled up to 60 s (InferLine's traffic envelope).
	CV       float64  `json:"cv"`
	Envelope []Window `json:"envelope"`
	// Latency of all, and of the tokens of those that pass an LLM.
	Latency    Percentiles  `json:"latency"`
	FirstToken *Percentiles `json:"firstToken,omitempty"`
	PerToken   *Percentiles `json:"perToken,omitempty"`
	// Objectives in order.
	Objectives []Kept `json:"objectives"`
}

// Window is the most queries in any time of a length.
type Window struct {
	Seconds float64 `json:"seconds"`
	Queries int     `json:"queries"`
}

// Kept is what is kept of an objective.
type Kept struct {
	Of       string  `json:"of"`
	Within   float64 `json:"within"`
	Quantile float64 `json:"quantile"`
	// Queries is how many have such a time: those that pass no LLM have none of its tokens.
	Queries int `json:"queries"`
	// Takes is the time that the quantile takes, and Missed the share of these queries that took longer than they may: that is exact.
	Takes  float64 `json:"takes"`
	Missed float64 `json:"missed"`
}

// Tried is a configuration.
type Tried struct {
	By     string  `json:"by"`
	Config string  `json:"config"`
	Cost   float64 `json:"cost"`
	Keeps  bool    `json:"keeps"`
	// Overloaded: in this step of Cheaper the throughput of a stage is below the rate of the queries.
	Overloaded bool      `json:"overloaded,omitempty"`
	Takes      []float64 `json:"takes"` // of each objective
}

// Trace is queries, and their name for people.
type Trace struct {
	Name    string
	Queries []estimate.Query
	Seed    uint64
	// From is when it begins in that of which it is a part, in seconds: the changes of a timetable are at times of the whole.
	From float64
}

// Of is the answer that a plan is. It simulates what the plan says on the trace that was planned on, and on another to test it, which may have no
// queries.
func Of(name, by string, p *planner.Problem, is *planner.Plan, planned, tested Trace) (*Answer, error) {
	a := &Answer{Name: name, Planner: by, Found: is.Found, Optimal: is.Optimal, Stopped: is.Stopped, Simulations: is.Simulations}
	for _, t := range is.Tried {
		if !t.Config.Unbounded() {
			a.Tried = append(a.Tried, Tried{By: t.By, Config: Config(p, t.Config), Cost: t.Cost, Keeps: t.Keeps, Takes: t.Kept})
		}
	}
	if !is.Found {
		if a.Why = []string{is.Why}; !is.Stopped {
			a.Why = append(a.Why, wouldDo(p, is)...)
		}
		return a, nil
	}
	err := a.have(p, planner.Steady(is.Config), planned, tested)
	return a, err
}

// Given is what a configuration costs and keeps that somebody has, whose replicas may change as queries come.
func Given(name string, p *planner.Problem, is *planner.Timetable, planned, tested Trace) (*Answer, error) {
	a := &Answer{Name: name, Planner: "given", Found: true, Beyond: beyond(p, is.Config)}
	err := a.have(p, is, planned, tested)
	return a, err
}

// have fills in what a configuration does.
func (a *Answer) have(p *planner.Problem, given *planner.Timetable, planned, tested Trace) error {
	c := given.Config
	r, times, err := measure(p, given, planned)
	if err != nil {
		return err
	}
	a.Planned = times
	var test *estimate.Result
	if n := len(tested.Queries); n > 1 && tested.Queries[n-1].At > tested.Queries[0].At {
		if test, a.Tested, err = measure(p, given, tested); err != nil {
			return err
		}
	}
	throughput, alone := p.Pace(c)
	shares := p.Pipeline.Shares()
	for i, is := range c {
		s, h := &r.Stages[i], &p.Stages[i].Hardware[is.Hardware]
		n, replicas := float64(max(1, s.Queries)), float64(is.Replicas)
		cost := h.Price * replicas
		if len(given.Changes[i]) > 0 {
			paid, seconds := s.Paid, r.Seconds
			replicas = paid / seconds
			if test != nil {
				paid, seconds = paid+test.Stages[i].Paid, seconds+test.Seconds
			}
			cost = h.Price * paid / seconds
		}
		a.Cost += cost
		stage := Stage{
			Name: p.Stages[i].Name, Hardware: h.Name, Units: max(1, h.Units), Replicas: is.Replicas, Batch: is.Batch, Cost: cost, Changes: changes(is.Replicas, given.Changes[i]),
			LLM: h.Engine != nil, Share: shares[i], Throughput: throughput[i], Alone: alone[i],
			Utilisation: times.Rate * shares[i] / throughput[i] / replicas, Busy: s.Busy / r.Seconds / replicas,
			Queue: s.Waited / n, Fill: s.Filled / n, Compute: s.Computed / n, Latency: percentiles(&s.Latency),
		}
		if h.Engine != nil {
			if n := max(longestPrompt(planned.Queries), longestPrompt(tested.Queries)); h.Engine.Prefill.Beyond(n) {
				a.Extrapolated = append(a.Extrapolated, fmt.Sprintf("the profile of %s on %s was measured with prompts of up to %d tokens, and the longest has %d",
					stage.Name, h.Name, h.Engine.Prefill.MeasuredTo, n))
			}
			first := percentiles(&s.FirstToken)
			stage.FirstToken = &first
		}
		a.Stages = append(a.Stages, stage)
		if stage.Utilisation >= 1 && is.Replicas < len(planned.Queries) {
			a.Overloaded = append(a.Overloaded, fmt.Sprintf("%s has room for %.4g queries a second, and %.4g come to it", stage.Name, throughput[i]*replicas, times.Rate*shares[i]))
		}
	}
	for _, e := range p.Pipeline.Edges {
		a.Edges = append(a.Edges, Edge{p.Stages[e.From].Name, p.Stages[e.To].Name, e.Share})
	}
	return nil
}

// longestPrompt is the tokens of the longest.
func longestPrompt(all []estimate.Query) (tokens int) {
	for _, q := range all {
		tokens = max(tokens, int(q.Prompt))
	}
	return tokens
}

// changes are those of replicas in words, as [problem.Given] reads them.
func changes(replicas int, all []estimate.Change) string {
	var text strings.Builder
	for _, c := range all {
		fmt.Fprintf(&text, "%+d@%v", c.Replicas-replicas, time.Duration(math.Round(c.At*float64(time.Second))))
		replicas = c.Replicas
	}
	return text.String()
}

func percentiles(l *estimate.Latencies) Percentiles {
	return Percentiles{l.Mean(), l.Quantile(0.5), l.Quantile(0.9), l.Quantile(0.99)}
}

// measure rolls a trace on.
func measure(p *planner.Problem, is *planner.Timetable, t Trace) (*estimate.Result, *Times, error) {
	var all [planner.PerToken + 1]estimate.Latencies // by [planner.Of]
	missed := make([]int, len(p.Objectives))
	r, err := estimate.Run(p.Pipeline, p.Scheduled(p.From(is, t.From)), t.Queries, t.Seed, func(_ int, took estimate.Took) bool {
		for of := range all {
			if seconds, has := planner.Of(of).In(took); has {
				all[of].Add(seconds)
			}
		}
		for i, o := range p.Objectives {
			if seconds, _ := o.Of.In(took); seconds > o.Seconds {
				missed[i]++
			}
		}
		return true
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", t.Name, err)
	}
	n, span := len(t.Queries), t.Queries[len(t.Queries)-1].At-t.Queries[0].At
	_, alone := p.Pace(is.Config)
	times := &Times{
		Trace: t.Name, Queries: n, Seconds: span, Rate: estimate.Rate(t.Queries), CV: variation(t.Queries), Latency: percentiles(&all[planner.Latency]),
		Envelope: envelope(t.Queries, p.Pipeline.ServiceTime(func(stage int) float64 { return alone[stage] })),
	}
	if p.Tokens() {
		first, each := percentiles(&all[planner.FirstToken]), percentiles(&all[planner.PerToken])
		times.FirstToken, times.PerToken = &first, &each
	}
	for i, o := range p.Objectives {
		times.Objectives = append(times.Objectives, Kept{
			Of: o.Of.String(), Within: o.Seconds, Quantile: o.Share, Queries: all[o.Of].Count,
			Takes: all[o.Of].Quantile(o.Share), Missed: float64(missed[i]) / float64(max(1, all[o.Of].Count)),
		})
	}
	return r, times, nil
}

// variation is the coefficient of variation of the times between queries.
func variation(all []estimate.Query) float64 {
	n := float64(len(all) - 1)
	mean, squares := (all[len(all)-1].At-all[0].At)/n, 0.0
	for i := 1; i < len(all); i++ {
		d := all[i].At - all[i-1].At - mean
		squares += d * d
	}
	return math.Sqrt(squares/n) / mean
}

// The windows of an envelope are of no less and no more than so many seconds.
const (
	shortestWindow = 1e-3
	longest        = 60
)

// envelope is the most queries in any window, from a length on, doubled up to the longest.
func envelope(all []estimate.Query, shortest float64) (windows []Window) {
	for length := max(shortest, shortestWindow); ; length = min(2*length, longest) {
		windows = append(windows, Window{length, estimate.Most(all, length)})
		if length >= longest {
			return windows
		}
	}
}

// Config is a configuration in words, such as detect=a100:3x8: as [problem.Given] reads it.
func Config(p *planner.Problem, c planner.Config) string {
	all := make([]string, len(c))
	for i, is := range c {
		all[i] = fmt.Sprintf("%s=%s:%dx%d", p.Stages[i].Name, p.Stages[i].Hardware[is.Hardware].Name, is.Replicas, is.Batch)
	}
	return strings.Join(all, ",")
}
