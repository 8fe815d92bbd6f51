package objects

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
)

// Engine is the engine behind one address, whichever pools list the address. Its kind, and how it
// is called, follow from the pools of one namespace, the owner. Pools of other namespaces that list
// the address change nothing.
//
// A pod's address, which the cluster assigns, takes precedence over that of an EndpointList, which
// may name any address. Then a ready pod precedes one that may be gone, then the older pool, then
// the first by name. The management address of a model runtime has its owner by the same rule.
type Engine struct {
	Endpoint // where the owner's pools differ, the first value set
	// Token refers to the owner's bearer token ([Secret.Ref]), empty if the owner's pools name
	// none.
	Token string
	// TLS is from the settings of the owner's pools, zero if they have none.
	TLS v1alpha1.EngineTLS
	// H2C says that the engine speaks HTTP/2 without TLS.
	H2C bool
	// Pools are the pools whose models it may load, the owner's first. An engine with a token loads
	// only models of its owner's pools: listing its address in another namespace must not grant
	// what the token does.
	Pools []Name
	// MaxAdapters is how many adapters may be registered at once, from the owner's settings; 0 if
	// they do not say.
	MaxAdapters int
	// HostAdapters is how many adapters fit into host memory, from the owner's settings; 0 if they
	// do not say.
	HostAdapters int
	// Room is how many models it may have, from the owner's settings, if it has a model repository.
	Room Room
}

// Room is how many models fit into an engine that does not report it. Zero values are not set.
type Room struct {
	Bytes        int64 // for all models together
	DefaultBytes int64 // size of a model of unknown size
	Models       int   // most models at once
}

// claim is an endpoint of a pool that lists an address.
type claim struct {
	*Pool
	*Endpoint
}

// compare orders the claims to an address: it belongs to the first.
func (c claim) compare(d claim) int {
	return cmp.Or(c.standing()-d.standing(), c.Created.Compare(d.Created), c.Name.Compare(d.Name))
}

func (c claim) standing() int {
	switch {
	case c.Listed:
		return 2
	case c.Ready:
		return 0
	}
	return 1
}

func (c claim) namespace() string { return c.Name.Namespace }

// claims returns the claims to all addresses, sorted by address; the owner's claim comes first.
func (w *World) claims() []claim {
	n := 0
	for _, p := range w.Pools {
		n += len(p.Endpoints)
	}
	all := make([]claim, 0, n)
	for _, p := range w.Pools {
		for i := range p.Endpoints {
			all = append(all, claim{p, &p.Endpoints[i]})
		}
	}
	slices.SortFunc(all, func(a, b claim) int {
		if c := strings.Compare(a.Address, b.Address); c != 0 {
			return c
		}
		return a.compare(b)
	})
	return all
}

// byAddress yields the claims to each address.
func byAddress(claims []claim) iter.Seq[[]claim] {
	return func(yield func([]claim) bool) {
		for len(claims) > 0 {
			n := 1
			for n < len(claims) && claims[n].Address == claims[0].Address {
				n++
			}
			if !yield(claims[:n]) {
				return
			}
			claims = claims[n:]
		}
	}
}

// noteShared records a problem for each address that pools of several namespaces list.
func (w *World) noteShared(claims []claim) {
	for of := range byAddress(claims) {
		owner := of[0]
		for _, c := range of[1:] {
			if c.namespace() == owner.namespace() {
				w.problem("endpoint %s belongs to InferencePool %s and to InferencePool %s: each pool counts all of its load",
					c.Address, owner.Name, c.Name)
			} else {
				w.problem("endpoint %s of InferencePool %s belongs to InferencePool %s, whose settings configure its connection: each pool counts all of its load",
					c.Address, c.Name,
					owner.Name)
			}
		}
	}
}

// Owns reports whether an address belongs to a namespace: see [Engine].
func (w *World) Owns(namespace, address string) bool {
	i, known := slices.BinarySearchFunc(w.Engines, address, func(e Engine, at string) int { return strings.Compare(e.Address, at) })
	return known && len(w.Engines[i].Pools) > 0 && w.Engines[i].Pools[0].Namespace == namespace
}

// KindAt returns the kind of the engine at an endpoint, empty if it is not stated.
func (w *World) KindAt(address string) engine.Kind {
	e, known := w.engineAt(address)
	if !known {
		return ""
	}
	return e.Kind
}

// HasEndpoint reports whether there is an endpoint with an address.
func (w *World) HasEndpoint(address string) bool {
	_, known := w.engineAt(address)
	return known
}

// engineAt returns the engine at an endpoint, and whether there is one.
func (w *World) engineAt(address string) (*Engine, bool) {
	i, known := slices.BinarySearchFunc(w.Engines, address, func(e Engine, at string) int { return strings.Compare(e.Address, at) })
	if !known {
		return nil, false
	}
	return &w.Engines[i], true
}

// SpeaksGRPC reports whether an endpoint is known to serve gRPC: by its kind, by a configured gRPC
// port, or by its pool's HTTP/2.
func (w *World) SpeaksGRPC(address string) bool {
	e, known := w.engineAt(address)
	return known && (e.H2C || e.Ports.GRPC != 0 || e.Kind == engine.ModelRuntime || e.Kind.Repository())
}

// noteCallsOnly marks pools with a model runtime that is only known to serve gRPC.
func (w *World) noteCallsOnly() {
	for _, p := range w.Pools {
		p.CallsOnly = slices.ContainsFunc(p.Endpoints, func(of Endpoint) bool {
			e, known := w.engineAt(of.Address)
			return known && e.Kind == engine.ModelRuntime && e.Ports.HTTP == 0
		})
	}
}

// addEngines builds an engine for each address from its claims.
func (w *World) addEngines(claims []claim) {
	managers := managers(claims)
	w.Engines = make([]Engine, 0, len(claims))
	for of := range byAddress(claims) {
		owner := of[0]
		if m, managed := managers[owner.Address]; managed {
			owner = m
		}
		e := Engine{Endpoint: Endpoint{Address: of[0].Address}}
		for _, c := range of {
			if c.namespace() == owner.namespace() {
				e.add(c)
			}
		}
		if m, managed := managers[e.Management]; managed && m.namespace() != owner.namespace() {
			w.problem("control does not manage endpoint %s of InferencePool %s: its management address %s belongs to InferencePool %s",
				e.Address, owner.Name, e.Management, m.Name)
			e.Management = ""
		}
		for _, c := range of {
			switch {
			case c.namespace() == owner.namespace():
			case e.Token == "":
				e.Pools = append(e.Pools, c.Name)
			default:
				w.problem("endpoint %s: control loads no model of InferencePool %s there, because the token belongs to InferencePool %s", e.Address,
					c.Name, owner.Name)
			}
		}
		w.Engines = append(w.Engines, e)
	}
}

// managers returns the owners of the management addresses.
func managers(claims []claim) map[string]claim {
	owners := make(map[string]claim)
	for _, c := range claims {
		if c.Management == "" || strings.HasPrefix(c.Management, unixScheme) {
			continue
		}
		owner, known := owners[c.Management]
		if !known {
			owner = c
			// The same address may also be an engine's.
			if i, serves := slices.BinarySearchFunc(claims, c.Management, func(c claim, at string) int {
				return strings.Compare(c.Address, at)
			}); serves {
				owner = claims[i]
			}
		}
		if c.compare(owner) < 0 {
			owner = c
		}
		owners[c.Management] = owner
	}
	return owners
}

// add merges the values of another pool of the owner; values already set stay.
func (e *Engine) add(c claim) {
	o := c.Endpoint
	if len(e.Pools) == 0 {
		e.Endpoint = *o
	}
	e.Pools = append(e.Pools, c.Name)
	e.Host = cmp.Or(e.Host, o.Host)
	e.Incarnation = cmp.Or(e.Incarnation, o.Incarnation)
	e.Ports = e.Ports.or(o.Ports)
	if s, named := c.secret(); named && e.Token == "" {
		e.Token = s.Ref()
	}
	if s := c.Settings; s != nil && s.EngineTLS != nil && e.TLS == (v1alpha1.EngineTLS{}) {
		e.TLS = *s.EngineTLS
	}
	e.H2C = e.H2C || c.H2C
	if e.Kind == "" || e.Kind == o.Kind {
		e.Kind, e.Management = o.Kind, cmp.Or(e.Management, o.Management)
	}
	if s := c.Settings; s != nil && s.Placement != nil {
		e.MaxAdapters = cmp.Or(e.MaxAdapters, number(s.Placement.MaxAdapters))
		e.HostAdapters = cmp.Or(e.HostAdapters, number(s.Placement.HostAdapters))
		e.Room.Bytes = cmp.Or(e.Room.Bytes, inBytes(s.Placement.Capacity))
		e.Room.DefaultBytes = cmp.Or(e.Room.DefaultBytes, inBytes(s.Placement.DefaultSize))
		e.Room.Models = cmp.Or(e.Room.Models, number(s.Placement.MaxModels))
	}
}

// number returns *n, or 0 for nil.
func number(n *int32) int {
	if n == nil {
		return 0
	}
	return int(*n)
}

// inBytes returns a quantity in whole bytes, or 0 for nil.
func inBytes(q *resource.Quantity) int64 {
	if q == nil {
		return 0
	}
	return q.Value()
}
