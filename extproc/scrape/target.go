package scrape

import (
	"cmp"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Target is an endpoint to look at.
type Target struct {
	Address string // "ip:port"
	// Host is the DNS name that people wrote for it: what its certificate is for, and the Host of
	// requests. Empty means its address.
	Host string
	Kind engine.Kind // of its engine; unknown is told apart by what it serves
	// Token refers to the bearer token that looks carry, as of [reach.Tokens].
	Token string
	// TLS is how it is known by the settings of its pool, zero if they do not say; H2C says that it
	// speaks HTTP/2 without TLS.
	TLS v1alpha1.EngineTLS
	H2C bool
	// Ports are where else it listens.
	Ports objects.Ports
	// Incarnation tells lives of the engine apart, empty if nobody says: another one is another
	// target, of which nothing is known.
	Incarnation string
}

// Targets returns every engine of a World.
func Targets(w *objects.World) []Target {
	all := make([]Target, len(w.Engines))
	for i, e := range w.Engines {
		all[i] = Target{Address: e.Address, Host: e.Host, Kind: e.Kind, Token: e.Token, TLS: e.TLS, H2C: e.H2C, Ports: e.Ports,
			Incarnation: e.Incarnation}
	}
	return all
}

// where is the address at which a page of the target is.
func (t Target) where(page engine.Page) string {
	return objects.AtPort(t.Address, cmp.Or(t.port(page), page.Port))
}

// port is the one that people name for such a page, 0 if they name none.
func (t Target) port(page engine.Page) uint16 {
	if page.Path == modelsPage.Path {
		return t.Ports.HTTP
	}
	return cmp.Or(t.Ports.Metrics, t.Ports.HTTP)
}

// modelsPage is where engines list their models.
var modelsPage = engine.Page{Path: "/v1/models"}
