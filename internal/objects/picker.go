package objects

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/headgate/headgate/api/pool"
)

// Picker is the service that a gateway is to ask for a pool's endpoints: the pool's endpointPickerRef.
type Picker struct {
	Service string // in the pool's namespace
	Port    int32  // 0 if the reference has none
	// Open says that Envoys of Gateways send requests to any endpoint of the pool while it does not answer.
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

// PoolOf returns the pool that a gateway means that asked for authority (the :authority of its gRPC call) and reached
// the port (0 if it is not known). It is the one pool whose endpointPickerRef fits: the service and namespace of the
// authority with its port, then the service and namespace, then the port alone. Where several fit, none is meant.
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

// readAuthority takes apart "service.namespace.svc…:port" and Istio's name for the same, "outbound|port||host". An
// address is no service.
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
