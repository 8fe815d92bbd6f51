package agent

import (
	"fmt"
	"slices"
)

// figures are measurements of one quantity, one of each round.
type figures []float64

// median returns the middle measurement, or the mean of the two in the middle; 0 if there is none.
func (f figures) median() float64 {
	sorted := slices.Sorted(slices.Values(f))
	n := len(sorted)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// describe returns the median, and the lowest and the highest measurement.
func (f figures) describe(format string) string {
	if len(f) == 0 {
		return "nothing measured"
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", f.median(), slices.Min(f), slices.Max(f))
}
