// Package plan decides what the Envoys of each Gateway do: on which ports they listen, and where
// each request goes by its host, path, method and headers. It is pure: objects in; plans and
// verdicts on the objects out. It uses Gateway API's terms and none of Envoy's, so that people can
// read a plan.
//
// If a rule is invalid by the specification, requests that match it get 500, and gRPC calls
// UNAVAILABLE: they must not fall through to another rule.
package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Plans are the plans of all our Gateways, and verdicts on routes. They are immutable.
type Plans struct {
	// Attachments are their input.
	Attachments *attach.Attachments
	// Gateways has the plans in order of name.
	Gateways []*Plan
	// Routes has a verdict for each route that refers to one of our Gateways or its ListenerSets.
	// It adds to the verdicts of [attach.Attachments] on its parents.
	Routes map[objects.Object]RouteVerdict
	// Policies has a verdict for each BackendTLSPolicy of a Service that a plan leads to.
	Policies map[objects.Name]PolicyVerdict
	// Presenting has the Gateways whose Envoys lack the client certificate that they should use
	// towards Services, and why.
	Presenting map[objects.Name]attach.Verdict
	// Refused has the listeners that are not accepted for a reason other than attachment.
	Refused map[*attach.Listener]attach.Verdict
	// Listeners has the first unresolved reference of each listener, if any.
	Listeners map[*attach.Listener]attach.Verdict
	// Pools has a verdict for each InferencePool of a plan.
	Pools map[objects.Name]PoolVerdict

	made made
}

// Certificate is the content of a TLS Secret.
type Certificate struct {
	// Chain and Key are in PEM.
	Chain []byte
	Key   objects.PrivateKey
	// Fault is why the Secret cannot be used, for example that it does not exist; empty if it can.
	// With a Fault, Chain and Key are the last valid ones, which listeners still use; empty if they
	// may not.
	Fault string
	// Warning is why clients may reject what Envoys serve, for example that it has expired; empty
	// for none.
	Warning string
}

// serves reports whether a listener may serve with it.
func (c Certificate) serves() bool { return c.Fault == "" || len(c.Chain) > 0 }

// RouteVerdict has the errors of a route at all its parents.
type RouteVerdict struct {
	// Refused is why none of its rules is in force; zero if one is.
	Refused attach.Verdict
	// Partly is why some of its rules are not in force, as a message; empty if all or none are.
	Partly string
	// Envoys is why a route is not in force at some Gateways: their Envoys reject it.
	Envoys map[objects.Name]attach.Verdict
	// Refs is the first unresolved reference; zero if there is none.
	Refs attach.Verdict
}

// Plan is what the Envoys of one Gateway do.
type Plan struct {
	Gateway objects.Name
	// IdleTimeout is the idle timeout of answers; 0: that of envoy.yaml.
	IdleTimeout time.Duration
	// Copies reports that extproc gets copies of requests and answers.
	Copies bool
	// Ports in order of number.
	Ports []Port
	// Clusters are those that the rules name, in order of name.
	Clusters []Cluster
	// Pools are the InferencePools that the routes name, in order, used or not.
	Pools []objects.Name
	// Certificates has the certificates of the listeners, by Secret.
	Certificates map[objects.Name]Certificate
	// Policies are the BackendTLSPolicies of its Services, in order of name.
	Policies []objects.Name
	// Contents has the content of each route's rules before any route is left out. It changes only
	// if a rule changes or moves.
	Contents map[objects.Object]string
	// Refused lists what its Envoys reject besides routes, as messages.
	Refused []string
}

// Port is a port on which Envoy listens.
type Port struct {
	Number int32
	// Listeners share the port, in order of precedence. They have the same protocol.
	Listeners []Listener
}

// Listener is a listener with its hosts.
type Listener struct {
	*attach.Listener
	// Certificates are the Secrets of an HTTPS listener in its order, at least one.
	Certificates []objects.Name
	// Clients says who may call; nil if no client certificate is requested. All listeners of a port
	// have the same.
	Clients *Clients
	// Hosts in order of domain. Of all hosts of the port, the most specific match handles a
	// request; without a match it gets 404.
	Hosts []Host
}

// Host has the rules for some hostnames.
type Host struct {
	// Domain is a pattern of [attach.Intersect].
	Domain string
	// Rules in order of precedence: the first match handles a request; without a match it gets 404.
	Rules []Rule
}

// Rule is one match of a route's rule, and its action.
type Rule struct {
	// Of is the route, Index the number of the rule in it, and Name the rule's name, which may be
	// empty.
	Of    objects.Object
	Index int
	Name  string
	Match Match
	// Exactly one of the next three is set. Status is an answer without a body.
	Forward  *Forward
	Redirect *Redirect
	Status   int32

	// Request and Response are changes of headers.
	Request, Response Headers
	// CORS is nil if other origins may not call.
	CORS *gatewayv1.HTTPCORSFilter
}

// Forward sends requests to clusters.
type Forward struct {
	// Models reports that extproc finds the pool by the request's model: there are no backends.
	Models bool
	// Calls reports, with Models, that requests are gRPC calls, which go to the pool's gRPC port.
	Calls bool
	// Open is, with Models, the cluster for requests without an answer of extproc; empty: they get
	// 503.
	Open string
	// Backends have weights above 0.
	Backends []Backend
	// Host replaces the request's host; empty keeps it.
	Host string
	Path *PathChange
	// Mirrors get copies.
	Mirrors []Mirror
	// Timeout is for the whole request, TryTimeout for each attempt; 0 for none.
	Timeout, TryTimeout time.Duration
	// Retry is nil for no retries.
	Retry *Retry
}

// Retry says which requests to Services are retried, in addition to broken connections and timeouts
// of single attempts.
type Retry struct {
	// Attempts is the number of retries, at least 1.
	Attempts int32
	// Codes are the statuses that are retried.
	Codes []int32
	// Backoff is the approximate time between attempts; 0: Envoy's default.
	Backoff time.Duration
}

// Backend is a cluster with its share of a rule's requests.
type Backend struct {
	// Cluster is the name of a cluster of the plan; empty for an unresolved reference, whose share
	// gets [Failed].
	Cluster string
	// Picker is the cluster of the pool's endpoint picker: [wire.ExtprocCluster], or one of the
	// plan's; empty for none.
	Picker string
	// Open reports that any endpoint of the pool serves requests without a pick.
	Open              bool
	Weight            int32
	Request, Response Headers
}

// Mirror is the target of copies, and the share of requests: Share of Of.
type Mirror struct {
	Cluster   string
	Share, Of int32
}

// Redirect is a redirect. Empty fields keep the request's value.
type Redirect struct {
	Code   int32
	Scheme string
	Host   string
	// Port is 0 for the scheme's default. DefaultPort is that default, which Envoy must remove if
	// it copies the request's host with a port.
	Port, DefaultPort int32
	Path              *PathChange
}

// PathChange replaces the whole path, or the rule's prefix of it.
type PathChange struct {
	Whole bool
	With  string
}

// Headers are changes of headers, in the order remove, set, add.
type Headers struct {
	Set, Add []gatewayv1.HTTPHeader
	Remove   []string
}

// Cluster is a destination of requests, which is a port of a Service or a pool, or an endpoint
// picker, which is a port of a Service.
type Cluster struct {
	// Name is unique in the plan.
	Name string
	// Pool reports that Object is an InferencePool; otherwise it is a Service, and Port one of its
	// ports.
	Pool   bool
	Object objects.Name
	Port   int32
	// Picker reports that it is an endpoint picker. It speaks gRPC, with TLS unless H2C is set.
	Picker bool
	// H2C reports HTTP/2 without TLS.
	H2C bool
	// Secure is how TLS is used to a Service; nil for plain text.
	Secure *ServiceTLS
	// Calls reports that it is the gRPC port of a pool's endpoints, with HTTP/2.
	Calls bool
	// Open reports that any endpoint of a pool serves requests without a pick; otherwise they get
	// 503.
	Open bool
	// TLS is how a pool's endpoints are verified; zero for plain text.
	TLS v1alpha1.EngineTLS
}

// Of returns the plans of all Gateways.
func Of(a *attach.Attachments, n *objects.Network, known Known) *Plans {
	return After(nil, a, n, known)
}

// After is a faster Of: if only routes have changed since the last plans, listeners without these
// keep the same Hosts slices. Last may be nil.
func After(last *Plans, a *attach.Attachments, n *objects.Network, known Known) *Plans {
	b := newBuilder(n)
	b.certificates, b.authorities = known.Certificates, known.Authorities
	if last != nil && last.made.stillServes(n, known) {
		b.last, b.changed = last.made.served, changed(last.made.network, n)
		b.beside = last.made.beside
	} else {
		b.beside = besideOf(n, known)
	}
	plans := &Plans{
		Attachments: a, Routes: b.became, Listeners: b.listeners, Refused: b.refused, Presenting: b.showing,
		Pools: make(map[objects.Name]PoolVerdict), Policies: make(map[objects.Name]PolicyVerdict),
		made: made{n, known, b.beside, b.served},
	}
	for i, g := range a.Gateways {
		p := b.gateway(i, g)
		plans.Gateways = append(plans.Gateways, p)
		for _, name := range p.Pools {
			plans.Pools[name] = b.pools[name].PoolVerdict
		}
	}
	for _, is := range b.served {
		for name, p := range is.applied {
			plans.Policies[name] = p.PolicyVerdict
		}
	}
	b.unserved(a)
	return plans
}

// unserved records the errors of routes that no listener serves.
func (b *builder) unserved(a *attach.Attachments) {
	is := newPart() // a part of no listener
	b.part = is
	for of := range a.Parents {
		if _, known := b.became[of]; known {
			continue
		}
		switch of.Kind {
		case objects.HTTPRouteKind:
			b.httpRules(b.http[of.Name], of, new(attach.Listener))
		case objects.GRPCRouteKind:
			b.grpcRules(b.grpc[of.Name], of, new(attach.Listener))
		case v1alpha1.LLMRouteKind:
			b.addPools(b.llm[of.Name], of)
		}
	}
	maps.Copy(b.became, is.verdicts)
}

// builder has the state of one planning.
type builder struct {
	*objects.Network
	http map[objects.Name]*gatewayv1.HTTPRoute
	grpc map[objects.Name]*gatewayv1.GRPCRoute
	llm  map[objects.Name]*v1alpha1.LLMRoute
	beside
	became  map[objects.Object]RouteVerdict
	last    map[at]*part            // of the last plans; nil if none can be reused
	changed map[objects.Object]bool // routes since then
	served  map[at]*part

	certificates map[objects.Name]Certificate
	authorities  map[objects.Name]Certificate
	listeners    map[*attach.Listener]attach.Verdict
	refused      map[*attach.Listener]attach.Verdict
	showing      map[objects.Name]attach.Verdict
	shows        *Certificate // of the current Gateway; nil for none

	*part // the current part
}

func newBuilder(n *objects.Network) *builder {
	b := &builder{
		Network: n,
		http:    make(map[objects.Name]*gatewayv1.HTTPRoute, len(n.HTTPRoutes)), grpc: make(map[objects.Name]*gatewayv1.GRPCRoute),
		llm:    make(map[objects.Name]*v1alpha1.LLMRoute),
		became: make(map[objects.Object]RouteVerdict, len(n.HTTPRoutes)+len(n.GRPCRoutes)+len(n.Routes)), served: make(map[at]*part),
		listeners: make(map[*attach.Listener]attach.Verdict), refused: make(map[*attach.Listener]attach.Verdict),
		showing: make(map[objects.Name]attach.Verdict),
	}
	for i := range n.HTTPRoutes {
		b.http[objects.Name{Namespace: n.HTTPRoutes[i].Namespace, Name: n.HTTPRoutes[i].Name}] = &n.HTTPRoutes[i]
	}
	for i := range n.GRPCRoutes {
		b.grpc[objects.Name{Namespace: n.GRPCRoutes[i].Namespace, Name: n.GRPCRoutes[i].Name}] = &n.GRPCRoutes[i]
	}
	for i := range n.Routes {
		b.llm[objects.Name{Namespace: n.Routes[i].Namespace, Name: n.Routes[i].Name}] = &n.Routes[i]
	}
	return b
}

// beside has the destinations of routes. It is immutable.
type beside struct {
	services map[objects.Name]*objects.Service
	pools    map[objects.Name]*pooled
	policies map[servicePort][]*policy // in order of precedence
}

func besideOf(n *objects.Network, known Known) beside {
	is := beside{
		make(map[objects.Name]*objects.Service, len(n.Services)), make(map[objects.Name]*pooled, len(n.Pools)),
		policiesOf(n, known.Authorities),
	}
	for i := range n.Services {
		is.services[n.Services[i].Name] = &n.Services[i]
	}
	settings := objects.SettingsOf(n.Settings)
	for i := range n.Pools {
		name := objects.Name{Namespace: n.Pools[i].Namespace, Name: n.Pools[i].Name}
		is.pools[name] = poolOf(&n.Pools[i], is.services, settings[name])
	}
	return is
}

func (b *builder) gateway(number int, g *attach.Gateway) *Plan {
	b.show(g)
	p := &Plan{Gateway: g.Name, Certificates: make(map[objects.Name]Certificate)}
	if t := g.Settings.Timeouts; t != nil && t.Idle != nil {
		p.IdleTimeout = t.Idle.Duration
	}
	p.Copies = g.Settings.Payloads != nil
	ports := make(map[int32][]Listener)
	numbers := make(map[*attach.Listener]at)
	for i, l := range g.Listeners {
		numbers[l] = at{number, i}
		if l.Refused != (attach.Verdict{}) {
			continue
		}
		is := Listener{Listener: l}
		if l.Protocol == gatewayv1.HTTPSProtocolType {
			if is.Certificates = b.certify(l); len(is.Certificates) == 0 || !b.askClients(g, &is) {
				continue // never serve it without TLS, nor to clients that may not call
			}
			for _, name := range is.Certificates {
				p.Certificates[name] = b.certificates[name]
			}
		}
		ports[l.Port] = append(ports[l.Port], is)
	}
	all := newPart()
	all.verdicts = b.became // those of all Gateways
	for _, number := range slices.Sorted(maps.Keys(ports)) {
		port := Port{Number: number, Listeners: ports[number]}
		for i := range port.Listeners {
			l := port.Listeners[i].Listener
			is := b.listener(numbers[l], &port, l)
			port.Listeners[i].Hosts = is.hosts
			all.add(is)
		}
		p.Ports = append(p.Ports, port)
	}
	p.Clusters = slices.SortedFunc(maps.Values(all.clusters), func(x, y Cluster) int { return cmp.Compare(x.Name, y.Name) })
	p.Pools = slices.SortedFunc(maps.Keys(all.used), objects.Name.Compare)
	p.Policies = slices.SortedFunc(maps.Keys(all.applied), objects.Name.Compare)
	p.Contents = all.contents
	return p
}
