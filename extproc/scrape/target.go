package scrape

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"

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

// where is the address at which a page of the target is.
func (t Target) where(page engine.Page) string {
	if page.Port == 0 {
		return t.Address
	}
	host, _, _ := net.SplitHostPort(t.Address) // it is ip:port
	return net.JoinHostPort(host, strconv.Itoa(int(page.Port)))
}
