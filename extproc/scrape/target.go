package scrape

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

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
}

// Targets returns every endpoint of a World, each once.
func Targets(w *objects.World) []Target {
	var all []Target
	for _, p := range w.Pools {
		for _, e := range p.Endpoints {
			all = append(all, Target{Address: e.Address, Host: e.Host, Kind: e.Kind})
		}
	}
	slices.SortFunc(all, func(a, b Target) int {
		return cmp.Or(strings.Compare(a.Address, b.Address), strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Host, b.Host))
	})
	merged := all[:0]
	for _, t := range all {
		if n := len(merged) - 1; n >= 0 && merged[n].Address == t.Address {
			// In another pool, declared in another way perhaps: what anybody says counts.
			merged[n].Kind, merged[n].Host = cmp.Or(merged[n].Kind, t.Kind), cmp.Or(merged[n].Host, t.Host)
			continue
		}
		merged = append(merged, t)
	}
	return merged
}

// url is where a page of the target is.
func (t Target) url(scheme string, page engine.Page) string {
	address := t.Address
	if page.Port != 0 {
		host, _, _ := net.SplitHostPort(address) // it is ip:port
		address = net.JoinHostPort(host, strconv.Itoa(int(page.Port)))
	}
	return scheme + "://" + address + page.Path
}

// serverName carries a Target's Host to the dialer.
type serverName struct{}

// newTransport returns how engines are reached: over TLS where config is not nil.
func newTransport(config *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: timeout}
	t := &http.Transport{
		DialContext: dialer.DialContext,
		// One connection an endpoint for the load and one for the models. Compression would cost the engine more
		// than it saves the wire.
		MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}
	if config != nil {
		// Connections are kept by address, of which several may have the same name, so that the name does not come
		// from the URL.
		t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			own := config.Clone()
			own.ServerName, _ = ctx.Value(serverName{}).(string)
			if own.ServerName == "" {
				own.ServerName, _, _ = net.SplitHostPort(address)
			}
			return (&tls.Dialer{NetDialer: dialer, Config: own}).DialContext(ctx, network, address)
		}
	}
	return t
}

// stay follows redirects, which older vLLM answers /metrics with, but never away from the endpoint. A Location may have
// the endpoint's name; the connection is to its address all the same.
func stay(r *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) > 3 || r.URL.Scheme != first.URL.Scheme || r.URL.Host != first.URL.Host && r.URL.Host != first.Host {
		return errors.New("redirected away from the endpoint")
	}
	r.URL.Host, r.Host = first.URL.Host, first.Host
	if token := first.Header.Get("Authorization"); token != "" {
		r.Header.Set("Authorization", token) // net/http drops it where the names differ
	}
	return nil
}
