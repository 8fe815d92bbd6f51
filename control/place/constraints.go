package place

import (
	"math"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// fitsOf says which endpoints of a pool are for which models, by its settings, if it has any, and
// the labels of the endpoints.
//
// Types that prefer none of their own prefer those endpoints that the fewest other types can use
// and want: so that scarce endpoints, which are all that some types can use, stay free for these
// (ModelMesh 0.12, TypeConstraintManager).
func fitsOf(s *v1alpha1.PoolSettingsSpec, endpoints []objects.Endpoint) decide.Fits {
	if s == nil || s.Placement == nil || len(s.Placement.Constraints) == 0 {
		return decide.Fits{}
	}
	constraints := s.Placement.Constraints
	scores := make(map[string]int, len(endpoints))
	for _, e := range endpoints {
		scores[e.Address] = score(constraints, e.Labels)
	}
	fits := decide.Fits{Types: make(map[string]*decide.Fit, len(constraints)), Others: &decide.Fit{Preferred: best(scores, nil)}}
	for _, c := range constraints {
		fit := new(decide.Fit)
		if len(c.Required) > 0 {
			fit.Only = those(endpoints, func(labels map[string]string) bool { return objects.Selects(c.Required, labels) })
		}
		if len(c.Preferred) > 0 {
			fit.Preferred = those(endpoints, func(labels map[string]string) bool { return hasAny(labels, c.Preferred) })
		} else {
			fit.Preferred = best(scores, fit.Only)
		}
		if c.ModelType == "" {
			fits.Others = fit
		} else {
			fits.Types[c.ModelType] = fit
		}
	}
	return fits
}

// those has the endpoints with labels of a kind.
func those(endpoints []objects.Endpoint, are func(labels map[string]string) bool) map[string]bool {
	found := make(map[string]bool)
	for _, e := range endpoints {
		if are(e.Labels) {
			found[e.Address] = true
		}
	}
	return found
}

// prohibited is what a type that cannot use an endpoint weighs beside one that prefers it
// (ModelMesh).
const prohibited = 4

// score is the higher, the fewer types can use an endpoint of these labels, or prefer it.
func score(constraints []v1alpha1.Constraint, labels map[string]string) (n int) {
	for _, c := range constraints {
		switch {
		case !objects.Selects(c.Required, labels):
			n += prohibited
		case hasAny(labels, c.Preferred):
			n--
		}
	}
	return n
}

// best has the endpoints whose score is the highest of some or, with nil, of all; none where all of
// these have the same.
func best(scores map[string]int, of map[string]bool) map[string]bool {
	highest, lowest := math.MinInt, math.MaxInt
	for address, n := range scores {
		if of == nil || of[address] {
			highest, lowest = max(highest, n), min(lowest, n)
		}
	}
	if highest <= lowest {
		return nil
	}
	found := make(map[string]bool)
	for address, n := range scores {
		if n == highest {
			found[address] = true
		}
	}
	return found
}

// hasAny says whether it has all labels of one of several sets.
func hasAny(labels map[string]string, sets []map[string]v1alpha1.LabelValue) bool {
	for _, set := range sets {
		if objects.Selects(set, labels) {
			return true
		}
	}
	return false
}
