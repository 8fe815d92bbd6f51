package objects

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
)

// EndpointsPool is the pool of the endpoints given on the command line (extproc --endpoints).
var EndpointsPool = Name{Namespace: "default", Name: "endpoints"}

// endpointsLabel joins the two objects that [Endpoints] creates.
const endpointsLabel = "headgate.dev/endpoints"

// Endpoints returns the Set for a plain list of addresses: [EndpointsPool] and an EndpointList that
// it selects. For no addresses the Set is empty. The addresses must be valid ([ParseAddress]).
func Endpoints(addresses []string) Set {
	if len(addresses) == 0 {
		return Set{}
	}
	meta := metav1.ObjectMeta{
		Namespace: EndpointsPool.Namespace, Name: EndpointsPool.Name,
		Labels: map[string]string{endpointsLabel: "true"},
	}
	p := pool.InferencePool{ObjectMeta: meta}
	p.Spec.Selector.MatchLabels = meta.Labels
	list := v1alpha1.EndpointList{ObjectMeta: meta, Spec: v1alpha1.EndpointListSpec{Addresses: addresses}}
	const at = "flag --endpoints"
	return Set{
		Pools: []pool.InferencePool{p}, Lists: []List{{list, true}},
		At: map[Object]string{{pool.Kind, EndpointsPool}: at, {v1alpha1.EndpointListKind, EndpointsPool}: at},
	}
}

// Address is a host and a port, as in an EndpointList.
type Address struct {
	Name string     // DNS name; empty if the host is an IP address
	IP   netip.Addr // invalid if the host is a name
	Port uint16
}

var errAddress = errors.New("want host:port, such as 10.0.0.7:8000, [fd00::7]:8000 or engine-1.internal:8000")

// errNoEngine is the error for addresses that [CheckIP] refuses.
var errNoEngine = errors.New("an engine's address must not be link-local, multicast, broadcast or unspecified")

// CheckIP refuses IP addresses that no engine has. At the link-local address 169.254.169.254 clouds
// hand out a machine's credentials. An IPv4 address may be written as an IPv6 one.
func CheckIP(ip netip.Addr) error {
	if !ip.IsGlobalUnicast() && !ip.IsLoopback() { // IsGlobalUnicast and IsLoopback handle IPv4-mapped IPv6
		return errNoEngine
	}
	return nil
}

// ParseAddress parses host:port. An IP address must pass [CheckIP]; the caller must check what a
// name resolves to.
func ParseAddress(text string) (Address, error) {
	if strings.Contains(text, "/") {
		return Address{}, errors.New("want host:port alone, without scheme and path")
	}
	if at, err := netip.ParseAddrPort(text); err == nil {
		if at.Port() == 0 || at.Addr().Zone() != "" {
			return Address{}, errAddress
		}
		if err := CheckIP(at.Addr()); err != nil {
			return Address{}, err
		}
		return Address{IP: at.Addr().Unmap(), Port: at.Port()}, nil
	}
	host, port, ok := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || number == 0 || !isHost(host) {
		return Address{}, errAddress
	}
	return Address{Name: strings.ToLower(host), Port: uint16(number)}, nil
}

// isHost reports whether a name can be resolved. It may contain underscores, as container names do.
// A name whose last part is a number is a malformed IP address.
func isHost(name string) bool {
	name = strings.TrimSuffix(name, ".")
	if len(name) > 253 {
		return false
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || strings.Trim(label, "-") != label || strings.ContainsFunc(label, notInHost) {
			return false
		}
	}
	return strings.ContainsFunc(labels[len(labels)-1], func(r rune) bool { return r < '0' || r > '9' })
}

func notInHost(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// at returns the ip:port of an address: one, or one for each IP address of its name.
func (a Address) at(hosts map[string][]netip.Addr) []netip.AddrPort {
	ips := hosts[a.Name]
	if a.Name == "" {
		ips = []netip.Addr{a.IP}
	}
	all := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		all[i] = netip.AddrPortFrom(ip, a.Port)
	}
	return all
}

// Names returns the DNS names in all EndpointLists, sorted and without duplicates.
func (s Set) Names() []string {
	var names []string
	for _, list := range s.Lists {
		for _, text := range list.Spec.Addresses {
			if a, err := ParseAddress(text); err == nil && a.Name != "" {
				names = append(names, a.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
