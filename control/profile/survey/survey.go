// Package survey is which measurements make a profile: what is to be measured, how often, what was measured already, and what all of it
// comes to. It measures nothing itself.
//
// What is measured is a list of points. A point is measured again and again, until the mean is known well enough; each measurement is a
// row of a file, and what the rows of a point say is all that decides whether it needs more. So a file is where a survey goes on.
//
// The package is pure: the same rows give the same answers.
package survey

import (
	"fmt"
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// API is what a server is asked by.
type API string

// The APIs: V2's inference over REST, and those of OpenAI.
const (
	V2          API = "v2"
	Embeddings  API = "embeddings"
	Completions API = "completions"
	Chat        API = "chat"
)

// APIs are all of them, as people write them.
var APIs = []API{V2, Embeddings, Completions, Chat}

// Generates says whether answers are text, token by token, so that a profile is that of an LLM.
func (a API) Generates() bool { return a == Completions || a == Chat }

// Path is where requests for a model go.
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

// Point is one thing to measure, again and again. By batch it is a request of so many rows, and Asked and Outputs are 0; of an LLM it is a
// prompt alone, whose Outputs are 1, several of them at once, steps of so many requests at once, or a prompt beside requests that decode.
type Point struct {
	Batch   int // rows of a request; requests at once
	Asked   int // tokens of each prompt, as they were asked for; the engine may count others
	Outputs int // tokens of each answer
	Beside  int // requests that decode while the prompt is computed, whose answers have Outputs tokens
}

// steps says whether the point is of steps, so that one measurement is many requests of many tokens.
func (p Point) steps() bool { return p.Outputs > 1 && p.Beside == 0 }

// Mixed says whether the point is of a prompt beside requests that decode.
func (p Point) Mixed() bool { return p.Beside > 0 }

// String says what the point is, for people.
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

// cost is about how long measurements of a point took that came to seconds together.
func (p Point) cost(seconds float64) float64 {
	if p.Mixed() { // most steps have no prompt, and take a part of the one that has
		return seconds * max(1, float64(p.Outputs)/mixedShare)
	}
	return seconds * float64(max(1, p.Outputs))
}

// mixedShare is about how many times as long a step takes that has a prompt.
const mixedShare = 2

// Row is one measurement of a point.
type Row struct {
	Point
	// Seconds that a request took; to the first token, of several prompts of the last; from one token to the next, which is how long a step took;
	// or of the step that has a prompt beside requests that decode.
	Seconds float64
	// Intake is how much of the time to the first token passed before the request was in the engine's queue, in seconds; 0 where the engine
	// does not tell.
	Intake float64
	// Prompt is how many tokens a prompt had, KV how many the requests of a step had in the KV cache together, as the engine counted.
	Prompt, KV int
	// FirstToken and Step are of a prompt beside requests that decode: the time to its first token, and how long their steps without it take,
	// in seconds.
	FirstToken, Step float64
}

// Plan is all that is to be measured, in this order.
type Plan struct {
	Points []Point
	Rule   Rule
}

// OfBatches is a plan of requests of these many rows.
func OfBatches(sizes []int, rule Rule) Plan {
	p := Plan{Rule: rule}
	for _, size := range sizes {
		p.Points = append(p.Points, Point{Batch: size})
	}
	return p
}

// OfLLM is a plan of prompts of these lengths, alone, beside requests that decode and several at once, as far as an engine of these limits
// computes them in one step, and of steps with so many requests at once. Steps have prompts of no more than mostOfSteps tokens where that is above 0.
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

// Inputs are lengths of prompts up to what one step computes, and nearly that too: prompts have a little more or less than they are asked to have.
func Inputs(lengths []int, budget int) (all []int) {
	most := budget - budget/16
	for _, n := range lengths {
		if n < most {
			all = append(all, n)
		}
	}
	return append(all, max(1, most))
}

// atOnce is how many prompts are sent at once: the first has a step of its own, in which the others come.
const atOnce = 4

// besides are the least and the most of numbers up to most.
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

// Sizes are 1, 2, 4 and so on up to most, and most itself.
func Sizes(most int) (sizes []int) {
	for size := 1; size < most; size *= 2 {
		sizes = append(sizes, size)
	}
	return append(sizes, most)
}

// Ascending says whether numbers are above 0 and in order, each once.
func Ascending(numbers []int) bool {
	for i, n := range numbers {
		if n < 1 || i > 0 && n <= numbers[i-1] {
			return false
		}
	}
	return len(numbers) > 0
}

// Of are the seconds of the rows of a point.
func Of(rows []Row, p Point) (seconds []float64) {
	for _, r := range rows {
		if r.Point == p {
			seconds = append(seconds, r.Seconds)
		}
	}
	return seconds
}

// Enough says whether a point whose measurements came to s needs no more.
func (p Plan) Enough(at Point, s Summary) bool {
	return p.ruleOf(at).enough(s, at.cost(s.Mean*float64(s.N)))
}

// ruleOf is how often a point is measured. One measurement of steps is of many tokens of several requests.
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

// mixedPrecision is how many times as wide the interval of a prompt beside others may be: it is what is left of the time of several steps when that
// of the others is taken off, with all that these vary.
const mixedPrecision = 3

// stepsAtOnce is how many measurements of other points one of steps is worth.
const stepsAtOnce = 4

// Done is how many points need no more than the rows that are there.
func (p Plan) Done(rows []Row) (n int) {
	for _, at := range p.Points {
		if p.Enough(at, Summarize(Of(rows, at))) {
			n++
		}
	}
	return n
}

// Left is about how many seconds of measuring are left from the point with an index on; 0 as long as nobody can tell. Of a point that was
// not measured yet the last one before it that was says how long it takes.
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

// Measured are the points of which there are rows, in order of the plan.
func (p Plan) Measured(rows []Row) []Point {
	return slices.DeleteFunc(slices.Clone(p.Points), func(at Point) bool { return len(Of(rows, at)) == 0 })
}

// precision says how often points were measured, and how far off their means may be, for people.
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
