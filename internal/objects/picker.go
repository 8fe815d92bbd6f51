package objects

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/headgate/headgate/api/pool"
)

// Picker is the service that a gateway asks for a pool's endpoints: the pool's endpointPickerRef.
type Picker struct {
	Service string // name of a Service in the pool's namespace
	Port    int32  // 0 if the reference has none
	// Open means fail open: while the picker is unavailable, a Gateway's Envoys send requests to
	// any endpoint of the pool.
	Open bool
}

func pickerOf(ref *pool.EndpointPickerRef) Picker {
	if ref == nil {
		return Picker{}
	}
	p := Picker{Service: ref.Name, Open: ref.FailureMode == pool.FailOpen}
	if ref.Port != nil {
		p.Port = ref.Port.Number
	}
	return p
}

// PoolOf returns the pool whose endpointPickerRef matches a gateway's call, by its :authority and
// the port it reached (0 if unknown). It prefers a match of service, namespace and port, then of
// service and namespace, then of the port alone. If several pools match, it returns none.
func (w *World) PoolOf(authority string, port int32) (Name, bool) {
	service, namespace, stated := readAuthority(authority)
	if stated == 0 {
		stated = port
	}
	named := func(p *Pool) bool {
		return service != "" && p.Picker.Service == service && (namespace == "" || p.Name.Namespace == namespace)
	}
	for _, fits := range []func(*Pool) bool{
		func(p *Pool) bool { return named(p) && stated != 0 && p.Picker.Port == stated },
		func(p *Pool) bool { return named(p) && (p.Picker.Port == 0 || stated == 0) },
		func(p *Pool) bool { return port != 0 && p.Picker.Port == port },
	} {
		var found []*Pool
		for _, p := range w.Pools {
			if fits(p) {
				found = append(found, p)
			}
		}
		switch len(found) {
		case 0:
			continue
		case 1:
			return found[0].Name, true
		}
		return Name{}, false
	}
	return Name{}, false
}

// readAuthority parses "service.namespace.svc…:port" and Istio's form "outbound|port||host". An IP
// address is not a service.
func readAuthority(authority string) (service, namespace string, port int32) {
	host, number := authority, ""
	if parts := strings.Split(authority, "|"); len(parts) == 4 {
		host, number = parts[3], parts[1]
	} else if i := strings.LastIndexByte(authority, ':'); i >= 0 {
		host, number = authority[:i], authority[i+1:]
	}
	if n, err := strconv.ParseUint(number, 10, 16); err == nil {
		port = int32(n)
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || strings.Contains(host, ":") {
		return "", "", port
	}
	labels := strings.Split(host, ".")
	if len(labels) == 2 || len(labels) > 2 && labels[2] == "svc" {
		namespace = labels[1]
	}
	return labels[0], namespace, port
}
