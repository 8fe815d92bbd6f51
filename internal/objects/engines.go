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

// Engine is what is behind one address, as it is looked at and driven, whichever pools have the address. What it is and how it
// is reached is what the pools of one namespace say, its owner's: who lists the address in another namespace changes nothing.
//
// An address is that of a pod, which has it from its cluster, before that of an EndpointList, which may name any; of a pod
// that is ready before one that may have gone; then of the older pool, then of the first by name. The address at which a
// model runtime is managed has its owner by the same rule.
type Engine struct {
	Endpoint // where the pools of its owner differ, as the first of them that says something
	// Token refers to the bearer token of its owner ([Secret.Ref]), empty where the owner's pools name none.
	Token string
	// TLS is how it is known by the settings of its owner's pools; zero if they do not say.
	TLS v1alpha1.EngineTLS
	// H2C says that it speaks HTTP/2 without TLS.
	H2C bool
	// Pools are those whose models it may be told to load, the owner's first. One with a token is told to load those of its
	// owner's pools alone: whoever lists its address in another namespace may not do what the token lets its owner do.
	Pools []Name
	// MaxAdapters is how many adapters may be registered at once by the settings of its owner's pools; 0 if they do not say.
	MaxAdapters int
	// HostAdapters is how many host memory holds by those settings; 0 if they do not say.
	HostAdapters int
	// Room is how many models it may hold by those settings, where it has a model repository.
	Room Room
}

// Room is how many models an engine may hold that does not say it. What settings do not say is 0.
type Room struct {
	Bytes        int64 // that all models may take together
	DefaultBytes int64 // that a model takes of which nothing is known
	Models       int   // at once
}

// claim is an endpoint of a pool, as one of those that say what is behind an address.
type claim struct {
	*Pool
	*Endpoint
}

// compare orders those who claim an address: it belongs to the first.
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

// claims are those to all addresses, in order of address, those to one address from its owner's on.
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

// byAddress yields the claims to one address after the other.
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

// noteShared tells of each address that several pools have.
func (w *World) noteShared(claims []claim) {
	for of := range byAddress(claims) {
		owner := of[0]
		for _, c := range of[1:] {
			if c.namespace() == owner.namespace() {
				w.problem("endpoint %s belongs to InferencePool %s and to InferencePool %s: each of them counts the whole of its load", c.Address, owner.Name, c.Name)
			} else {
				w.problem("endpoint %s of InferencePool %s belongs to InferencePool %s, which says how it is reached: each of them counts the whole of its load", c.Address, c.Name, owner.Name)
			}
		}
	}
}

// Owns says whether an address belongs to a namespace, as [Engine] has it.
func (w *World) Owns(namespace, address string) bool {
	i, known := slices.BinarySearchFunc(w.Engines, address, func(e Engine, at string) int { return strings.Compare(e.Address, at) })
	return known && len(w.Engines[i].Pools) > 0 && w.Engines[i].Pools[0].Namespace == namespace
}

// KindAt is the kind of the engine at an endpoint, if somebody says.
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

// engineAt is the engine of an endpoint, and whether there is one.
func (w *World) engineAt(address string) (*Engine, bool) {
	i, known := slices.BinarySearchFunc(w.Engines, address, func(e Engine, at string) int { return strings.Compare(e.Address, at) })
	if !known {
		return nil, false
	}
	return &w.Engines[i], true
}

// SpeaksGRPC says whether an endpoint is known to take gRPC calls: by its kind, by a port that people name for them, or by its pool's HTTP/2.
func (w *World) SpeaksGRPC(address string) bool {
	e, known := w.engineAt(address)
	return known && (e.H2C || e.Ports.GRPC != 0 || e.Kind == engine.ModelRuntime || e.Kind.Repository())
}

// noteCallsOnly notes which pools have a model runtime, whose interface is gRPC, of which nobody says that it takes anything else.
func (w *World) noteCallsOnly() {
	for _, p := range w.Pools {
		p.CallsOnly = slices.ContainsFunc(p.Endpoints, func(of Endpoint) bool {
			e, known := w.engineAt(of.Address)
			return known && e.Kind == engine.ModelRuntime && e.Ports.HTTP == 0
		})
	}
}

// addEngines makes one engine of those that claim its address.
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
			w.problem("endpoint %s of InferencePool %s is to be managed at %s, which belongs to InferencePool %s: it is not managed", e.Address, owner.Name, e.Management, m.Name)
			e.Management = ""
		}
		for _, c := range of {
			switch {
			case c.namespace() == owner.namespace():
			case e.Token == "":
				e.Pools = append(e.Pools, c.Name)
			default:
				w.problem("endpoint %s: control loads no model of InferencePool %s there: the token is that of InferencePool %s", e.Address, c.Name, owner.Name)
			}
		}
		w.Engines = append(w.Engines, e)
	}
}

// managers are the owners of the addresses at which engines are managed.
func managers(claims []claim) map[string]claim {
	owners := make(map[string]claim)
	for _, c := range claims {
		if c.Management == "" || strings.HasPrefix(c.Management, unixScheme) {
			continue
		}
		owner, known := owners[c.Management]
		if !known {
			owner = c
			// Others may have the same address as that of an engine.
			if i, serves := slices.BinarySearchFunc(claims, c.Management, func(c claim, at string) int { return strings.Compare(c.Address, at) }); serves {
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

// add takes what one of the owner's pools says of an engine, where those before it say nothing.
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

// number is one that people may have left out; 0 then.
func number(n *int32) int {
	if n == nil {
		return 0
	}
	return int(*n)
}

// inBytes is a quantity that people may have left out, 0 then, in whole bytes.
func inBytes(q *resource.Quantity) int64 {
	if q == nil {
		return 0
	}
	return q.Value()
}
