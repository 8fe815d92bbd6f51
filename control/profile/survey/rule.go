package survey

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/profile"
)

// leastValues is the minimum number of values for a confidence interval.
const leastValues = 3

// Rule decides how many measurements a point needs.
type Rule struct {
	// Precision is the target for half of the width of the 95 % confidence interval, relative to
	// the mean.
	Precision float64
	// Least and Most bound the number of measurements.
	Least, Most int
	// Limit is the approximate maximum time in seconds for measuring a point.
	Limit float64
}

// enough reports whether a point needs no more values, after measuring it for took seconds. Fewer
// than three values are never enough.
func (r Rule) enough(s Summary, took float64) bool {
	switch {
	case s.N < leastValues:
		return false
	case s.N >= r.Most || took >= r.Limit:
		return true
	}
	return s.N >= r.Least && s.Share() < r.Precision
}

// needs estimates how many values are needed for the target precision: the confidence interval
// shrinks with the square root of their number.
func (r Rule) needs(s Summary) int {
	wider := s.Share() / r.Precision
	if s.N < leastValues || !(wider > 1) {
		return max(r.Least, leastValues, s.N)
	}
	return int(min(float64(r.Most), max(float64(r.Least), float64(s.N)*wider*wider)))
}

// Summary contains the number, the mean and the precision of measured values.
type Summary struct {
	N    int
	Mean float64
	// Half is half of the width of the mean's 95 % confidence interval, by Student's
	// t-distribution. It is +Inf for fewer than two values.
	Half float64
}

// Summarize returns the summary of values.
func Summarize(values []float64) Summary {
	s := Summary{N: len(values), Half: math.Inf(1)}
	for _, v := range values {
		s.Mean += v / float64(s.N)
	}
	if s.N < 2 {
		return s
	}
	var squares float64
	for _, v := range values {
		squares += (v - s.Mean) * (v - s.Mean)
	}
	s.Half = student(s.N-1) * math.Sqrt(squares/float64(s.N-1)/float64(s.N))
	return s
}

// Share returns half of the width of the confidence interval, relative to the mean.
func (s Summary) Share() float64 { return s.Half / s.Mean }

// Within formats half of the confidence interval relative to the mean, such as "±2.9 %".
func (s Summary) Within() string { return fmt.Sprintf("±%.1f %%", 100*s.Share()) }

// student computes the 97.5th percentile of Student's t-distribution. It is exact for one and two
// degrees of freedom. For more it uses the expansion around the normal distribution (Abramowitz and
// Stegun, 26.7.5), which is 0.8 % too small for three degrees and more accurate above that.
func student(freedom int) float64 {
	switch freedom {
	case 1:
		return 12.7062
	case 2:
		return 4.3027
	}
	const (
		z  = 1.959964
		z3 = z * z * z
		z5 = z3 * z * z
		z7 = z5 * z * z
	)
	n := float64(freedom)
	return z + (z3+z)/(4*n) + (5*z5+16*z3+3*z)/(96*n*n) + (3*z7+19*z5+17*z3-15*z)/(384*n*n*n)
}

// shares are the quantiles in a profile. With few values some are left out.
var shares = []float64{0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1}

// Quantiles returns the quantiles in shares for which there are enough values. Except for the
// minimum and the maximum, a quantile needs at least one value below it and one above. Quantiles
// interpolates linearly. It returns nil for one value or equal values.
func Quantiles(values []float64) (all []profile.Quantile) {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) < 2 || sorted[0] == sorted[len(sorted)-1] {
		return nil
	}
	for _, share := range shares {
		if tail := min(share, 1-share); tail > 0 && tail*float64(len(sorted)) < 1-1e-9 {
			continue
		}
		at := share * float64(len(sorted)-1)
		low := int(at)
		seconds := sorted[low]
		if low+1 < len(sorted) {
			seconds += (at - float64(low)) * (sorted[low+1] - sorted[low])
		}
		all = append(all, profile.Quantile{Share: share, Seconds: profile.Rounded(seconds)})
	}
	return all
}

// join joins words with commas and "and".
func join(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
