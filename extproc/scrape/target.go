package scrape

import (
	"cmp"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Target is an endpoint to scrape.
type Target struct {
	Address string // "ip:port"
	// Host is its configured DNS name, for its certificate and the Host of requests. Empty means
	// its address.
	Host string
	Kind engine.Kind // of its engine; if unknown, detected from its pages
	// Token refers to the bearer token for scrapes, in [engineclient.Tokens].
	Token string
	// TLS is the TLS configuration of its pool, zero if there is none. H2C reports HTTP/2 without
	// TLS.
	TLS v1alpha1.EngineTLS
	H2C bool
	// Ports are its other ports.
	Ports objects.Ports
	// Incarnation identifies one life of the engine, or is empty. Another incarnation is another
	// target.
	Incarnation string
}

// Targets returns every engine of a World.
func Targets(w *objects.World) []Target {
	all := make([]Target, len(w.Engines))
	for i, e := range w.Engines {
		all[i] = Target{
			Address: e.Address, Host: e.Host, Kind: e.Kind, Token: e.Token, TLS: e.TLS, H2C: e.H2C, Ports: e.Ports,
			Incarnation: e.Incarnation,
		}
	}
	return all
}

// where returns the address of a page of the target.
func (t Target) where(page engine.Page) string {
	return objects.AtPort(t.Address, cmp.Or(t.port(page), page.Port))
}

// port returns the configured port for a page, or 0.
func (t Target) port(page engine.Page) uint16 {
	if page.Path == modelsPage.Path {
		return t.Ports.HTTP
	}
	return cmp.Or(t.Ports.Metrics, t.Ports.HTTP)
}

// modelsPage is where engines list their models.
var modelsPage = engine.Page{Path: "/v1/models"}
