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
	// maxServed bounds how many models an error names.
	maxServed = 10
	// maxConsidered bounds how many names of each source are read to find these: a bad request must not cost more where there are more models.
	maxConsidered = 100
)

// unnamed is the error of a request that names no model where its pool has no default model.
type unnamed struct {
	body   *openai.Error
	served []string // models that it might name, at most maxServed
	all    bool     // there are no others
}

func (e *unnamed) Error() string { return e.body.Reason }

// message is what the client is told.
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

// defaulted gives a request whose body names no model the default model of its pool. If there is none, the error lists models.
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

// implied is the pool of a request that names no model: the one that its route or gateway gives, that of the command line, or
// the only one that there is. It is zero where nothing says which.
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

// someServed returns models that the request might name, in order, and whether these are all.
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
	if s.server.Flow != nil {
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
