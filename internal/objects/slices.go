package objects

import "net/netip"

// EndpointSliceKind is the kind of Kubernetes' lists of a Service's endpoints.
const EndpointSliceKind = "EndpointSlice"

// Address types of a [Slice].
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
	FQDN = "FQDN"
)

// Slice is the part of a Kubernetes EndpointSlice that Headgate needs: some endpoints of a Service.
type Slice struct {
	Name Name
	// Service is the Service of the endpoints; zero if the slice names none.
	Service Name
	// Type is the type of all its addresses: [IPv4], [IPv6] or [FQDN].
	Type      string
	Endpoints []SliceEndpoint
	// Ports are the ports of each of its endpoints.
	Ports []SlicePort
}

// SliceEndpoint is one address of a Slice with its conditions.
type SliceEndpoint struct {
	// Address is the zero Addr in a slice of [FQDN].
	Address netip.Addr
	// Ready means that it may get new requests. Serving means that it could if it were not
	// Terminating.
	Ready, Serving, Terminating bool
}

// SlicePort is a port of a Slice.
type SlicePort struct {
	// Name is the name of the Service's port; empty if the port has no name.
	Name   string
	Number int32
	// Protocol is TCP, UDP or SCTP.
	Protocol string
}
