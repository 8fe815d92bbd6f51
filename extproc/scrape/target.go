package scrape

import (
	"net"
	"strconv"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Target is an endpoint to look at.
type Target struct {
	Address string // "ip:port"
	// Host is the DNS name that people wrote for it: what its certificate is for, and the Host of requests. Empty means
	// its address.
	Host string
	Kind engine.Kind // of its engine; unknown is told apart by what it serves
	// Token refers to the bearer token that looks carry, as of [reach.Tokens].
	Token string
	// TLS is how it is known by the settings of its pool, zero if they do not say; H2C says that it speaks HTTP/2 without TLS.
	TLS v1alpha1.EngineTLS
	H2C bool
	// Incarnation tells lives of the engine apart, empty if nobody says: another one is another target, of which nothing is known.
	Incarnation string
}

// Targets returns every engine of a World.
func Targets(w *objects.World) []Target {
	all := make([]Target, len(w.Engines))
	for i, e := range w.Engines {
		all[i] = Target{Address: e.Address, Host: e.Host, Kind: e.Kind, Token: e.Token, TLS: e.TLS, H2C: e.H2C, Incarnation: e.Incarnation}
	}
	return all
}

// where is the address at which a page of the target is.
func (t Target) where(page engine.Page) string {
	if page.Port == 0 {
		return t.Address
	}
	host, _, _ := net.SplitHostPort(t.Address) // it is ip:port
	return net.JoinHostPort(host, strconv.Itoa(int(page.Port)))
}
