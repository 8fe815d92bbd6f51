package ext

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/bench/pace"
)

// Result is what a run has measured. Its JSON is the output of --json.
type Result struct {
	Target      string  `json:"target"`
	Shape       string  `json:"shape,omitempty"`
	Mode        mode    `json:"mode"`
	Body        int     `json:"body_bytes"`
	Concurrency int     `json:"concurrency"`
	Records     bool    `json:"records,omitempty"` // whether access-log records were sent
	Rate        float64 `json:"rate,omitempty"`    // requests per second that were due; absent in a closed loop

	Requests  int     `json:"requests"` // that the picker has decided
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"requests_per_second"`
	// The latencies of requests that may pass, in microseconds.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	Max float64 `json:"max_us"`
	// CPU time of the process --pid; absent without it.
	CPU   float64 `json:"cpu_us_per_request,omitempty"`
	Cores float64 `json:"cores,omitempty"`

	Unnamed  int         `json:"without_destination"` // requests that may pass, but have no destination
	Rejected map[int]int `json:"rejected,omitempty"`  // by status
	Failed   int         `json:"failed"`
	Failure  string      `json:"failure,omitempty"` // one of them

	Published *published `json:"published,omitempty"`
}

// published is a picker's published cost of a shape.
type published struct {
	Picker string     `json:"picker"`
	Cores  [2]float64 `json:"cores"` // the lowest and the highest
	Note   string     `json:"note"`
}

// llmd is what llm-d's documentation states of its endpoint picker.
var llmd = published{
	Picker: "llm-d", Cores: [2]float64{35, 46},
	Note: "98.7 requests a second of 100,000 tokens, from llm-d's documentation; its machines differ from this one",
}

// set stores the counts and latencies of a tally, whose times are sorted, and the CPU time.
func (r *Result) set(t tally, took, cpu time.Duration) {
	r.Requests, r.Seconds, r.Failed, r.Unnamed, r.Rejected = t.answered(), took.Seconds(), t.failed, t.unnamed, t.rejected
	r.PerSecond = float64(r.Requests) / took.Seconds()
	r.P50, r.P99, r.Max = micros(pace.Quantile(t.took, 0.5)), micros(pace.Quantile(t.took, 0.99)), micros(pace.Quantile(t.took, 1))
	if r.Requests > 0 {
		r.CPU = micros(cpu) / float64(r.Requests)
	}
	r.Cores = cpu.Seconds() / took.Seconds()
	if t.failure != nil {
		r.Failure = t.failure.Error()
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// err returns why the figures are of no use: requests failed, or none may pass.
func (r *Result) err() error {
	switch {
	case r.Failed > 0:
		return fmt.Errorf("%d of %d requests failed, one of them: %s", r.Failed, r.Failed+r.Requests, r.Failure)
	case r.Requests == 0:
		return errors.New("no request was sent: is the duration shorter than the time between two requests?")
	case r.passed() == 0:
		return fmt.Errorf("the picker has rejected every request: %s", r.rejections())
	}
	return nil
}

// passed returns the number of requests that may pass.
func (r *Result) passed() int {
	n := r.Requests
	for _, each := range r.Rejected {
		n -= each
	}
	return n
}

// rejections lists the rejected requests by status; empty if there are none.
func (r *Result) rejections() string {
	var all []string
	for _, status := range slices.Sorted(maps.Keys(r.Rejected)) {
		all = append(all, fmt.Sprintf("%d with status %d", r.Rejected[status], status))
	}
	return strings.Join(all, ", ")
}

// print prints the result as text.
func (r *Result) print(out io.Writer) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer t.Flush()
	pace := fmt.Sprintf("%d at a time", r.Concurrency)
	if r.Rate > 0 {
		pace = fmt.Sprintf("%g requests a second, at most %d at a time", r.Rate, r.Concurrency)
	}
	if r.Records {
		pace += ", with access-log records"
	}
	fmt.Fprintf(t, "load\t%s, %d bytes, %s\n", r.Mode, r.Body, pace)
	fmt.Fprintf(t, "requests\t%d in %.1f s: %.1f/s\n", r.Requests, r.Seconds, r.PerSecond)
	fmt.Fprintf(t, "latency\tp50 %.0f µs, p99 %.0f µs, highest %.0f µs\n", r.P50, r.P99, r.Max)
	if r.Cores > 0 {
		fmt.Fprintf(t, "CPU\t%.1f µs per request, %.3f cores\n", r.CPU, r.Cores)
	}
	fmt.Fprintf(t, "answers\t%d with a destination, %d without\n", r.passed()-r.Unnamed, r.Unnamed)
	if len(r.Rejected) > 0 {
		fmt.Fprintf(t, "rejected\t%s\n", r.rejections())
	}
	if p := r.Published; p != nil {
		fmt.Fprintf(t, "%s\t%g to %g cores: %s\n", p.Picker, p.Cores[0], p.Cores[1], p.Note)
	}
}
