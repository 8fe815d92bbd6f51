package stream

import (
	"errors"
	"slices"
	"strings"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// maxServed limits how many models an error lists.
	maxServed = 10
	// maxConsidered limits how many names are read from each source for that list. So a bad request
	// costs no more in a fleet with many models.
	maxConsidered = 100
)

// unnamed is the error for a request without a model, in a pool without a default model.
type unnamed struct {
	body   *openai.Error
	served []string // models that the request could have named, at most maxServed
	all    bool     // served contains all such models
}

func (e *unnamed) Error() string { return e.body.Reason }

// message returns the error text for the client.
func (e *unnamed) message() string {
	if len(e.served) == 0 {
		return e.body.Reason
	}
	quoted := make([]string, len(e.served))
	for i, name := range e.served {
		quoted[i] = quote(name)
	}
	link := ", such as "
	if e.all {
		link = ": "
	}
	return strings.TrimSuffix(e.body.Reason, ".") + link + strings.Join(quoted, ", ") + "."
}

// defaulted sets the pool's default model in a request without a model. If the pool has no default
// model, defaulted returns an error that lists models.
func (s *scope) defaulted(r openai.Request, err error) (openai.Request, error) {
	var fault *openai.Error
	if !errors.Is(err, openai.ErrAbsent) || !errors.As(err, &fault) {
		return r, err
	}
	view := s.server.Fleet.View()
	offer, err := s.offer(view)
	if err != nil {
		return r, err
	}
	if r.Model = s.server.Settings.For(view.World.Pools[s.implied(view, offer)]).DefaultModel; r.Model != "" {
		return r, nil
	}
	served, all := s.someServed(view, offer)
	return r, &unnamed{fault, served, all}
}

// implied returns the pool of a request without a model: the pool of its route or gateway, the pool
// on the command line, or the only pool. It is zero if none of these determines a pool.
func (s *scope) implied(view *endpointstate.View, offer *objects.Offer) objects.Name {
	var only objects.Name
	if given, ok := s.given(view.World); ok {
		return given
	}
	if name := s.commandLine(); name != only {
		return name
	}
	counts := s.counts(offer, objects.Name{})
	for name := range view.World.Pools {
		switch {
		case !counts(name):
		case only != objects.Name{}:
			return objects.Name{}
		default:
			only = name
		}
	}
	return only
}

// someServed returns, sorted, models that the request could have named, and whether these are all.
func (s *scope) someServed(view *endpointstate.View, offer *objects.Offer) (names []string, all bool) {
	given, isGiven := s.given(view.World)
	all = true
	routed := offer.Models()
	if len(routed) > maxConsidered {
		routed, all = routed[:maxConsidered], false
	}
	for _, m := range routed {
		if !isGiven || offer.Route(m.Name).LeadsTo(given) {
			names = append(names, m.Name)
		}
	}
	if s.server.placing() {
		registered, some := s.server.Fleet.SomeRegistered(s.counts(offer, given), maxConsidered)
		names, all = append(names, registered...), all && some
	}
	for _, pool := range s.openPools(view) {
		if len(names) > 3*maxConsidered {
			all = false
			break
		}
		if p, s := view.World.Pools[pool], view.Snapshot.Pools[pool.String()]; p != nil && !p.Routed && s != nil {
			considered := 0
			for name := range s.Copies {
				if considered++; considered > maxConsidered {
					all = false
					break
				}
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > maxServed {
		return names[:maxServed], false
	}
	return names, all
}
