package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat/distuv"
)

// Window is a time interval with a constant request rate.
type Window struct {
	Seconds float64
	Rate    float64 // requests per second
	// Shape is the shape parameter of the distribution of gaps between requests. The distribution
	// is Weibull or Gamma. Shape may be 0 if Rate is 0.
	Shape   float64
	Weibull bool
}

// Gap returns a random gap between requests, in units of the mean gap.
func (w Window) Gap(source rand.Source) float64 { return w.gaps(source).Rand() }

func (w Window) gaps(source rand.Source) distuv.Rander {
	if w.Weibull {
		return distuv.Weibull{K: w.Shape, Lambda: 1 / math.Gamma(1+1/w.Shape), Src: source}
	}
	return distuv.Gamma{Alpha: w.Shape, Beta: w.Shape, Src: source}
}

// rest returns a random time from an arbitrary moment to the next request, in units of the mean
// gap. The probability that the moment is in a gap is proportional to the gap's length. If gaps
// have a Gamma distribution, the gap around the moment also has one, whose shape is larger by one.
// If gaps have a Weibull distribution, the gap to the power of Shape has a Gamma distribution.
func (w Window) rest(source rand.Source) float64 {
	around := 0.0
	if w.Weibull {
		powered := distuv.Gamma{Alpha: 1 + 1/w.Shape, Beta: 1, Src: source}.Rand()
		around = math.Pow(powered, 1/w.Shape) / math.Gamma(1+1/w.Shape)
	} else {
		around = distuv.Gamma{Alpha: 1 + w.Shape, Beta: w.Shape, Src: source}.Rand()
	}
	return around * rand.New(source).Float64() //nolint:gosec // no secret
}

// flaw returns an error that says what is invalid in the window; nil if it is valid.
func (w Window) flaw() error {
	switch {
	case !(w.Rate >= 0) || math.IsInf(w.Rate, 0):
		return fmt.Errorf("a rate of %g: write requests a second, at least 0", w.Rate)
	case w.Rate > 0 && !positive(w.Shape):
		return fmt.Errorf("a rate of %g with the shape %g: write a shape above 0", w.Rate, w.Shape)
	case w.Rate > 0 && (w.Shape < leastGamma || w.Weibull && w.Shape < leastWeibull):
		return fmt.Errorf("a rate of %g with the shape %g, which has nearly all requests come at once: write at least %g, for Weibull %g",
			w.Rate, w.Shape, leastGamma, leastWeibull)
	}
	return nil
}

// leastGamma and leastWeibull are the smallest shapes. At leastGamma, a burst has some million
// requests. Below leastWeibull, the mean would not be finite.
const (
	leastGamma   = 1e-6
	leastWeibull = 0.01
)

// leastCV and mostCV limit coefficients of variation. At leastCV requests are nearly regular, and
// at mostCV nearly all are in a single burst.
const (
	leastCV = 0.01
	mostCV  = 100
)

// shapeOf returns the shape of the Gamma distribution with this coefficient of variation.
func shapeOf(cv float64) (float64, error) {
	if !(cv >= leastCV && cv <= mostCV) {
		return 0, fmt.Errorf("a coefficient of variation (cv) of %g: write one from %g to %d, where 1 is Poisson's", cv, leastCV, mostCV)
	}
	return 1 / cv / cv, nil
}

// process is the arrival process of one model, as a list of windows.
type process struct {
	model          string
	windows        []Window
	prompt, output int32
	most           int // maximum number of requests; 0 means no limit
}

// draw returns random requests of the process. As long as the shape stays the same, they are a
// stationary renewal process, whose time is scaled by the rate of each window. When the shape
// changes, the process restarts at an arbitrary moment. So the mean number of requests in each
// window matches the window's rate, for any shapes.
func (p process) draw(source rand.Source) (all []Query) {
	at, left := 0.0, 0.0 // left: time until the next request, in units of the mean gap
	var before Window    // the last window with requests
	for _, w := range p.windows {
		end := at + w.Seconds
		if w.Rate > 0 {
			gaps := w.gaps(source)
			if before.Shape != w.Shape || before.Weibull != w.Weibull {
				left = w.rest(source)
			}
			before = w
			for ; at+left/w.Rate < end; left = gaps.Rand() {
				at += left / w.Rate
				if all = append(all, Query{at, p.prompt, p.output, p.model}); len(all) == p.most {
					return all
				}
			}
			left = max(0, left-(end-at)*w.Rate)
		}
		at = end
	}
	return all
}

// mean returns the expected number of requests in the process, and the length of the process in
// seconds.
func (p process) mean() (requests, seconds float64) {
	for _, w := range p.windows {
		seconds += w.Seconds
		if w.Rate > 0 {
			requests += w.Rate * w.Seconds
		}
	}
	if p.most > 0 && float64(p.most) < requests {
		requests, seconds = float64(p.most), seconds*float64(p.most)/requests
		if math.IsNaN(seconds) {
			seconds = requests / p.windows[0].Rate
		}
	}
	return requests, seconds
}

// part returns a part of the process: it begins at the time from, and is at most seconds long.
func (p process) part(from, seconds float64) process {
	var windows []Window
	at := 0.0
	for _, w := range p.windows {
		begin, end := max(at, from), min(at+w.Seconds, from+seconds)
		if at += w.Seconds; begin < end {
			w.Seconds = end - begin
			windows = append(windows, w)
		}
	}
	if p.most > 0 && from > 0 {
		if p.most -= int(from * p.windows[0].Rate); p.most <= 0 {
			windows = nil
		}
	}
	p.windows = windows
	return p
}

// mostQueries is the maximum expected number of requests in a generated trace. They need some 2 GB.
const mostQueries = 50_000_000

// generated returns a Source that generates requests for a part of the trace.
func (t trace) generated(from, seconds float64) (*Source, error) {
	var processes []process
	requests, longest := 0.0, 0.0
	for _, p := range t.processes {
		p = p.part(from, seconds)
		n, takes := p.mean()
		processes = append(processes, p)
		requests, longest = requests+n, max(longest, takes)
	}
	switch {
	case !(requests <= mostQueries):
		return nil, fmt.Errorf("it would have %.4g requests, and may have %d: take a part of its time, or lower rates", requests,
			mostQueries)
	case requests < 2:
		return nil, fmt.Errorf("it would have %.2g requests in the mean, and needs 2: take more of its time, or higher rates", requests)
	}
	s := &Source{Generated: true, About: fmt.Sprintf("some %.0f requests in %s, drawn by their rates", requests, span(longest))}
	s.queries = func(seed uint64) []Query {
		all := make([]Query, 0, int(1.01*requests)+100)
		for i, p := range processes {
			all = append(all, p.draw(rand.NewPCG(seed, 1<<32+uint64(i)))...) //nolint:gosec // no secret
		}
		sortByTime(all)
		return all
	}
	return s, nil
}

// gammaUsage describes what to write for a [Gamma] trace.
const gammaUsage = "write such as gamma:rate=100,cv=4,seconds=600 (or queries=20000 in place of seconds; prompt= and output= are tokens)"

// parseGamma parses the text after "gamma:".
func parseGamma(text string) (trace, error) {
	is := map[string]float64{"cv": 1}
	given := map[string]bool{}
	for setting := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(setting, "=")
		key = strings.TrimSpace(key)
		number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		whole := key == "queries" || key == "prompt" || key == "output"
		switch {
		case !ok || given[key]:
			return trace{}, fmt.Errorf("%q is no setting, or one that was given: %s", setting, gammaUsage)
		case !whole && key != "rate" && key != "cv" && key != "seconds":
			return trace{}, fmt.Errorf("there is no %q: %s", key, gammaUsage)
		case err != nil || !positive(number):
			return trace{}, fmt.Errorf("%s is %q: write a number above 0", key, value)
		case whole && (number != math.Trunc(number) || number > math.MaxInt32):
			return trace{}, fmt.Errorf("%s is %q: write a whole number of at most %d", key, value, math.MaxInt32)
		}
		is[key], given[key] = number, true
	}
	if !given["rate"] || given["seconds"] == given["queries"] {
		return trace{}, errors.New("it has a rate, and either seconds or queries: " + gammaUsage)
	}
	shape, err := shapeOf(is["cv"])
	if err != nil {
		return trace{}, err
	}
	p := process{prompt: int32(is["prompt"]), output: int32(is["output"]), most: int(is["queries"])}
	w := Window{Seconds: is["seconds"], Rate: is["rate"], Shape: shape}
	if p.most > 0 {
		w.Seconds = math.Inf(1)
	}
	p.windows = []Window{w}
	return trace{processes: []process{p}, about: fmt.Sprintf("gaps have a coefficient of variation of %g", is["cv"])}, nil
}
