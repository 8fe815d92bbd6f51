package attach

import (
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Offers returns the offer of each listener with LLMRoutes or pools, by [Listener.String]. A must
// be of the World's Network.
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

// Latest caches the attachments of the last Network, which stays the same while pods change. The
// zero Latest is ready for use. It is not safe for concurrent use.
type Latest struct {
	network *objects.Network
	is      *Attachments
}

// Of returns the attachments in a Network.
func (l *Latest) Of(n *objects.Network) *Attachments {
	if l.is == nil || l.network != n {
		l.network, l.is = n, Of(n)
	}
	return l.is
}

// Offers reports whether a listener serves models, by LLMRoutes or of pools without LLMRoutes.
func (l *Listener) Offers() bool { return l.Refused == (Verdict{}) && len(l.models())+len(l.Pools) > 0 }

// models returns a listener's LLMRoutes in order of precedence.
func (l *Listener) models() (all []objects.Name) {
	for _, at := range l.Routes {
		if at.Route.Kind == v1alpha1.LLMRouteKind {
			all = append(all, at.Route.Name)
		}
	}
	return all
}
