package objects

import "net/netip"

// EndpointSliceKind is the kind of the lists of a Service's endpoints that Kubernetes makes.
const EndpointSliceKind = "EndpointSlice"

// Address types of a [Slice].
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
	FQDN = "FQDN"
)

// Slice is what Headgate needs of a Kubernetes EndpointSlice: some of the endpoints of a Service.
type Slice struct {
	Name Name
	// Service is whose endpoints these are; the zero Name where the slice says none.
	Service Name
	// Type is that of all its addresses: [IPv4], [IPv6] or [FQDN].
	Type      string
	Endpoints []SliceEndpoint
	// Ports are those on which each of its endpoints serves.
	Ports []SlicePort
}

// SliceEndpoint is one address of a Slice, and what its manager says of it.
type SliceEndpoint struct {
	// Address is the zero Addr in a slice of [FQDN].
	Address netip.Addr
	// Ready says that it may get new requests. Serving says that it could, were it not for Terminating.
	Ready, Serving, Terminating bool
}

// SlicePort is a port of a Slice.
type SlicePort struct {
	// Name is that of the Service's port; empty where that has none.
	Name   string
	Number int32
	// Protocol is TCP, UDP or SCTP.
	Protocol string
}
