// Package report describes a plan: its cost, its latencies, where the time is spent, and why no
// cheaper plan works. If there is no plan, it says what would make a plan possible. It is pure.
package report

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
)

// Report describes a plan, or why there is no plan. Autoscaling tuners read it as JSON. Times are
// in seconds, costs per hour.
type Report struct {
	Name    string `json:"name"`
	Planner string `json:"planner"`
	// Found is true if there is a plan. Optimal is true if every cheaper configuration was tried.
	// If there is no plan, Optimal is true if every configuration was tried.
	Found   bool `json:"found"`
	Optimal bool `json:"optimal"`
	// Stopped is true if the search was interrupted: a better plan may exist.
	Stopped bool `json:"stopped,omitempty"`
	// Reasons describe why there is no plan, and what would make a plan possible.
	Reasons []string `json:"reasons,omitempty"`
	Cost    float64  `json:"cost,omitempty"`
	// OutOfBounds describes the bounds that the current configuration exceeds; "" if it exceeds
	// none.
	OutOfBounds string `json:"outOfBounds,omitempty"`
	// Overloaded lists the stages of the current configuration whose throughput is below their
	// arrival rate.
	Overloaded []string `json:"overloaded,omitempty"`
	// Extrapolated lists the stages that get longer prompts than their profiles were measured with.
	Extrapolated []string `json:"extrapolated,omitempty"`
	// Stages lists the stages in topological order. Edges connect the stages.
	Stages []Stage `json:"stages,omitempty"`
	Edges  []Edge  `json:"edges,omitempty"`
	// Planned has the latencies on the trace for which the plan was made. Tested has those on the
	// test trace.
	Planned *Times `json:"planned,omitempty"`
	Tested  *Times `json:"tested,omitempty"`
	// Simulations is the number of simulations in the search. Tried lists the configurations that
	// were simulated to the end.
	Simulations int         `json:"simulations"`
	Tried       []Candidate `json:"tried,omitempty"`
	// Cheaper lists the single steps that would lower the cost, with their results. Partial is true
	// if not all steps were tried.
	Cheaper []Candidate `json:"cheaper,omitempty"`
	Partial bool        `json:"partial,omitempty"`
}

// Stage is the setting of one stage, with its results on the planned trace.
type Stage struct {
	Name     string `json:"name"`
	Hardware string `json:"hardware"`
	Units    int    `json:"units"` // hardware units per replica, such as GPUs
	Replicas int    `json:"replicas"`
	// Changes are the changes in the number of replicas at times of the trace, such as +2@10m0s.
	// With changes, TrafficIntensity and Utilization use the mean number of replicas in the planned
	// trace, and Cost is the mean over both traces.
	Changes string  `json:"changes,omitempty"`
	Batch   int     `json:"batch"`
	Cost    float64 `json:"cost"`
	LLM     bool    `json:"llm,omitempty"`
	// Share is the share of queries that pass the stage (InferLine's s). Throughput is that of one
	// replica in queries per second (InferLine's mu). UnloadedLatency is the latency of a query
	// that has a replica to itself.
	Share           float64 `json:"share"`
	Throughput      float64 `json:"throughput"`
	UnloadedLatency float64 `json:"unloadedLatency"`
	// TrafficIntensity is the arrival rate divided by the throughput of all replicas (InferLine's
	// rho). Utilization is the share of time in which replicas compute.
	TrafficIntensity float64 `json:"trafficIntensity"`
	Utilization      float64 `json:"utilization"`
	// The following times are means per query. QueueTime is spent waiting for a replica.
	// BatchingDelay is spent waiting for the batch to fill. ServiceTime is spent in service.
	QueueTime     float64 `json:"queueTime"`
	BatchingDelay float64 `json:"batchingDelay"`
	ServiceTime   float64 `json:"serviceTime"`
	// Latency and TimeToFirstToken are measured from a query's arrival at the stage.
	// TimeToFirstToken is set for an LLM only.
	Latency          Percentiles  `json:"latency"`
	TimeToFirstToken *Percentiles `json:"timeToFirstToken,omitempty"`
}

// Edge connects two stages, which it identifies by their names.
type Edge struct {
	From  string  `json:"from"`
	To    string  `json:"to"`
	Share float64 `json:"share"`
}

// Percentiles contains the mean and the percentiles of a time in seconds, exact to 0.4 %.
type Percentiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// Times describes a trace and the latencies of its queries.
type Times struct {
	Trace   string  `json:"trace"`
	Queries int     `json:"queries"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate"`
	// CV is the coefficient of variation of the times between arrivals. Envelope is InferLine's
	// traffic envelope: the largest number of arrivals in any window of a given length. The lengths
	// start at the unloaded latency of the pipeline and double up to 60 s.
	CV       float64  `json:"cv"`
	Envelope []Window `json:"envelope"`
	// Latency is that of all queries. The token times are those of the queries that pass an LLM.
	Latency            Percentiles  `json:"latency"`
	TimeToFirstToken   *Percentiles `json:"timeToFirstToken,omitempty"`
	TimePerOutputToken *Percentiles `json:"timePerOutputToken,omitempty"`
	Objectives         []Objective  `json:"objectives"`
}

// Window is the largest number of arrivals in any window of its length.
type Window struct {
	Seconds float64 `json:"seconds"`
	Queries int     `json:"queries"`
}

// Objective is an objective, and the latency that the plan reaches.
type Objective struct {
	Metric   string  `json:"metric"`
	Within   float64 `json:"within"`
	Quantile float64 `json:"quantile"`
	// Queries is the number of queries that have the metric. Queries that pass no LLM have no token
	// times.
	Queries int `json:"queries"`
	// Value is the quantile that was reached. Missed is the share of these queries whose time
	// exceeds Within. Missed is exact.
	Value  float64 `json:"value"`
	Missed float64 `json:"missed"`
}

// Candidate is a configuration that was simulated.
type Candidate struct {
	Step     string  `json:"step"`
	Config   string  `json:"config"`
	Cost     float64 `json:"cost"`
	Feasible bool    `json:"feasible"`
	// Overloaded is true if the throughput of a stage is below its arrival rate. It is set only in
	// the list Cheaper.
	Overloaded bool      `json:"overloaded,omitempty"`
	Values     []float64 `json:"values"` // one value per objective, in the same order
}

// Trace is a list of queries, with a name for messages.
type Trace struct {
	Name    string
	Queries []estimate.Query
	Seed    uint64
	// From is where these queries begin in the whole trace, in seconds. A timetable refers to times
	// of the whole trace.
	From float64
}

// New returns the report of a plan; by is the name of the planner. It simulates the plan on the
// planned trace and on the tested trace, which may be empty.
func New(name, by string, p *planner.Problem, plan *planner.Plan, planned, tested Trace) (*Report, error) {
	r := &Report{Name: name, Planner: by, Found: plan.Found, Optimal: plan.Optimal, Stopped: plan.Stopped, Simulations: plan.Simulations}
	for _, t := range plan.Tried {
		if !t.Config.Unbounded() {
			r.Tried = append(r.Tried, Candidate{
				Step: t.Step, Config: Config(p, t.Config), Cost: t.Cost, Feasible: t.Feasible,
				Values: t.Values,
			})
		}
	}
	if !plan.Found {
		if r.Reasons = []string{plan.Reason}; !plan.Stopped {
			r.Reasons = append(r.Reasons, suggestions(p, plan)...)
		}
		return r, nil
	}
	err := r.simulate(p, planner.Steady(plan.Config), planned, tested)
	return r, err
}

// OfConfig returns the report of the current configuration. Its number of replicas may change over
// time.
func OfConfig(name string, p *planner.Problem, current *planner.Timetable, planned, tested Trace) (*Report, error) {
	r := &Report{Name: name, Planner: "current", Found: true, OutOfBounds: outOfBounds(p, current.Config)}
	err := r.simulate(p, current, planned, tested)
	return r, err
}

// simulate simulates a configuration on both traces and adds the results to the report.
func (r *Report) simulate(p *planner.Problem, t *planner.Timetable, planned, tested Trace) error {
	c := t.Config
	result, times, err := measure(p, t, planned)
	if err != nil {
		return err
	}
	r.Planned = times
	var test *estimate.Result
	if n := len(tested.Queries); n > 1 && tested.Queries[n-1].At > tested.Queries[0].At {
		if test, r.Tested, err = measure(p, t, tested); err != nil {
			return err
		}
	}
	throughput, unloaded := p.ServiceTimes(c)
	shares := p.Pipeline.Shares()
	for i, is := range c {
		s, h := &result.Stages[i], &p.Stages[i].Hardware[is.Hardware]
		n, replicas := float64(max(1, s.Queries)), float64(is.Replicas)
		cost := h.Price * replicas
		if len(t.Changes[i]) > 0 {
			paid, seconds := s.Paid, result.Seconds
			replicas = paid / seconds
			if test != nil {
				paid, seconds = paid+test.Stages[i].Paid, seconds+test.Seconds
			}
			cost = h.Price * paid / seconds
		}
		r.Cost += cost
		stage := Stage{
			Name: p.Stages[i].Name, Hardware: h.Name, Units: max(1, h.Units), Replicas: is.Replicas, Batch: is.Batch, Cost: cost,
			Changes: changes(is.Replicas, t.Changes[i]),
			LLM:     h.Engine != nil, Share: shares[i], Throughput: throughput[i], UnloadedLatency: unloaded[i],
			TrafficIntensity: times.Rate * shares[i] / throughput[i] / replicas, Utilization: s.Busy / result.Seconds / replicas,
			QueueTime: s.QueueTime / n, BatchingDelay: s.BatchingDelay / n, ServiceTime: s.ServiceTime / n,
			Latency: percentiles(&s.Latency),
		}
		if h.Engine != nil {
			if n := max(longestPrompt(planned.Queries), longestPrompt(tested.Queries)); h.Engine.Prefill.Beyond(n) {
				r.Extrapolated = append(r.Extrapolated,
					fmt.Sprintf("the profile of %s on %s was measured up to %d prompt tokens, and the longest prompt has %d",
						stage.Name, h.Name, h.Engine.Prefill.MaxMeasuredTokens, n))
			}
			first := percentiles(&s.FirstToken)
			stage.TimeToFirstToken = &first
		}
		r.Stages = append(r.Stages, stage)
		if stage.TrafficIntensity >= 1 && is.Replicas < len(planned.Queries) {
			r.Overloaded = append(r.Overloaded, fmt.Sprintf("%s can serve %.4g queries/s, and %.4g arrive", stage.Name,
				throughput[i]*replicas, times.Rate*shares[i]))
		}
	}
	for _, e := range p.Pipeline.Edges {
		r.Edges = append(r.Edges, Edge{p.Stages[e.From].Name, p.Stages[e.To].Name, e.Share})
	}
	return nil
}

// longestPrompt returns the number of tokens of the longest prompt.
func longestPrompt(all []estimate.Query) (tokens int) {
	for _, q := range all {
		tokens = max(tokens, int(q.Prompt))
	}
	return tokens
}

// changes formats changes in the number of replicas in the format of [problem.ParseCurrent].
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

// measure simulates a configuration on a trace.
func measure(p *planner.Problem, config *planner.Timetable, t Trace) (*estimate.Result, *Times, error) {
	var all [planner.PerToken + 1]estimate.Latencies // for each [planner.Metric], all times of queries
	missed := make([]int, len(p.Objectives))
	result, err := estimate.Run(p.Pipeline, p.Scheduled(p.From(config, t.From)), t.Queries, t.Seed,
		func(_ int, took estimate.QueryTimes) bool {
			for of := range all {
				if seconds, has := planner.Metric(of).Of(took); has {
					all[of].Add(seconds)
				}
			}
			for i, o := range p.Objectives {
				if seconds, _ := o.Metric.Of(took); seconds > o.Seconds {
					missed[i]++
				}
			}
			return true
		})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", t.Name, err)
	}
	n, span := len(t.Queries), t.Queries[len(t.Queries)-1].At-t.Queries[0].At
	_, unloaded := p.ServiceTimes(config.Config)
	times := &Times{
		Trace: t.Name, Queries: n, Seconds: span, Rate: estimate.Rate(t.Queries), CV: variation(t.Queries),
		Latency:  percentiles(&all[planner.Latency]),
		Envelope: envelope(t.Queries, p.Pipeline.ServiceTime(func(stage int) float64 { return unloaded[stage] })),
	}
	if p.Tokens() {
		first, each := percentiles(&all[planner.FirstToken]), percentiles(&all[planner.PerToken])
		times.TimeToFirstToken, times.TimePerOutputToken = &first, &each
	}
	for i, o := range p.Objectives {
		times.Objectives = append(times.Objectives, Objective{
			Metric: o.Metric.String(), Within: o.Seconds, Quantile: o.Share, Queries: all[o.Metric].Count,
			Value: all[o.Metric].Quantile(o.Share), Missed: float64(missed[i]) / float64(max(1, all[o.Metric].Count)),
		})
	}
	return result, times, nil
}

// variation returns the coefficient of variation of the times between arrivals.
func variation(all []estimate.Query) float64 {
	n := float64(len(all) - 1)
	mean, squares := (all[len(all)-1].At-all[0].At)/n, 0.0
	for i := 1; i < len(all); i++ {
		d := all[i].At - all[i-1].At - mean
		squares += d * d
	}
	return math.Sqrt(squares/n) / mean
}

// Shortest and longest window of a traffic envelope, in seconds.
const (
	shortestWindow = 1e-3
	longestWindow  = 60
)

// envelope returns the traffic envelope of the queries: the largest number of arrivals in windows
// of several lengths. The lengths double from shortest up to longestWindow.
func envelope(all []estimate.Query, shortest float64) (windows []Window) {
	for length := max(shortest, shortestWindow); ; length = min(2*length, longestWindow) {
		windows = append(windows, Window{length, estimate.MaxArrivals(all, length)})
		if length >= longestWindow {
			return windows
		}
	}
}

// Config formats a configuration in the format of [problem.ParseCurrent], such as detect=a100:3x8.
func Config(p *planner.Problem, c planner.Config) string {
	all := make([]string, len(c))
	for i, is := range c {
		all[i] = fmt.Sprintf("%s=%s:%dx%d", p.Stages[i].Name, p.Stages[i].Hardware[is.Hardware].Name, is.Replicas, is.Batch)
	}
	return strings.Join(all, ",")
}
