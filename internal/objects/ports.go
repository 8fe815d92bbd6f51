package objects

import (
	"cmp"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
)

// Protocol is the protocol of a request. It selects the port of the endpoint.
type Protocol uint8

const (
	HTTP Protocol = iota // any request that is not gRPC
	GRPC
)

// Ports are an endpoint's further ports on the same host; 0 if not configured.
type Ports struct{ GRPC, HTTP, Metrics uint16 }

// or returns p with its zero ports taken from q.
func (p Ports) or(q Ports) Ports {
	return Ports{cmp.Or(p.GRPC, q.GRPC), cmp.Or(p.HTTP, q.HTTP), cmp.Or(p.Metrics, q.Metrics)}
}

// portsOf converts ports that passed [checkPorts].
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

// addPorts sets the ports from the pools' settings at endpoints without ports of their own.
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

// notePorts indexes the ports that differ from endpoints' addresses. If two endpoints use the same
// address and port, the first one keeps it, since their requests could not be told apart.
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
				w.problem("endpoint %s receives requests at %s, which is another endpoint: their outcomes count for that one",
					e.Address, at)
				continue
			}
			if first, taken := w.owners[at]; taken && first != e.Address {
				w.problem("endpoints %s and %s both receive requests at %s: pods with several target ports cannot have ports of their own", first,
					e.Address, at)
				continue
			}
			w.owners[at] = e.Address
		}
	}
}

// HTTP returns the "ip:port" that serves HTTP.
func (e *Engine) HTTP() string { return AtPort(e.Address, e.Ports.HTTP) }

// GRPC returns the "ip:port" that serves gRPC.
func (e *Engine) GRPC() string { return AtPort(e.Address, e.Ports.GRPC) }

// HasPorts reports whether any endpoint has a port besides that of its address.
func (w *World) HasPorts() bool { return len(w.ports) > 0 }

// Reached returns the "ip:port" at which an endpoint serves a protocol: its address, unless another
// port is configured.
func (w *World) Reached(endpoint string, p Protocol) string {
	ports := w.ports[endpoint]
	if p == GRPC {
		return AtPort(endpoint, ports.GRPC)
	}
	return AtPort(endpoint, ports.HTTP)
}

// EndpointAt is the inverse of [World.Reached]: it returns the endpoint that serves at an address.
// An address of no endpoint is returned as it is.
func (w *World) EndpointAt(address string) string {
	if e, ok := w.owners[address]; ok {
		return e
	}
	return address
}

// AtPort returns another port of an endpoint as "ip:port"; port 0 returns endpoint.
func AtPort(endpoint string, port uint16) string {
	if port == 0 {
		return endpoint
	}
	at, err := netip.ParseAddrPort(endpoint)
	if err != nil {
		return endpoint // not an address
	}
	return netip.AddrPortFrom(at.Addr(), port).String()
}
