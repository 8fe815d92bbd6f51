// Package objects holds the World: everything that people declared, as typed objects with the indexes that requests
// need. It is pure. A source such as package dir fills a [Set], package resolve adds what its names resolve to, and
// [Build] makes the World of it, so that nothing else in Headgate knows where an object came from.
package objects

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// Name is an object's namespace and name. That of a kind that is in no namespace has an empty one.
type Name struct{ Namespace, Name string }

// String is "namespace/name", or "name" without a namespace.
func (n Name) String() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// ParseName reads "namespace/name", of which neither is empty; false if text is anything else.
func ParseName(text string) (Name, bool) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return Name{}, false
	}
	return Name{namespace, name}, true
}

// Compare orders names by namespace, then name.
func (n Name) Compare(m Name) int {
	return cmp.Or(strings.Compare(n.Namespace, m.Namespace), strings.Compare(n.Name, m.Name))
}

// Set is objects as they were read, already validated.
type Set struct {
	Pools  []pool.InferencePool
	Routes []v1alpha1.LLMRoute
	Pods   []Pod
	Lists  []List
	// Hosts are the addresses that the names in Lists have now. A name that is missing has no endpoint.
	Hosts map[string][]netip.Addr
	// Settings of pools.
	Settings []v1alpha1.PoolSettings
	// Profiles are those that stand in files of their own, by the file's name.
	Profiles map[string]profile.Profile
	// Batches are those by batch, in the same way.
	Batches map[string]*profile.Batches
	// Hardware is kinds that CapacityPlans share, in the same way.
	Hardware map[string][]v1alpha1.PlanHardware
	// Models may be tens of thousands, and are shared by all Sets that have them: nobody changes one.
	Models  []*v1alpha1.Model
	VModels []v1alpha1.VModel
	// Plans are read by who plans, and by nobody else.
	Plans []v1alpha1.CapacityPlan
	// Slices are followed where a Network is, and are none of it: pods come and go without another Network.
	Slices []Slice
	// Network is nil where the source follows none of the kinds that it alone has.
	Network *Network
	// At says where objects are written, such as file:line. One that is missing is known by its name alone.
	At map[Object]string
	// Written says when the files that objects stand in were written. It orders nothing: an edit would change the order.
	Written map[Object]time.Time
	// Absent says, in words for people, which kinds are empty because their source does not have the kind.
	Absent []string
}

// Object names an object by its kind and name.
type Object struct {
	Kind string
	Name Name
}

// String is "Kind namespace/name", or "Kind name" without a namespace.
func (o Object) String() string {
	return strings.TrimSuffix(o.Kind+" "+o.Name.String(), " ") // one without a name is at fault
}

// shelves are where a Set keeps its objects, those of its Network apart, by kind: a kind that has a field in Set has a line here.
func (s *Set) shelves() map[string]shelf {
	return map[string]shelf{
		pool.Kind:                 slice[pool.InferencePool]{&s.Pools},
		v1alpha1.LLMRouteKind:     slice[v1alpha1.LLMRoute]{&s.Routes},
		PodKind:                   slice[Pod]{&s.Pods},
		v1alpha1.EndpointListKind: slice[List]{&s.Lists},
		v1alpha1.PoolSettingsKind: slice[v1alpha1.PoolSettings]{&s.Settings},
		v1alpha1.ModelKind:        slice[*v1alpha1.Model]{&s.Models},
		v1alpha1.VModelKind:       slice[v1alpha1.VModel]{&s.VModels},
		v1alpha1.CapacityPlanKind: slice[v1alpha1.CapacityPlan]{&s.Plans},
		EndpointSliceKind:         slice[Slice]{&s.Slices},
	}
}

// shelf is a field of a Set with the objects of one kind.
type shelf interface {
	count() int
	add(same shelf) // the objects of the same field of another Set
}

type slice[T any] struct{ all *[]T }

func (s slice[T]) count() int     { return len(*s.all) }
func (s slice[T]) add(same shelf) { *s.all = append(*s.all, *same.(slice[T]).all...) }

// count is how many objects there are of each kind.
func (s *Set) count() map[string]int {
	all := make(map[string]int)
	for kind, shelf := range s.shelves() {
		all[kind] = shelf.count()
	}
	if len(s.Plans) == 0 { // as most do, nobody asks for them
		delete(all, v1alpha1.CapacityPlanKind)
	}
	if s.Network == nil {
		if len(s.Slices) == 0 { // nobody follows them
			delete(all, EndpointSliceKind)
		}
		return all
	}
	for kind, shelf := range s.Network.shelves() {
		if _, counted := all[kind]; !counted {
			all[kind] = shelf.count()
		}
	}
	return all
}

// Add adds the objects of t, with no name resolved. Where both say where an object is written, s counts. Of two Networks it makes
// another, in order of name; one alone stays the same.
func (s *Set) Add(t Set) {
	more := t.shelves()
	for kind, shelf := range s.shelves() {
		shelf.add(more[kind])
	}
	s.Network = s.Network.join(t.Network)
	s.Absent = append(s.Absent, t.Absent...)
	addFiles(&s.Profiles, t.Profiles)
	addFiles(&s.Batches, t.Batches)
	addFiles(&s.Hardware, t.Hardware)
	if s.At == nil {
		s.At = make(map[Object]string, len(t.At))
	}
	for o, at := range t.At {
		if _, ok := s.At[o]; !ok {
			s.At[o] = at
		}
	}
	if s.Written == nil {
		s.Written = make(map[Object]time.Time, len(t.Written))
	}
	for o, at := range t.Written {
		if _, ok := s.Written[o]; !ok {
			s.Written[o] = at
		}
	}
}

// addFiles adds what files hold, by their names.
func addFiles[T any](all *map[string]T, more map[string]T) {
	if *all == nil && len(more) > 0 {
		*all = make(map[string]T, len(more))
	}
	maps.Copy(*all, more)
}

// Join returns the objects of both, those of s first, with no name resolved.
func (s Set) Join(t Set) Set {
	var all Set
	all.Add(s)
	all.Add(t)
	return all
}

// PodKind is the kind of pods.
const PodKind = "Pod"

// List is an EndpointList, and what its source lets its addresses be.
type List struct {
	v1alpha1.EndpointList
	// Loopback says that its names may resolve to loopback addresses. Those of an API server may not: whoever may write a list
	// there could have Headgate's own pod called, which listens to itself alone.
	Loopback bool
}

// Pod is what Headgate needs of a Kubernetes Pod.
type Pod struct {
	Name   Name
	Labels map[string]string
	// IP is where its ports are, the zero Addr while it has none.
	IP netip.Addr
	// Ready says that it may get new requests: the Ready condition holds, and it is not being deleted, or migrates.
	Ready bool
	// NodeSilent says that it was ready when its node was last heard of, and that this was a while ago.
	NodeSilent bool
	// Terminating says that it is being deleted, and is there until its containers have ended.
	Terminating bool
	// Migrates is when that is over, of one that is terminating and serves on while its models get copies elsewhere
	// ([v1alpha1.PreStop]); zero of any other.
	Migrates time.Time
	// Ports are those of a pool's target ports that it serves on; nil means all of them.
	Ports []int32
	// Containers are the ids of its running containers, in order: another id is another life of an engine.
	Containers []string
	Version
	// UID tells it from others that had its name before, empty where nobody does.
	UID string
	// OnTrial says that nothing keeps it from being ready but that no control has said yet that models load there ([v1alpha1.ModelsLoad]).
	OnTrial bool
}

// Version says of which version of its workload a pod is. The zero Version is that of a pod that nothing makes anew.
type Version struct {
	Workload string    // what makes such pods in its namespace, as a Deployment, by its name; empty if nothing does
	Template string    // tells its versions apart
	Made     time.Time // when the pod was made
}

// World is immutable once built and safe for concurrent use.
type World struct {
	// Pools by name.
	Pools map[Name]*Pool
	// Engines are those of all pools, in order of address.
	Engines []Engine
	// Offer is what the static data plane and other gateways' picker serve: that of every LLMRoute and Model.
	Offer
	// Offers are what each listener of a Gateway offers at which an LLMRoute attaches, by the listener's name, as package attach says;
	// nil where nobody asked it.
	Offers map[string]*Offer
	// Catalogue is every model that engines can load, by pool and id, in order.
	Catalogue []Entry
	// VModels are those of objects, by pool and id, in order, those too whose id is another's.
	VModels []VModel
	// Problems are the faults between objects, each of them valid alone, in words for people.
	Problems []string
	// Doubles are the Models whose id is another's, which are not in the catalogue.
	Doubles []Entry
	// Faults are those of the Problems that are one route's or one model's, for its status.
	Faults []Fault
	// Objects is how many objects of each kind the World was made of, 0 for a kind of which there are none.
	Objects map[string]int
	// Network is that of the Set: the same as that of the World before, as long as none of its objects changes.
	Network *Network
	// Slices are those of the Set, in its order. They are not to be changed.
	Slices []Slice

	open     []Name            // pools that no LLMRoute names, in order
	byName   map[Name]*Route   // LLMRoutes
	unrouted map[Name][]*Route // Models and VModels by pool, as if no LLMRoute admitted them
	at       map[Object]string
	written  map[Object]time.Time // see [Set.Written]
	lists    map[Name]bool        // EndpointLists
	vmodels  map[ModelKey]int     // of VModels, those whose id is their own

	rpcs map[string][]ownRPC // by method, in order of pools

	// ports are those of endpoints that have any, by the endpoint's address, and owners such endpoints by the addresses of these ports.
	ports  map[string]Ports
	owners map[string]string
}

// Fault is why an LLMRoute, a Model or a VModel is not in force as it is written.
type Fault struct {
	Kind   string // v1alpha1.LLMRouteKind, v1alpha1.ModelKind or v1alpha1.VModelKind
	Object Name
	// Reason is that of the condition that is not true: a reason of api/v1alpha1.
	Reason string
	// Words are for people, without the object's name.
	Words string
}

// Pool is an InferencePool with the endpoints that it selects.
type Pool struct {
	Name Name
	// Created is when the InferencePool was made; zero where nobody says, as of that of --endpoints.
	Created time.Time
	// Endpoints in order of address.
	Endpoints []Endpoint
	// H2C says that its endpoints speak HTTP/2 without TLS.
	H2C bool
	// CallsOnly says that one of its engines takes gRPC calls alone.
	CallsOnly bool
	// Picker is the service that other gateways ask for this pool.
	Picker Picker
	// Routed says that an LLMRoute names the pool, so that it admits the models of its routes and no others.
	Routed bool
	// Settings are what a PoolSettings says of the pool, nil if there is none; SettingsName is its name.
	Settings     *v1alpha1.PoolSettingsSpec
	SettingsName Name
	// Profile is how long its engines take, by its Settings; nil if they do not say. Pinned says that nothing is to be learned.
	Profile *profile.Profile
	Pinned  bool
	// Classes are profiles of single classes of hardware, in the place of Profile: see [Pool.Said].
	Classes map[string]*Said
}

// Has says whether an endpoint is of the pool, which may be nil.
func (p *Pool) Has(address string) bool {
	if p == nil {
		return false
	}
	_, has := slices.BinarySearchFunc(p.Endpoints, address, func(e Endpoint, address string) int { return strings.Compare(e.Address, address) })
	return has
}

// Endpoint is one port of one pod, or one address of an EndpointList.
type Endpoint struct {
	Address string            // "ip:port", with brackets around an IPv6 address
	Host    string            // the DNS name that people wrote for it; empty if they wrote none
	Pod     Name              // or its EndpointList
	Listed  bool              // it is of an EndpointList
	Labels  map[string]string // of the pod or the list; not to be changed
	Kind    engine.Kind       // of its engine, if somebody says; else what it serves tells
	Ready   bool
	// NodeSilent says that Ready is the last word of a node that is not heard of any more.
	NodeSilent bool
	// Terminating says that its pod is being deleted. Migrates is until when it serves on for its models to get copies elsewhere; zero
	// of any other.
	Terminating bool
	Migrates    time.Time
	// Management is where an engine is managed whose kind has an address of its own for that: "ip:port", or "unix:PATH" of a model runtime; empty
	// for others.
	Management string
	// Ports are where else it listens.
	Ports Ports
	// Class is the hardware of its engine, as the label says that the pool's settings name; empty if nobody says.
	Class string
	// Incarnation tells lives of the engine apart, empty if nobody says: the ids of its pod's containers.
	Incarnation string
	Version
	// UID is its pod's, and OnTrial says that nothing keeps the pod from being ready but that nobody has said yet that models load there.
	UID     string
	OnTrial bool
}

// Route is an LLMRoute ready for use.
type Route struct {
	Name Name
	// Kind is that of its object: an LLMRoute, or a Model or VModel that no LLMRoute admits.
	Kind string
	// UID tells its object from others that had its name before, empty where nobody does.
	UID string
	// Generation is that of its object, 0 where nobody counts.
	Generation int64
	// Models are the request names that it admits in its Offer, without those that an older route took first.
	Models []string
	// Adapter is the engine's name of its adapter, or of the Model that it is for, or the id of a VModel; empty means the base model.
	Adapter    string
	Priority   int32
	Objectives []v1alpha1.Objective
	// Backends are its pools. Weights add up to more than 0.
	Backends []Backend

	wants   []string // the names that it would admit if it were alone
	created time.Time
	written time.Time // when its file was; zero where it stands in none
}

// LeadsTo says whether a pool is among its backends.
func (r *Route) LeadsTo(pool Name) bool {
	return slices.ContainsFunc(r.Backends, func(b Backend) bool { return b.Pool == pool })
}

// Backend is a pool and its share of a route's requests.
type Backend struct {
	Pool   Name
	Weight int32
}

// Model is a name that requests may use.
type Model struct {
	Name    string
	Created time.Time // of its route; zero where that has no creation time
}

// Build makes a World. Objects must be valid by themselves ([CheckRoute], [CheckPool], [CheckList]); what does not fit together
// becomes a Problem.
func Build(s Set) *World {
	w := &World{
		Pools: make(map[Name]*Pool, len(s.Pools)), Offer: newOffer(), Objects: s.count(), Network: s.Network, Slices: s.Slices, Problems: slices.Clone(s.Absent),
		byName: make(map[Name]*Route, len(s.Routes)), unrouted: make(map[Name][]*Route), at: s.At, lists: make(map[Name]bool, len(s.Lists)),
		written: s.Written,
	}
	for i := range s.Lists {
		w.lists[Name{s.Lists[i].Namespace, s.Lists[i].Name}] = true
	}
	selected := newSelection(&s)
	for i := range s.Pools {
		w.addPool(&s.Pools[i], &s, selected)
	}
	w.noteUnusedLists(&s)
	claims := w.claims()
	w.noteShared(claims)

	// The oldest route keeps a name that two of them want, then the first by name: Gateway API's rule for conflicts.
	routes := slices.Clone(s.Routes)
	slices.SortStableFunc(routes, func(a, b v1alpha1.LLMRoute) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), routeName(&a).Compare(routeName(&b)))
	})
	for i := range routes {
		w.addRoute(&routes[i])
	}
	w.addSettings(s.Settings, s.Profiles)
	w.addManagement()
	w.addRPCs()
	w.addPorts()
	w.addEngines(claims)
	w.notePorts()
	w.noteCallsOnly()
	w.addCatalogue(s.Models, s.VModels)
	w.sort()
	for name, p := range w.Pools {
		if !p.Routed {
			w.open = append(w.open, name)
		}
	}
	slices.SortFunc(w.open, Name.Compare)
	return w
}

// Open returns the pools that no LLMRoute names, in order: they admit what their endpoints list. The caller must not change it.
func (w *World) Open() []Name { return w.open }

// Addresses returns the address of every endpoint, each once, in order.
func (w *World) Addresses() []string {
	all := make([]string, len(w.Engines))
	for i, e := range w.Engines {
		all[i] = e.Address
	}
	return all
}

// At says where an object is written, such as file:line; empty if nobody knows.
func (w *World) At(o Object) string { return w.at[o] }

// Where names an object for people, with where it is written if that is known: "LLMRoute default/sql, routes.yaml:3".
func (w *World) Where(kind string, name Name) string {
	o := Object{kind, name}
	if at := w.at[o]; at != "" {
		return o.String() + ", " + at
	}
	return o.String()
}

// WhereOf is Where for the Pod or EndpointList that declares an endpoint.
func (w *World) WhereOf(e *Endpoint) string {
	if w.lists[e.Pod] {
		return w.Where(v1alpha1.EndpointListKind, e.Pod)
	}
	return w.Where(PodKind, e.Pod)
}

func routeName(r *v1alpha1.LLMRoute) Name { return Name{r.Namespace, r.Name} }

func (w *World) addPool(ip *pool.InferencePool, s *Set, selected selection) {
	p := &Pool{Name: Name{ip.Namespace, ip.Name}, Created: ip.CreationTimestamp.Time, H2C: ip.Spec.AppProtocol == pool.H2C, Picker: pickerOf(ip.Spec.EndpointPickerRef)}
	if w.Pools[p.Name] != nil {
		w.problem("InferencePool %s is defined twice: that of --endpoints counts", p.Name)
		return
	}
	w.Pools[p.Name] = p
	for _, i := range selected.pods(ip) {
		pod := &s.Pods[i]
		if !pod.IP.IsValid() || !Selects(ip.Spec.Selector.MatchLabels, pod.Labels) {
			continue
		}
		for _, port := range ip.Spec.TargetPorts {
			if pod.Ports != nil && !slices.Contains(pod.Ports, port.Number) {
				continue
			}
			p.Endpoints = append(p.Endpoints, Endpoint{
				Address: netip.AddrPortFrom(pod.IP, uint16(port.Number)).String(),
				Pod:     pod.Name, Labels: pod.Labels, Kind: kindOf(pod.Labels), Ready: pod.Ready, NodeSilent: pod.NodeSilent,
				Terminating: pod.Terminating, Migrates: pod.Migrates,
				Incarnation: strings.Join(pod.Containers, ","), Version: pod.Version, UID: pod.UID, OnTrial: pod.OnTrial,
			})
		}
	}
	for _, list := range s.Lists {
		if list.Namespace != p.Name.Namespace || !Selects(ip.Spec.Selector.MatchLabels, list.Labels) {
			continue
		}
		for _, text := range list.Spec.Addresses {
			address, err := ParseAddress(text)
			if err != nil {
				continue // CheckList refuses it
			}
			for _, at := range address.at(s.Hosts) {
				if at.Addr().IsLoopback() && !list.Loopback {
					w.problem("EndpointList %s: %s resolves to %s: %s; it is left out", Name{list.Namespace, list.Name}, address.Name, at.Addr(), loopback)
					continue
				}
				p.Endpoints = append(p.Endpoints, Endpoint{
					Address: at.String(), Host: address.Name, Pod: Name{list.Namespace, list.Name}, Listed: true, Labels: list.Labels,
					Kind: cmp.Or(engine.Kind(list.Spec.Engine), kindOf(list.Labels)), Ready: true,
					Management: managementAt(list.Spec.Management, at), Ports: portsOf(list.Spec.Ports),
				})
			}
		}
	}
	// A pod that is gone and its successor may share an address for a moment: the ready one is the one that answers.
	slices.SortFunc(p.Endpoints, func(a, b Endpoint) int {
		if c := strings.Compare(a.Address, b.Address); c != 0 {
			return c
		}
		if a.Ready != b.Ready {
			if a.Ready {
				return -1
			}
			return 1
		}
		return a.Pod.Compare(b.Pod)
	})
	p.Endpoints = slices.CompactFunc(p.Endpoints, func(a, b Endpoint) bool { return a.Address == b.Address })
	w.noteUnknownKinds(p)
}

// kindLabel returns what the labels of a pod or a list say of its engine, empty if nothing.
func kindLabel(labels map[string]string) string {
	return cmp.Or(labels[engine.KindLabel], labels[engine.LegacyKindLabel])
}

// kindOf is the kind that labels name; one that is not known is left to what the engine serves.
func kindOf(labels map[string]string) engine.Kind {
	kind, _ := engine.ParseKind(kindLabel(labels))
	return kind
}

// noteUnknownKinds tells of each kind of engine that a pool's labels name and nobody knows.
func (w *World) noteUnknownKinds(p *Pool) {
	noted := make(map[string]bool)
	for _, e := range p.Endpoints {
		name := kindLabel(e.Labels)
		if _, ok := engine.ParseKind(name); ok || noted[name] {
			continue
		}
		noted[name] = true
		w.problem("InferencePool %s: the labels of %s name the engine %q, which is not one of %v: extproc tells its kind by what it serves",
			p.Name, e.Pod, name, engine.Kinds())
	}
}

// noteUnusedLists tells of each EndpointList that no pool selects. A pod without a pool is no mistake; a list has no
// other use.
func (w *World) noteUnusedLists(s *Set) {
	for _, list := range s.Lists {
		if !slices.ContainsFunc(s.Pools, func(p pool.InferencePool) bool {
			return p.Namespace == list.Namespace && Selects(p.Spec.Selector.MatchLabels, list.Labels)
		}) {
			w.problem("EndpointList %s: no InferencePool of its namespace selects its labels: nothing uses it", Name{list.Namespace, list.Name})
		}
	}
}

// Selects says whether labels have all that are wanted, with their values.
func Selects[V ~string](want map[string]V, labels map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != string(v) {
			return false
		}
	}
	return true
}

// ModelNames returns the names in requests that an LLMRoute wants to admit. The caller must not change it.
func ModelNames(r *v1alpha1.LLMRoute) []string {
	switch {
	case len(r.Spec.ModelNames) > 0:
		return r.Spec.ModelNames
	case r.Spec.Adapter != nil && r.Spec.Adapter.Name != "":
		return []string{r.Spec.Adapter.Name}
	}
	return []string{r.Name}
}

func (w *World) addRoute(lr *v1alpha1.LLMRoute) {
	r := &Route{
		Name: routeName(lr), Kind: v1alpha1.LLMRouteKind, UID: string(lr.UID), Generation: lr.Generation, Priority: lr.Spec.Priority,
		Objectives: lr.Spec.Objectives, wants: ModelNames(lr), created: lr.CreationTimestamp.Time,
		written: w.written[Object{v1alpha1.LLMRouteKind, routeName(lr)}],
	}
	if lr.Spec.Adapter != nil {
		r.Adapter = lr.Spec.Adapter.Name
	}
	for _, b := range lr.Spec.BackendRefs {
		weight := int32(1)
		if b.Weight != nil {
			weight = *b.Weight
		}
		backend := Backend{Pool: Name{lr.Namespace, b.Name}, Weight: weight}
		if p := w.Pools[backend.Pool]; p != nil {
			p.Routed = true
		} else {
			w.fault(r.Kind, r.Name, v1alpha1.ReasonBackendNotFound, "spec.backendRefs names InferencePool %s, which does not exist: its requests get 503", backend.Pool)
		}
		r.Backends = append(r.Backends, backend)
		w.pools[backend.Pool] = true
	}
	for _, k := range w.add(r) {
		w.fault(r.Kind, r.Name, v1alpha1.ReasonModelNameTaken, "model %q is already admitted by LLMRoute %s, which keeps it", k.name, k.by.Name)
	}
	w.byName[r.Name] = r
}

func (w *World) problem(format string, args ...any) {
	w.Problems = append(w.Problems, fmt.Sprintf(format, args...))
}

// fault is a problem of one object. It returns its words.
func (w *World) fault(kind string, object Name, reason, format string, args ...any) string {
	f := Fault{kind, object, reason, fmt.Sprintf(format, args...)}
	w.Faults = append(w.Faults, f)
	w.problem("%s %s: %s", f.Kind, f.Object, f.Words)
	return f.Words
}
