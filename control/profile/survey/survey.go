// Package survey decides which measurements a profile needs, and evaluates them. Package probe
// takes the measurements.
//
// A plan is a list of points, such as batch sizes. A point is measured until its mean is precise
// enough. Each measurement is a row of a file. The rows alone decide whether a point needs more
// measurements, so a survey can resume from its file.
//
// The package is pure: equal rows give equal results.
package survey

import (
	"fmt"
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// API is the protocol for inference requests to a server.
type API string

// The APIs are V2 inference over REST, and three APIs of OpenAI.
const (
	V2          API = "v2"
	Embeddings  API = "embeddings"
	Completions API = "completions"
	Chat        API = "chat"
)

// APIs lists all APIs, with the names that flags use.
var APIs = []API{V2, Embeddings, Completions, Chat}

// Generates reports whether the API generates text token by token, which gives an LLM profile.
func (a API) Generates() bool { return a == Completions || a == Chat }

// Path returns the URL path for inference requests to a model.
func (a API) Path(model string) string {
	switch a {
	case V2:
		return ModelPath(model) + "/infer"
	case Completions:
		return "/v1/completions"
	case Chat:
		return "/v1/chat/completions"
	default:
		return "/v1/embeddings"
	}
}

// Point is one thing to measure. For a batch profile it is a request with Batch items, and Asked
// and Outputs are 0. For an LLM it is a single prompt (Outputs is 1), several prompts at once,
// decode steps of several concurrent requests, or a prompt beside decoding requests.
type Point struct {
	Batch   int // number of items in a request, or number of concurrent requests
	Asked   int // requested tokens of each prompt; the engine may count more or fewer
	Outputs int // output tokens of each request
	Beside  int // number of requests that decode while the prompt runs, with Outputs tokens each
}

// steps reports whether the point measures decode steps. One measurement then consists of Batch
// requests with many tokens each.
func (p Point) steps() bool { return p.Outputs > 1 && p.Beside == 0 }

// Mixed reports whether the point is a prompt beside decoding requests.
func (p Point) Mixed() bool { return p.Beside > 0 }

// String describes the point in messages.
func (p Point) String() string {
	switch {
	case p.steps():
		return fmt.Sprintf("steps of %d with prompts of %d", p.Batch, p.Asked)
	case p.Mixed():
		return fmt.Sprintf("prompts of %d beside %d", p.Asked, p.Beside)
	case p.Asked > 0 && p.Batch > 1:
		return fmt.Sprintf("%d prompts of %d at once", p.Batch, p.Asked)
	case p.Asked > 0:
		return fmt.Sprintf("prompts of %d", p.Asked)
	}
	return fmt.Sprintf("batches of %d", p.Batch)
}

// cost estimates the time that measurements of the point took, from the sum of their Seconds.
func (p Point) cost(seconds float64) float64 {
	if p.Mixed() { // seconds counts only steps with a prompt, but most steps have none and take less
		return seconds * max(1, float64(p.Outputs)/mixedShare)
	}
	return seconds * float64(max(1, p.Outputs))
}

// mixedShare is how many times longer a step with a prompt takes than a step without,
// approximately.
const mixedShare = 2

// Row is one measurement of a point.
type Row struct {
	Point
	// Seconds is what the point measures: the time of a batch request; the time to the first token
	// of a prompt, or to the last first token of several; the mean time of a decode step; or the
	// time of the step with a prompt beside decoding requests.
	Seconds float64
	// FrontendOverhead is the time in seconds until the request is in the engine's queue; 0 if the
	// engine does not report its queue times.
	FrontendOverhead float64
	// Prompt is the number of tokens of a prompt. KV is the number of tokens in the KV cache, of
	// all requests of a step. The engine counts both.
	Prompt, KV int
	// FirstToken and Step are set for a prompt beside decoding requests, in seconds: FirstToken is
	// the prompt's time to first token, and Step is the time of steps without a prompt.
	FirstToken, Step float64
}

// Plan lists all points in the order in which they are measured.
type Plan struct {
	Points []Point
	Rule   Rule
}

// OfBatches returns a plan that measures requests with these numbers of items.
func OfBatches(sizes []int, rule Rule) Plan {
	p := Plan{Rule: rule}
	for _, size := range sizes {
		p.Points = append(p.Points, Point{Batch: size})
	}
	return p
}

// OfLLM returns a plan that measures prompts of the lengths in inputs: alone, beside decoding
// requests, and several at once. It omits combinations that exceed the token budget of a step. The
// plan also measures decode steps at each concurrency. Their prompts have at most mostOfSteps
// tokens, or any of the lengths if that is 0.
func OfLLM(inputs []int, mostOfSteps, outputs int, concurrency []int, limits profile.Limits, rule Rule) Plan {
	p := Plan{Rule: rule}
	for _, n := range inputs {
		p.Points = append(p.Points, Point{Batch: 1, Asked: n, Outputs: 1})
	}
	for _, at := range concurrency {
		for _, n := range inputs {
			if mostOfSteps == 0 || n <= mostOfSteps {
				p.Points = append(p.Points, Point{Batch: at, Asked: n, Outputs: outputs})
			}
		}
	}
	for _, beside := range besides(concurrency, limits.MaxSequences-1) {
		for _, n := range inputs {
			if n+beside <= limits.MaxBatchedTokens {
				p.Points = append(p.Points, Point{Batch: 1, Asked: n, Outputs: outputs, Beside: beside})
			}
		}
	}
	if at := min(atOnce, limits.MaxSequences); at > 1 {
		for _, n := range inputs {
			if (at-1)*n <= limits.MaxBatchedTokens {
				p.Points = append(p.Points, Point{Batch: at, Asked: n, Outputs: 1})
			}
		}
	}
	return p
}

// Inputs returns the lengths below 15/16 of a step's token budget, and also 15/16 of the budget
// itself. It does not use the whole budget, because a prompt may have slightly more tokens than
// requested.
func Inputs(lengths []int, budget int) (all []int) {
	most := budget - budget/16
	for _, n := range lengths {
		if n < most {
			all = append(all, n)
		}
	}
	return append(all, max(1, most))
}

// atOnce is the number of prompts that are sent at once. The engine computes the first prompt in
// its own step, and the other prompts arrive during that step.
const atOnce = 4

// besides returns the smallest and the largest of the numbers that do not exceed most.
func besides(numbers []int, most int) (all []int) {
	for _, n := range numbers {
		if n <= most {
			all = append(all, n)
		}
	}
	if len(all) > 2 {
		all = []int{all[0], all[len(all)-1]}
	}
	return all
}

// Sizes returns the powers of two below most, and most itself.
func Sizes(most int) (sizes []int) {
	for size := 1; size < most; size *= 2 {
		sizes = append(sizes, size)
	}
	return append(sizes, most)
}

// Ascending reports whether the numbers are positive and strictly ascending. It returns false for
// an empty list.
func Ascending(numbers []int) bool {
	for i, n := range numbers {
		if n < 1 || i > 0 && n <= numbers[i-1] {
			return false
		}
	}
	return len(numbers) > 0
}

// Of returns the Seconds of all rows that measured the point p.
func Of(rows []Row, p Point) (seconds []float64) {
	for _, r := range rows {
		if r.Point == p {
			seconds = append(seconds, r.Seconds)
		}
	}
	return seconds
}

// Enough reports whether a point needs no more measurements.
func (p Plan) Enough(at Point, s Summary) bool {
	return p.ruleOf(at).enough(s, at.cost(s.Mean*float64(s.N)))
}

// ruleOf returns the rule for a point. Decode steps need fewer measurements than other points: one
// measurement contains many tokens of several requests.
func (p Plan) ruleOf(at Point) Rule {
	r := p.Rule
	if at.steps() || at.Mixed() {
		r.Least = max(leastValues, (r.Least+stepsAtOnce-1)/stepsAtOnce)
	}
	if at.Mixed() {
		r.Precision *= mixedPrecision
	}
	return r
}

// mixedPrecision widens the target interval for a prompt beside decoding requests: the result is a
// small difference between the times of several steps, so it varies more.
const mixedPrecision = 3

// stepsAtOnce is how many measurements of other points are worth one measurement of decode steps.
const stepsAtOnce = 4

// Done returns the number of points that need no more measurements.
func (p Plan) Done(rows []Row) (n int) {
	for _, at := range p.Points {
		if p.Enough(at, Summarize(Of(rows, at))) {
			n++
		}
	}
	return n
}

// Left estimates how many seconds the points with index from and higher still need; 0 if unknown.
// It assumes that an unmeasured point takes as long as the last measured point.
func (p Plan) Left(rows []Row, from int) (seconds float64) {
	var last float64
	for i, at := range p.Points {
		s, r := Summarize(Of(rows, at)), p.ruleOf(at)
		if s.N > 0 {
			each := at.cost(s.Mean)
			last = min(each*float64(r.needs(s)), max(r.Limit, each))
			if p.Enough(at, s) {
				continue
			}
			if i >= from {
				seconds += max(0, last-each*float64(s.N))
			}
			continue
		}
		if i >= from {
			seconds += last
		}
	}
	return seconds
}

// Measured returns the points that have at least one row, in the order of the plan.
func (p Plan) Measured(rows []Row) []Point {
	return slices.DeleteFunc(slices.Clone(p.Points), func(at Point) bool { return len(Of(rows, at)) == 0 })
}

// precision describes how many measurements each point has and how precise the means are.
func (p Plan) precision(rows []Row) string {
	least, most, worst := math.MaxInt, 0, 0.0
	var wide []string
	for _, at := range p.Measured(rows) {
		s := Summarize(Of(rows, at))
		least, most = min(least, s.N), max(most, s.N)
		if share := s.Share(); share <= p.ruleOf(at).Precision {
			worst = max(worst, share)
		} else {
			wide = append(wide, fmt.Sprintf("%s %s", at, s.Within()))
		}
	}
	times := fmt.Sprintf("%d to %d repetitions", least, most)
	if least == most {
		times = fmt.Sprintf("%d repetitions", least)
	}
	words := times + " each, 95 % interval of each mean"
	if len(wide) < len(p.Measured(rows)) {
		words += fmt.Sprintf(" within ±%.1f %%", 100*worst)
	}
	if len(wide) > 0 {
		words += " (but " + join(wide) + ")"
	}
	return words
}
