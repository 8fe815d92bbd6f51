// Package plan decides what the Envoys of each Gateway are to do: on which ports they listen, and for each request there, by its
// host, path, method and headers, where it goes. It is pure: objects in, plans and verdicts on the objects out. It speaks Gateway
// API's words and none of Envoy's, so that a plan can be read, and told why it is as it is.
//
// Where the specification says that a rule cannot be followed, requests that fit the rule get 500, and calls UNAVAILABLE: they must not fall to a rule that
// was not meant for them.
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

// Plans are those of all Gateways of ours, and what became of the routes. They are immutable.
type Plans struct {
	// Attachments are what they are made of.
	Attachments *attach.Attachments
	// Gateways in order of name.
	Gateways []*Plan
	// Routes are what became of each route that names a Gateway of ours, or a ListenerSet of one, but for what [attach.Attachments] says
	// of its parents.
	Routes map[objects.Object]RouteVerdict
	// Policies are what became of each BackendTLSPolicy of a Service that a plan leads to.
	Policies map[objects.Name]PolicyVerdict
	// Showing is why the Envoys of a Gateway cannot show the certificate to Services that they are to show; one that is missing can, or is to
	// show none.
	Showing map[objects.Name]attach.Verdict
	// Refused are the listeners that are not accepted, though who attaches where says nothing against them.
	Refused map[*attach.Listener]attach.Verdict
	// Listeners are the first of the references of each listener that cannot be followed; one that is missing has none.
	Listeners map[*attach.Listener]attach.Verdict
	// Pools are what is wrong with each InferencePool of a plan.
	Pools map[objects.Name]PoolVerdict

	made made
}

// Certificate is what is in a Secret of TLS.
type Certificate struct {
	// Chain and Key are in PEM.
	Chain []byte
	Key   objects.PrivateKey
	// Fault is why what the Secret has cannot be used, in words for people, such as that there is no such Secret; empty if it can.
	// With a Fault, Chain and Key are those that were good last, with which listeners go on; empty if they may not.
	Fault string
	// Warning is why clients may refuse what Envoys serve, such as that it has expired; empty if nothing is known.
	Warning string
}

// serves says whether a listener may serve with it.
func (c Certificate) serves() bool { return c.Fault == "" || len(c.Chain) > 0 }

// RouteVerdict is what is wrong with a route, whatever it attaches to.
type RouteVerdict struct {
	// Refused is why none of its rules is in force; zero if one is.
	Refused attach.Verdict
	// Partly is why some of its rules are not in force, in words for people; empty if all are, or none.
	Partly string
	// Envoys is why none of its rules is in force at some Gateways: their Envoys refuse it. Nil if none does.
	Envoys map[objects.Name]attach.Verdict
	// Refs is the first of its references that cannot be followed; zero if all can.
	Refs attach.Verdict
}

// Plan is what the Envoys of one Gateway are to do.
type Plan struct {
	Gateway objects.Name
	// Silence bounds how long nothing may come of an answer that has not ended; 0 for as long as envoy.yaml says.
	Silence time.Duration
	// Copies says that extproc is shown copies of requests and answers.
	Copies bool
	// Ports in order of number.
	Ports []Port
	// Clusters are what its rules name, in order of name.
	Clusters []Cluster
	// Pools are the InferencePools that its routes name, whether requests are sent there or not, in order.
	Pools []objects.Name
	// Certificates are those that its listeners serve with, by Secret.
	Certificates map[objects.Name]Certificate
	// Policies are the BackendTLSPolicies of Services that it leads to, in order of name.
	Policies []objects.Name
	// Contents tells for each route with rules what they are, before any is left out: another one where a rule is another, or is elsewhere.
	// What else is in the plan does not matter.
	Contents map[objects.Object]string
	// Refused is what its Envoys refuse, beside routes that are left out, in words for people.
	Refused []string
}

// Port is a port on which Envoy listens.
type Port struct {
	Number int32
	// Listeners that share it, in order of precedence. All of a port have the same protocol.
	Listeners []Listener
}

// Listener is what happens to the requests of one listener.
type Listener struct {
	*attach.Listener
	// Certificates are the Secrets with which an HTTPS listener serves, in its order, at least one.
	Certificates []objects.Name
	// Clients is who may call; nil if anybody may, and is not asked for a certificate. It is the same for all of a port.
	Clients *Clients
	// Hosts in order of domain. The most specific that fits a request's host has it, of all listeners of the port; who fits none
	// gets 404.
	Hosts []Host
}

// Host is the requests to some hostnames.
type Host struct {
	// Domain is a pattern as of [attach.Intersect].
	Domain string
	// Rules in order of precedence: the first that fits a request has it; who fits none gets 404.
	Rules []Rule
}

// Rule is one match of a rule of a route, and what happens to the requests that fit.
type Rule struct {
	// Of is the route, Index the number of the rule in it, and Name the rule's name; empty if it has none.
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
	// CORS is nil where browsers of other origins may not call.
	CORS *gatewayv1.HTTPCORSFilter
}

// Forward sends requests to one of several clusters.
type Forward struct {
	// Models says that extproc finds the pool, by the model that the request names: there are no backends.
	Models bool
	// Calls says, with Models, that requests are gRPC calls, which go where the pool's endpoints take these.
	Calls bool
	// Open is, with Models, the cluster of the pool that serves what extproc says nothing of; empty where that gets 503.
	Open string
	// Backends have weights above 0.
	Backends []Backend
	// Host replaces the request's; empty leaves it.
	Host string
	Path *PathChange
	// Mirrors get copies.
	Mirrors []Mirror
	// Timeout bounds the whole, TryTimeout each try; 0 is no bound.
	Timeout, TryTimeout time.Duration
	// Retry is nil where a request is tried once.
	Retry *Retry
}

// Retry says which requests to Services are tried again, beside those whose connection breaks or whose try takes too long.
type Retry struct {
	// Attempts is how often, at least 1.
	Attempts int32
	// Codes are the statuses of answers.
	Codes []int32
	// Backoff is the time between tries, about; 0 leaves it to Envoy.
	Backoff time.Duration
}

// Backend is a cluster and its share of a rule's requests.
type Backend struct {
	// Cluster is the name of one of the plan's; empty for a reference that cannot be followed, whose share gets what [Failed] says.
	Cluster string
	// Picker is the cluster of the endpoint picker that is asked about requests to a pool: [wire.ExtprocCluster], or one of the plan's;
	// empty where nobody is.
	Picker string
	// Open says that an endpoint of the pool serves what nobody has picked for.
	Open              bool
	Weight            int32
	Request, Response Headers
}

// Mirror is where copies go, and of how many requests: Share of Of.
type Mirror struct {
	Cluster   string
	Share, Of int32
}

// Redirect is an answer that sends clients elsewhere. What is empty stays as the request has it.
type Redirect struct {
	Code   int32
	Scheme string
	Host   string
	// Port is 0 where the scheme tells it. Unsaid is that port where the host is the request's and may name another, which must not be
	// said either.
	Port, Unsaid int32
	Path         *PathChange
}

// PathChange replaces a path, or what of it fits the rule's prefix.
type PathChange struct {
	Whole bool
	With  string
}

// Headers are changes of headers, in the order remove, set, add.
type Headers struct {
	Set, Add []gatewayv1.HTTPHeader
	Remove   []string
}

// Cluster is what rules send requests to, a port of a Service or a pool; or an endpoint picker that Envoy asks about them, which is a port
// of a Service, too.
type Cluster struct {
	// Name is unique in the plan.
	Name string
	// Pool is whether it is an InferencePool, of the same name as Object; else Object is a Service, and Port one of its.
	Pool   bool
	Object objects.Name
	Port   int32
	// Picker says that it is an endpoint picker. It speaks gRPC, by TLS if it is not H2C.
	Picker bool
	// H2C says that HTTP/2 is spoken there without TLS.
	H2C bool
	// Secure is how a Service is reached by TLS; nil if it is not.
	Secure *ServiceTLS
	// Calls says that it is where a pool's endpoints take gRPC calls, by HTTP/2.
	Calls bool
	// Open says that one of a pool's endpoints serves requests that nobody has picked for: they get 503 else.
	Open bool
	// TLS is how a pool's endpoints are known; zero where they are reached in the clear.
	TLS v1alpha1.EngineTLS
}

// Of plans for all Gateways.
func Of(a *attach.Attachments, n *objects.Network, known Known) *Plans {
	return After(nil, a, n, known)
}

// After is Of, sooner: where only routes have changed since the last plans, listeners that have none of these keep their Hosts, the same
// slices. Last may be nil.
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
		Attachments: a, Routes: b.became, Listeners: b.listeners, Refused: b.refused, Showing: b.showing, Pools: make(map[objects.Name]PoolVerdict), Policies: make(map[objects.Name]PolicyVerdict),
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

// unserved notes what is wrong with the routes that no listener serves.
func (b *builder) unserved(a *attach.Attachments) {
	is := newPart() // nobody's
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

// builder is what is known while plans are made.
type builder struct {
	*objects.Network
	http map[objects.Name]*gatewayv1.HTTPRoute
	grpc map[objects.Name]*gatewayv1.GRPCRoute
	llm  map[objects.Name]*v1alpha1.LLMRoute
	beside
	became  map[objects.Object]RouteVerdict
	last    map[at]*part            // of the last plans; nil where none serves
	changed map[objects.Object]bool // routes since then
	served  map[at]*part

	certificates map[objects.Name]Certificate
	authorities  map[objects.Name]Certificate
	listeners    map[*attach.Listener]attach.Verdict
	refused      map[*attach.Listener]attach.Verdict
	showing      map[objects.Name]attach.Verdict
	shows        *Certificate // of the Gateway that is planned; nil for none

	*part // that is made
}

func newBuilder(n *objects.Network) *builder {
	b := &builder{
		Network: n,
		http:    make(map[objects.Name]*gatewayv1.HTTPRoute, len(n.HTTPRoutes)), grpc: make(map[objects.Name]*gatewayv1.GRPCRoute), llm: make(map[objects.Name]*v1alpha1.LLMRoute),
		became: make(map[objects.Object]RouteVerdict, len(n.HTTPRoutes)+len(n.GRPCRoutes)+len(n.Routes)), served: make(map[at]*part),
		listeners: make(map[*attach.Listener]attach.Verdict), refused: make(map[*attach.Listener]attach.Verdict), showing: make(map[objects.Name]attach.Verdict),
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

// beside is what routes lead to. It is not changed once it is made.
type beside struct {
	services map[objects.Name]*objects.Service
	pools    map[objects.Name]*pooled
	policies map[servicePort][]*policy // those that count first
}

func besideOf(n *objects.Network, known Known) beside {
	is := beside{make(map[objects.Name]*objects.Service, len(n.Services)), make(map[objects.Name]*pooled, len(n.Pools)), policiesOf(n, known.Authorities)}
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
		p.Silence = t.Idle.Duration
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
				continue // it is never served in the clear, nor to those who may not call
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
