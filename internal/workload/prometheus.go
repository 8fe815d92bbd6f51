package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// modelLabels are the metric labels that may name a model.
var modelLabels = []string{"model", "model_name", "model_id", "modelId"}

// series is one series in the response to a range query.
type series struct {
	Metric map[string]string `json:"metric"`
	Values []sample          `json:"values"`
}

// sample is the request rate at a time.
type sample struct{ at, rate float64 }

// UnmarshalJSON parses a sample in the form [time, "value"].
func (s *sample) UnmarshalJSON(text []byte) error {
	var value string
	pair := []any{&s.at, &value}
	if err := json.Unmarshal(text, &pair); err != nil || len(pair) != 2 {
		return fmt.Errorf("a value is %s: write [time, \"value\"]", text)
	}
	rate, err := strconv.ParseFloat(value, 64)
	if err != nil || !(rate >= 0) || math.IsInf(rate, 0) {
		return fmt.Errorf("the value at %.0f is %q: write a query for requests a second that has a number of at least 0 at each time",
			s.at, value)
	}
	s.rate = rate
	return nil
}

// rangeQuery is the part of an error that says how to make a range query.
const rangeQuery = "ask /api/v1/query_range, such as with query=sum by (model) (rate(...[1m])), start, end and step"

// readPrometheus reads a trace in the format [Prometheus]. If a series lacks a value, its rate is 0
// at that time.
func readPrometheus(r io.Reader, o Options) (trace, error) {
	var is struct {
		Status, ErrorType, Error string
		Data                     struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	decoder := json.NewDecoder(r)
	if err := decoder.Decode(&is); err != nil {
		return trace{}, fmt.Errorf("at byte %d: %w", decoder.InputOffset(), err)
	}
	switch {
	case is.Status != "success":
		return trace{}, fmt.Errorf("the query failed (%s, %s %s): %s", is.Status, is.ErrorType, is.Error, rangeQuery)
	case is.Data.ResultType != "matrix":
		return trace{}, fmt.Errorf("the result is a %q, want a matrix: %s", is.Data.ResultType, rangeQuery)
	}
	var all []series
	if err := json.Unmarshal(is.Data.Result, &all); err != nil {
		return trace{}, err
	}
	shape, err := shapeOf(o.cv())
	if err != nil {
		return trace{}, err
	}
	grid, err := gridOf(all)
	if err != nil {
		return trace{}, err
	}
	label := ""
	for _, l := range slices.Backward(modelLabels) {
		if !slices.ContainsFunc(all, func(s series) bool { return s.Metric[l] == "" }) {
			label = l
		}
	}
	var t trace
	at := map[string]int{}
	missing := 0
	for _, s := range all {
		name := s.Metric[label]
		n, ok := at[name]
		if !ok {
			n = len(t.processes)
			at[name], t.processes = n, append(t.processes,
				process{model: name, windows: slices.Repeat([]Window{{Seconds: grid.step, Shape: shape}}, grid.n)})
		}
		for _, v := range s.Values {
			t.processes[n].windows[grid.place(v.at)].Rate += v.rate
		}
		missing += grid.n - len(s.Values)
	}
	t.about = fmt.Sprintf("%s, rates by %s", count(t.processes), span(grid.step))
	if missing > 0 {
		t.about += fmt.Sprintf(", %d without a value, which are 0", missing)
	}
	return t, nil
}

// grid contains the time steps of a range query.
type grid struct {
	first, step float64 // in seconds
	n           int
}

func (g grid) place(at float64) int { return int(math.Round((at - g.first) / g.step)) }

// mostSteps is the maximum number of time steps. Prometheus itself returns at most 11,000.
const mostSteps = 1_000_000

// gridOf returns the common time steps of all series.
func gridOf(all []series) (grid, error) {
	first, last, step := math.Inf(1), math.Inf(-1), math.Inf(1)
	for _, s := range all {
		if len(s.Values) == 0 {
			return grid{}, fmt.Errorf("a series has no values (%v): %s", s.Metric, rangeQuery)
		}
		for i, v := range s.Values {
			if first, last = min(first, v.at), max(last, v.at); i > 0 {
				step = min(step, v.at-s.Values[i-1].at)
			}
		}
	}
	switch {
	case len(all) == 0:
		return grid{}, errors.New("there are no series: " + rangeQuery)
	case math.IsInf(step, 1):
		return grid{}, errors.New("each series has one value: " + rangeQuery)
	case !(step > 0):
		return grid{}, errors.New("times of a series go back or stay: " + rangeQuery)
	case (last-first)/step >= mostSteps:
		return grid{}, fmt.Errorf("there are %.0f steps, and may be %d: %s", (last-first)/step, mostSteps, rangeQuery)
	}
	g := grid{first, step, 1 + int(math.Round((last-first)/step))}
	for _, s := range all {
		for _, v := range s.Values {
			if at := first + float64(g.place(v.at))*step; math.Abs(v.at-at) > step/100 {
				return grid{}, fmt.Errorf("values are not by steps of %g s (there is one at %.3f): %s", step, v.at, rangeQuery)
			}
		}
	}
	return g, nil
}
