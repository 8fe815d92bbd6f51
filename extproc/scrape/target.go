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
	// Host is the endpoint's configured DNS name, which its certificate must have and which is the
	// Host header of requests. If it is empty, the address is used.
	Host string
	Kind engine.Kind // kind of the engine; if unknown, it is detected from the engine's pages
	// Token is the reference in [engineclient.Tokens] to the bearer token for scrapes.
	Token string
	// TLS is the TLS configuration of the endpoint's pool; zero if it has none. H2C reports HTTP/2
	// without TLS.
	TLS v1alpha1.EngineTLS
	H2C bool
	// Ports are the endpoint's other ports.
	Ports objects.Ports
	// Incarnation identifies one life of the engine; empty if unknown. Another incarnation is a
	// different target.
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

// port returns the configured port for a page, or 0 if there is none.
func (t Target) port(page engine.Page) uint16 {
	if page.Path == modelsPage.Path {
		return t.Ports.HTTP
	}
	return cmp.Or(t.Ports.Metrics, t.Ports.HTTP)
}

// modelsPage is the page on which engines list their models.
var modelsPage = engine.Page{Path: "/v1/models"}
