package objects

import (
	"cmp"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
)

// Protocol is what a request is spoken in, which decides the port of its endpoint that it goes to.
type Protocol uint8

const (
	HTTP Protocol = iota // any request that is no gRPC call
	GRPC
)

// Ports are where else an endpoint listens than at its address, at the same host; 0 where nobody names one.
type Ports struct{ GRPC, HTTP, Metrics uint16 }

// or is p, and of what it leaves out q.
func (p Ports) or(q Ports) Ports {
	return Ports{cmp.Or(p.GRPC, q.GRPC), cmp.Or(p.HTTP, q.HTTP), cmp.Or(p.Metrics, q.Metrics)}
}

// portsOf reads what [checkPorts] let through.
func portsOf(p *v1alpha1.Ports) Ports {
	if p == nil {
		return Ports{}
	}
	return Ports{uint16(number(p.GRPC)), uint16(number(p.HTTP)), uint16(number(p.Metrics))} //nolint:gosec // they are ports
}

func checkPorts(path *field.Path, p *v1alpha1.Ports) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	for _, of := range []struct {
		name string
		n    *int32
	}{{"grpc", p.GRPC}, {"http", p.HTTP}, {"metrics", p.Metrics}} {
		if of.n != nil && (*of.n < 1 || *of.n > 65535) {
			errs = append(errs, field.Invalid(path.Child(of.name), *of.n, "a port is 1 to 65535"))
		}
	}
	return errs
}

// addPorts gives endpoints the ports that the settings of their pools name, where they have none of their own.
func (w *World) addPorts() {
	for _, p := range w.Pools {
		if p.Settings == nil || p.Settings.Ports == nil {
			continue
		}
		for i := range p.Endpoints {
			p.Endpoints[i].Ports = p.Endpoints[i].Ports.or(portsOf(p.Settings.Ports))
		}
	}
}

// notePorts notes where engines listen beside their addresses. Two of one address would be told apart by nobody: what becomes of
// requests there counts for the first.
func (w *World) notePorts() {
	for i := range w.Engines {
		e := &w.Engines[i]
		if e.Ports == (Ports{}) {
			continue
		}
		if w.ports == nil {
			w.ports, w.owners = make(map[string]Ports), make(map[string]string)
		}
		w.ports[e.Address] = e.Ports
		for _, p := range []Protocol{HTTP, GRPC} {
			at := w.Reached(e.Address, p)
			if at == e.Address {
				continue
			}
			if _, own := w.engineAt(at); own {
				w.problem("endpoint %s takes requests at %s, which is another endpoint: what becomes of them counts for that one", e.Address, at)
				continue
			}
			if first, taken := w.owners[at]; taken && first != e.Address {
				w.problem("endpoints %s and %s both take requests at %s: give pods with several target ports no ports of their own", first, e.Address, at)
				continue
			}
			w.owners[at] = e.Address
		}
	}
}

// HTTP is where the engine takes requests over HTTP, "ip:port".
func (e *Engine) HTTP() string { return AtPort(e.Address, e.Ports.HTTP) }

// GRPC is where it takes gRPC calls, "ip:port".
func (e *Engine) GRPC() string { return AtPort(e.Address, e.Ports.GRPC) }

// HasPorts says whether any endpoint listens elsewhere than at its address.
func (w *World) HasPorts() bool { return len(w.ports) > 0 }

// Reached is where an endpoint takes requests of a protocol, "ip:port": its address, if nobody names another port.
func (w *World) Reached(endpoint string, p Protocol) string {
	ports := w.ports[endpoint]
	if p == GRPC {
		return AtPort(endpoint, ports.GRPC)
	}
	return AtPort(endpoint, ports.HTTP)
}

// EndpointAt is the endpoint that takes requests at an address, as [World.Reached] has it. One that is none of an endpoint's is returned as
// it is.
func (w *World) EndpointAt(address string) string {
	if e, ok := w.owners[address]; ok {
		return e
	}
	return address
}

// AtPort is another port of an endpoint, "ip:port"; 0 is its own.
func AtPort(endpoint string, port uint16) string {
	if port == 0 {
		return endpoint
	}
	at, err := netip.ParseAddrPort(endpoint)
	if err != nil {
		return endpoint // no endpoint has such an address
	}
	return netip.AddrPortFrom(at.Addr(), port).String()
}
