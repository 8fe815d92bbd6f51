package workload

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// recordedBy returns a function that reads a trace, given a function that reads its queries.
// Queries must be sorted by time.
func recordedBy(read func(io.Reader) ([]Query, error)) func(io.Reader, Options) (trace, error) {
	return func(r io.Reader, _ Options) (trace, error) {
		all, err := read(r)
		return trace{recorded: all}, err
	}
}

// errFew is the error for a trace without two requests at different times.
var errFew = errors.New("a trace has at least two requests, at two times")

// kept returns a Source of the recorded queries in a part of the trace. If the recorded times are
// rounded, the Source moves each query to a random time within the rounding interval.
func (t trace) kept(from, seconds float64) (*Source, error) {
	all := t.recorded
	if len(all) == 0 {
		return nil, errFew
	}
	begin := all[0].At + from
	all = slices.DeleteFunc(all, func(q Query) bool { return q.At < begin || q.At-begin >= seconds })
	for i := range all {
		all[i].At -= begin
	}
	if len(all) < 2 || all[0].At == all[len(all)-1].At {
		return nil, errFew
	}
	s := &Source{About: fmt.Sprintf("%d requests in %s", len(all), span(all[len(all)-1].At))}
	quantum := quantumOf(all)
	if quantum == 0 {
		s.queries = func(uint64) []Query { return slices.Clone(all) }
		return s, nil
	}
	s.About += fmt.Sprintf("; times are rounded to %g s, and jittered within", quantum)
	s.queries = func(seed uint64) []Query { return jittered(all, quantum, seed) }
	return s, nil
}

// jittered moves each query to a random time within its rounding interval, which is quantum long.
func jittered(all []Query, quantum float64, seed uint64) []Query {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // no secret
	all = slices.Clone(all)
	for i, q := range all {
		all[i].At = quantum * (math.Round(q.At/quantum) + random.Float64())
	}
	sortByTime(all)
	return all
}

func sortByTime(all []Query) {
	slices.SortStableFunc(all, func(a, b Query) int { return cmp.Compare(a.At, b.At) })
}

// quanta are the possible rounding intervals in seconds, the longest first.
var quanta = []float64{3600, 1800, 900, 600, 300, 120, 60, 30, 20, 15, 12, 10, 6, 5, 4, 3, 2, 1, 0.5, 0.25, 0.2, 0.1, 0.05, 0.02, 0.01}

// leastMoments is how many different times must be multiples of a quantum. Fewer may be multiples
// by chance.
const leastMoments = 8

// quantumOf returns the interval in seconds to which the times of a trace are rounded; 0 if they
// are not rounded. It ignores deviations of up to 1/500 of the interval, because some rounded
// traces have them. It treats times as not rounded if they all differ: the requests were then sent
// at regular times.
func quantumOf(all []Query) float64 {
	for _, quantum := range quanta {
		moments, together := 1, false
		for i, q := range all {
			n := math.Round(q.At / quantum)
			if math.Abs(q.At-n*quantum) > quantum/500 {
				moments = 0
				break
			}
			if i > 0 {
				if n != math.Round(all[i-1].At/quantum) {
					moments++
				} else {
					together = true
				}
			}
		}
		if moments >= leastMoments && together {
			return quantum
		}
	}
	return 0
}

// span formats a duration in seconds.
func span(seconds float64) string {
	if seconds > 1e6*3600 {
		return fmt.Sprintf("%g h", math.Round(seconds/3600))
	}
	unit := time.Second
	if seconds < 10 {
		unit = time.Millisecond
	}
	return time.Duration(seconds * float64(time.Second)).Round(unit).String()
}
