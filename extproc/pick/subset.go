package pick

import (
	"net/netip"
	"strings"

	"github.com/headgate/headgate/internal/hash"
)

// Subset is the set of endpoints that a data plane allows for a request: single addresses, and
// hosts with all their ports. A nil Subset allows all endpoints; an empty Subset allows none.
type Subset struct {
	addresses map[netip.AddrPort]bool
	hosts     map[netip.Addr]bool
}

// ParseSubset reads entries "ip:port" and "ip". An IPv6 address with a port has brackets. An entry
// may be a comma-separated list of such entries, as in a copied header. An invalid entry allows
// nothing.
func ParseSubset(entries []string) *Subset {
	s := &Subset{addresses: make(map[netip.AddrPort]bool), hosts: make(map[netip.Addr]bool)}
	for _, entry := range entries {
		for word := range strings.SplitSeq(entry, ",") {
			word = strings.TrimSpace(word)
			if a, err := netip.ParseAddrPort(word); err == nil {
				s.addresses[netip.AddrPortFrom(a.Addr().Unmap(), a.Port())] = true
			} else if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(word, "["), "]")); err == nil {
				s.hosts[a.Unmap()] = true
			}
		}
	}
	return s
}

// Hash returns a hash of the set; 0 for nil.
func (s *Subset) Hash() (sum uint64) {
	if s == nil {
		return 0
	}
	sum = 1
	for a := range s.addresses {
		sum += hash.Of(a.String())
	}
	for a := range s.hosts {
		sum += hash.Of(a.String())
	}
	return sum
}

// Has reports whether the subset allows an address, "ip:port".
func (s *Subset) Has(address string) bool {
	if s == nil {
		return true
	}
	a, err := netip.ParseAddrPort(address)
	return err == nil && (s.addresses[a] || s.hosts[a.Addr()])
}
