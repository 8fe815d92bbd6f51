package place

import (
	"math"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// fitsOf returns which endpoints of a pool may load which models. It derives this from the pool's
// settings, which may be nil, and from the labels of the endpoints.
//
// Types without preferences prefer the endpoints that the fewest other types can use and prefer, so
// that scarce endpoints stay free for types that can use no others (ModelMesh 0.12,
// TypeConstraintManager).
func fitsOf(s *v1alpha1.PoolSettingsSpec, endpoints []objects.Endpoint) decide.Fits {
	if s == nil || s.Placement == nil || len(s.Placement.Constraints) == 0 {
		return decide.Fits{}
	}
	constraints := s.Placement.Constraints
	scores := make(map[string]int, len(endpoints))
	for _, e := range endpoints {
		scores[e.Address] = score(constraints, e.Labels)
	}
	fits := decide.Fits{Types: make(map[string]*decide.Fit, len(constraints)), Others: &decide.Fit{Preferred: bestScored(scores, nil)}}
	for _, c := range constraints {
		fit := new(decide.Fit)
		if len(c.Required) > 0 {
			fit.Only = withLabels(endpoints, func(labels map[string]string) bool { return objects.Selects(c.Required, labels) })
		}
		if len(c.Preferred) > 0 {
			fit.Preferred = withLabels(endpoints, func(labels map[string]string) bool { return hasAny(labels, c.Preferred) })
		} else {
			fit.Preferred = bestScored(scores, fit.Only)
		}
		if c.ModelType == "" {
			fits.Others = fit
		} else {
			fits.Types[c.ModelType] = fit
		}
	}
	return fits
}

// withLabels returns the endpoints whose labels satisfy the condition.
func withLabels(endpoints []objects.Endpoint, are func(labels map[string]string) bool) map[string]bool {
	found := make(map[string]bool)
	for _, e := range endpoints {
		if are(e.Labels) {
			found[e.Address] = true
		}
	}
	return found
}

// prohibited is how much is added to an endpoint's score for each type that cannot use the
// endpoint. For each type that prefers it, 1 is subtracted (ModelMesh).
const prohibited = 4

// score returns a number for an endpoint with these labels. It is higher if fewer types can use or
// prefer the endpoint.
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

// bestScored returns the endpoints with the highest score, from the given set of endpoints, or from
// all endpoints if the set is nil. It returns nil if all scores are equal.
func bestScored(scores map[string]int, of map[string]bool) map[string]bool {
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

// hasAny reports whether the labels include all labels of at least one of the sets.
func hasAny(labels map[string]string, sets []map[string]v1alpha1.LabelValue) bool {
	for _, set := range sets {
		if objects.Selects(set, labels) {
			return true
		}
	}
	return false
}
