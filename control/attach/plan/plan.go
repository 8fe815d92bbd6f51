// Package plan decides what the Envoys of each Gateway do: on which ports they listen, and how they
// route a request based on its host, path, method and headers. Its input is objects, and its output
// is plans and verdicts on the objects. It does no I/O. It uses the terms of Gateway API and none
// of Envoy's, so that people can read a plan.
//
// If a rule is invalid according to Gateway API, HTTP requests that match it get status 500, and
// gRPC calls get UNAVAILABLE: they must not fall through to another rule.
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
	// Attachments are the input of the plans.
	Attachments *attach.Attachments
	// Gateways contains the plan of each Gateway, sorted by name.
	Gateways []*Plan
	// Routes contains a verdict for each route that refers to one of our Gateways or ListenerSets.
	// The verdicts on the route's parents are in Attachments.
	Routes map[objects.Object]RouteVerdict
	// Policies contains a verdict for each BackendTLSPolicy of a Service that a plan sends requests
	// to.
	Policies map[objects.Name]PolicyVerdict
	// Presenting contains, for each Gateway whose Envoys lack the client certificate that they
	// should present to Services, the reason.
	Presenting map[objects.Name]attach.Verdict
	// Refused contains the listeners that are rejected for another reason than their attachment.
	Refused map[*attach.Listener]attach.Verdict
	// Listeners contains, for each listener with an unresolved reference, the first of them.
	Listeners map[*attach.Listener]attach.Verdict
	// Pools contains a verdict for each InferencePool that a plan names.
	Pools map[objects.Name]PoolVerdict

	made made
}

// Valid reports whether a Gateway has a valid listener, of its own or of a ListenerSet.
func (p *Plans) Valid(g *attach.Gateway) bool {
	return slices.ContainsFunc(g.Listeners, func(l *attach.Listener) bool {
		return l.Refused == (attach.Verdict{}) && (p == nil || p.Refused[l] == (attach.Verdict{}))
	})
}

// Certificate is the content of a TLS Secret, or of a ConfigMap with authorities.
type Certificate struct {
	// Chain and Key are in PEM.
	Chain []byte
	Key   objects.PrivateKey
	// Fault is why the object cannot be used, for example because it does not exist; empty if it
	// can. If there is a Fault, Chain and Key are the last valid ones, which listeners still use.
	// They are empty if there are none, or if listeners must not use them.
	Fault string
	// Warning is why clients may reject the certificate, for example because it has expired; empty
	// if there is no reason.
	Warning string
}

// serves reports whether a listener may use the certificate.
func (c Certificate) serves() bool { return c.Fault == "" || len(c.Chain) > 0 }

// RouteVerdict has the errors of a route at all its parents.
type RouteVerdict struct {
	// Refused is why none of the route's rules is valid; zero if any is.
	Refused attach.Verdict
	// Partly is a message that says why some of the route's rules are invalid; empty if all or none
	// are.
	Partly string
	// Envoys contains the Gateways whose Envoys reject the route, and their errors.
	Envoys map[objects.Name]attach.Verdict
	// Refs is the first unresolved reference of the route; zero if there is none.
	Refs attach.Verdict
}

// Plan is what the Envoys of one Gateway do.
type Plan struct {
	Gateway objects.Name
	// IdleTimeout is the idle timeout of responses; if 0, that of envoy.yaml applies.
	IdleTimeout time.Duration
	// Copies is true if extproc gets copies of requests and responses.
	Copies bool
	// Headers are names of request headers that extproc gets besides those that envoy.yaml
	// forwards: the tenant and program headers of LLMRoutes, sorted.
	Headers []string
	// Ports are sorted by number.
	Ports []Port
	// Clusters are the clusters that the rules name, sorted by name.
	Clusters []Cluster
	// Pools are the InferencePools that the routes name, sorted, including those that get no
	// requests.
	Pools []objects.Name
	// Certificates contains the certificates of the listeners, by name of the Secret.
	Certificates map[objects.Name]Certificate
	// Policies are the BackendTLSPolicies of the plan's Services, sorted by name.
	Policies []objects.Name
	// Contents contains a hash of each route's rules, including routes that are left out. It
	// changes only if a rule of the route changes or moves.
	Contents map[objects.Object]string
	// Refused are messages about the resources, except routes, that the Gateway's Envoys reject.
	Refused []string
}

// Port is a port on which Envoy listens.
type Port struct {
	Number int32
	// Listeners are the Gateway's listeners on this port, in order of precedence. They use the same
	// protocol.
	Listeners []Listener
}

// Listener is a listener with its hosts.
type Listener struct {
	*attach.Listener
	// Certificates are the Secrets of an HTTPS listener, at least one, in the listener's order.
	Certificates []objects.Name
	// Clients defines which clients may call. It is nil if clients need no certificate. All
	// listeners of a port have the same Clients.
	Clients *Clients
	// Hosts are sorted by domain. A request goes to the Host of the port with the most specific
	// matching domain. If none matches, it gets 404.
	Hosts []Host
}

// Host contains the rules for requests to a domain.
type Host struct {
	// Domain is a hostname, which may contain a wildcard as in [attach.Intersect].
	Domain string
	// Rules are in order of precedence. The first that matches handles a request. If none matches,
	// the request gets 404.
	Rules []Rule
}

// Rule is the action for one match of a route's rule.
type Rule struct {
	// Of is the route, Index the index of the rule in the route, and Name the name of that rule,
	// which may be empty.
	Of    objects.Object
	Index int
	Name  string
	Match Match
	// Exactly one of Forward, Redirect and Status is set. Status is that of a response without a
	// body.
	Forward  *Forward
	Redirect *Redirect
	Status   int32

	// Request and Response are changes of the headers of requests and responses.
	Request, Response Headers
	// CORS is the policy for other origins; nil if none may call.
	CORS *gatewayv1.HTTPCORSFilter
}

// Forward sends requests to clusters.
type Forward struct {
	// Models is true if extproc chooses the pool by the request's model. Then there are no
	// backends.
	Models bool
	// Calls is true if Models is true and the requests are gRPC calls, which go to the pool's gRPC
	// port.
	Calls bool
	// Open is the cluster that receives requests for which extproc chose no pool. If Open is empty,
	// such requests get 503. It is used only if Models is true.
	Open string
	// Backends all have weights above 0.
	Backends []Backend
	// Host replaces the host of the request; if it is empty, the host stays.
	Host string
	Path *PathChange
	// Mirrors are the targets of copies of requests.
	Mirrors []Mirror
	// Timeout limits the whole request, and TryTimeout each attempt; 0 means no limit.
	Timeout, TryTimeout time.Duration
	// Retry is nil if requests are not retried.
	Retry *Retry
}

// Retry defines which requests to Services are retried. Broken connections and timeouts of single
// attempts are always retried.
type Retry struct {
	// Attempts is the maximum number of retries, at least 1.
	Attempts int32
	// Codes are the response statuses that are retried.
	Codes []int32
	// Backoff is the approximate time between attempts; if 0, Envoy's default applies.
	Backoff time.Duration
}

// Backend is a cluster and its share of a rule's requests.
type Backend struct {
	// Cluster is the name of a cluster of the plan. It is empty for an unresolved reference, whose
	// share of requests gets the status [Failed].
	Cluster string
	// Picker is the cluster of the pool's endpoint picker: [wire.ExtprocCluster], or a cluster of
	// the plan. It is empty if there is no picker.
	Picker string
	// Open is true if any endpoint of the pool may serve a request without a pick.
	Open              bool
	Weight            int32
	Request, Response Headers
}

// Mirror is a target of copies. It gets copies of Share in every Of requests.
type Mirror struct {
	Cluster   string
	Share, Of int32
}

// Redirect is the target of a redirect. Empty fields keep the value of the request.
type Redirect struct {
	Code   int32
	Scheme string
	Host   string
	// Port is 0 for the scheme's default port. DefaultPort is that default port if the request's
	// host contains another port, which Envoy must remove; otherwise it is 0.
	Port, DefaultPort int32
	Path              *PathChange
}

// PathChange replaces the whole path, or the prefix that the rule matched.
type PathChange struct {
	Whole bool
	With  string
}

// Headers are changes of headers. Headers are first removed, then set, then added.
type Headers struct {
	Set, Add []gatewayv1.HTTPHeader
	Remove   []string
}

// Cluster is a destination of requests: a port of a Service, an InferencePool, or an endpoint
// picker, which is also a port of a Service.
type Cluster struct {
	// Name is unique in the plan.
	Name string
	// Pool is true if Object is an InferencePool. Otherwise Object is a Service, and Port one of
	// its ports.
	Pool   bool
	Object objects.Name
	Port   int32
	// Picker is true if the cluster is an endpoint picker. Requests to it use gRPC, with TLS unless
	// H2C is true.
	Picker bool
	// H2C is true if requests use HTTP/2 without TLS.
	H2C bool
	// Secure contains the TLS settings for a Service; nil for plain text.
	Secure *ServiceTLS
	// Calls is true if the cluster is the gRPC port of a pool's endpoints, which uses HTTP/2.
	Calls bool
	// Open is true if any endpoint of a pool may serve a request without a pick. Otherwise such
	// requests get 503.
	Open bool
	// TLS defines how the endpoints of a pool are verified; zero for plain text.
	TLS v1alpha1.EngineTLS
}

// Of returns the plans of all Gateways.
func Of(a *attach.Attachments, n *objects.Network, known Known) *Plans {
	return After(nil, a, n, known)
}

// After returns the same plans as [Of], but faster. If only routes have changed since the last
// plans, listeners without these routes keep their Hosts slices. last may be nil.
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
	is := newPart() // belongs to no listener
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

// builder is the state of one call of [After].
type builder struct {
	*objects.Network
	http map[objects.Name]*gatewayv1.HTTPRoute
	grpc map[objects.Name]*gatewayv1.GRPCRoute
	llm  map[objects.Name]*v1alpha1.LLMRoute
	beside
	became  map[objects.Object]RouteVerdict
	last    map[at]*part            // parts of the last plans; nil if none can be reused
	changed map[objects.Object]bool // routes that changed since the last plans
	served  map[at]*part

	certificates map[objects.Name]Certificate
	authorities  map[objects.Name]Certificate
	listeners    map[*attach.Listener]attach.Verdict
	refused      map[*attach.Listener]attach.Verdict
	showing      map[objects.Name]attach.Verdict
	shows        *Certificate // client certificate of the current Gateway; nil for none

	*part // part of the current listener
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

// beside contains the objects that routes send requests to. It is immutable.
type beside struct {
	services map[objects.Name]*objects.Service
	pools    map[objects.Name]*pooled
	policies map[servicePort][]*policy // policies of each target, in order of precedence
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
				continue // serve it neither without TLS, nor to clients that may not call
			}
			for _, name := range is.Certificates {
				p.Certificates[name] = b.certificates[name]
			}
		}
		ports[l.Port] = append(ports[l.Port], is)
	}
	all := newPart()
	all.verdicts = b.became // the verdicts of all Gateways are collected in one map
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
	p.Headers = sharingHeaders(b.Routes, all.used)
	p.Policies = slices.SortedFunc(maps.Keys(all.applied), objects.Name.Compare)
	p.Contents = all.contents
	return p
}
