package placementclient

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile/learn"
)

// Limits of one Report: the number of accelerators, and the number of endpoints of each. Control
// accepts no more than these.
const (
	maxLessons = 64
	maxFactors = 512
)

// teaches creates the report of the learned profiles that have changed. If there are too many,
// those with the fewest reported measurements come first.
func (t *reporter) teaches(all []endpointstate.LearnedProfile) []*placement.Lesson {
	all = slices.DeleteFunc(all, func(l endpointstate.LearnedProfile) bool {
		was, told := t.taught[l.AcceleratorKey]
		return told && was.Rows == l.Rows && slices.EqualFunc(was.Late[:], l.Late[:], slices.Equal)
	})
	slices.SortStableFunc(all, func(a, b endpointstate.LearnedProfile) int {
		return cmp.Compare(t.taught[a.AcceleratorKey].Rows, t.taught[b.AcceleratorKey].Rows)
	})
	var out []*placement.Lesson
	for _, l := range all[:min(len(all), maxLessons)] {
		t.taught[l.AcceleratorKey] = l
		out = append(out, wireLesson(l))
	}
	return out
}

func wireLesson(l endpointstate.LearnedProfile) *placement.Lesson {
	out := &placement.Lesson{
		Pool: l.Pool.String(), Class: l.Accelerator, Prior: l.Prior,
		InSlot: l.Late[learn.InSlot], InHost: l.Late[learn.InHost], InStorage: l.Late[learn.InStorage],
	}
	if l.Rows == 0 {
		return out
	}
	out.Rows, out.AgeMs, out.Trusted, out.Unchanged = uint64(l.Rows), uint64(l.Age.Milliseconds()), l.Trusted,
		uint32(l.Unchanged) //nolint:gosec // of what is not negative
	out.Off, out.Scale, out.Matrix, out.Right = l.Off, l.Scale, l.Matrix[:], l.Right[:]
	out.Usual, out.UsualPrompts, out.Shortest = l.Usual[0], l.Usual[1], l.Shortest
	out.Factors = make(map[string]float64, min(len(l.Factors), maxFactors))
	for address, factor := range l.Factors {
		if len(out.Factors) == maxFactors {
			break
		}
		out.Factors[address] = factor
	}
	return out
}

// mostAge is the maximum age of a measurement.
const mostAge = 365 * 24 * time.Hour

// learnedProfiles returns the learned profiles in an Update. It drops incomplete profiles; the
// learner rejects impossible ones.
func learnedProfiles(told []*placement.Lesson) (all []endpointstate.LearnedProfile) {
	for _, l := range told {
		namespace, name, ok := strings.Cut(l.GetPool(), "/")
		is := endpointstate.LearnedProfile{
			AcceleratorKey: endpointstate.AcceleratorKey{Pool: objects.Name{Namespace: namespace, Name: name}, Accelerator: l.GetClass()},
			Age:            time.Duration(min(l.GetAgeMs(), uint64(mostAge.Milliseconds()))) * time.Millisecond, Factors: l.GetFactors(),
		}
		is.Prior, is.Rows, is.Trusted, is.Unchanged = l.GetPrior(), int(min(l.GetRows(), 1<<62)), l.GetTrusted(),
			int(l.GetUnchanged()) //nolint:gosec // bounded
		is.Off, is.Scale, is.Usual, is.Shortest = l.GetOff(), l.GetScale(), [...]float64{l.GetUsual(), l.GetUsualPrompts()}, l.GetShortest()
		is.Late = [...][]float64{learn.InSlot: l.GetInSlot(), learn.InHost: l.GetInHost(), learn.InStorage: l.GetInStorage()}
		if is.Rows > 0 {
			ok = ok && copy(is.Matrix[:], l.GetMatrix()) == len(is.Matrix) && len(l.GetMatrix()) == len(is.Matrix)
			ok = ok && copy(is.Right[:], l.GetRight()) == len(is.Right) && len(l.GetRight()) == len(is.Right)
		}
		if ok {
			all = append(all, is)
		}
	}
	return all
}
