package attach

import (
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Offers returns what each listener offers that has LLMRoutes or pools, by the words of [Listener.String]. A is of the World's Network.
func (a *Attachments) Offers(w *objects.World) map[string]*objects.Offer {
	all := make(map[string]*objects.Offer)
	for _, g := range a.Gateways {
		for _, l := range g.Listeners {
			if routes := l.models(); len(routes)+len(l.Pools) > 0 {
				all[l.String()] = w.OfferOf(g.Name, routes, l.Pools)
			}
		}
	}
	return all
}

// Latest knows who attaches where in the latest Network, which stays the same while pods come and go. The zero Latest is ready. It is
// not safe for concurrent use.
type Latest struct {
	network *objects.Network
	is      *Attachments
}

// Of returns who attaches where.
func (l *Latest) Of(n *objects.Network) *Attachments {
	if l.is == nil || l.network != n {
		l.network, l.is = n, Of(n)
	}
	return l.is
}

// Offers says whether models are served at a listener, by LLMRoutes or of pools that no LLMRoute names.
func (l *Listener) Offers() bool { return l.Refused == (Verdict{}) && len(l.models())+len(l.Pools) > 0 }

// models returns the LLMRoutes of a listener, in order of precedence.
func (l *Listener) models() (all []objects.Name) {
	for _, at := range l.Routes {
		if at.Route.Kind == v1alpha1.LLMRouteKind {
			all = append(all, at.Route.Name)
		}
	}
	return all
}
