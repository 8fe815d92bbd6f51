// Package objects contains the World: all declared objects, typed, with the indexes that requests
// need. It is pure. A source such as package dir fills a [Set], package resolve adds the resolved
// names, and [Build] makes the World, so that nothing else in Headgate knows where an object came
// from.
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

// Name is an object's namespace and name. Cluster-scoped objects have an empty namespace.
type Name struct{ Namespace, Name string }

// String returns "namespace/name", or "name" without a namespace.
func (n Name) String() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// ParseName parses "namespace/name", both not empty; false for any other text.
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

// Set is a set of validated objects.
type Set struct {
	Pools  []pool.InferencePool
	Routes []v1alpha1.LLMRoute
	Pods   []Pod
	Lists  []List
	// Hosts are the current addresses of the names in Lists. A missing name has no endpoint.
	Hosts map[string][]netip.Addr
	// Settings are the pools' settings.
	Settings []v1alpha1.PoolSettings
	// Profiles are engine profiles in files of their own, by file name.
	Profiles map[string]profile.Profile
	// Batches are profiles by batch size, by file name.
	Batches map[string]*profile.Batches
	// Hardware is hardware lists that CapacityPlans share, by file name.
	Hardware map[string][]v1alpha1.PlanHardware
	// Models may be tens of thousands. Sets share them, so they must not be changed.
	Models  []*v1alpha1.Model
	VModels []v1alpha1.VModel
	// Plans are used only by headgate plan.
	Plans []v1alpha1.CapacityPlan
	// Slices are read together with a Network but are not part of it, so that changes of pods build
	// no new Network.
	Slices []Slice
	// Network is nil if the source does not read the kinds that only a Network has.
	Network *Network
	// At says where objects are written, such as file:line. Objects without an entry are identified
	// by name only.
	At map[Object]string
	// Written is the modification time of objects' files. It must not order objects, since an edit
	// would change the order.
	Written map[Object]time.Time
	// Absent describes, for people, which kinds are empty because the source lacks them.
	Absent []string
}

// Object identifies an object by kind and name.
type Object struct {
	Kind string
	Name Name
}

// String returns "Kind namespace/name", or "Kind name" without a namespace.
func (o Object) String() string {
	return strings.TrimSuffix(o.Kind+" "+o.Name.String(), " ") // an invalid object may lack a name
}

// collections returns the Set's collections, without those of its Network, by kind. Every field of
// Set with objects has an entry here.
func (s *Set) collections() map[string]collection {
	return map[string]collection{
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

// collection is a field of a Set with the objects of one kind.
type collection interface {
	count() int
	add(same collection) // adds the objects of the same field of another Set
}

type slice[T any] struct{ all *[]T }

func (s slice[T]) count() int          { return len(*s.all) }
func (s slice[T]) add(same collection) { *s.all = append(*s.all, *same.(slice[T]).all...) }

// count returns the number of objects of each kind.
func (s *Set) count() map[string]int {
	all := make(map[string]int)
	for kind, collection := range s.collections() {
		all[kind] = collection.count()
	}
	if len(s.Plans) == 0 { // usually there are none
		delete(all, v1alpha1.CapacityPlanKind)
	}
	if s.Network == nil {
		if len(s.Slices) == 0 { // the source does not read them
			delete(all, EndpointSliceKind)
		}
		return all
	}
	for kind, collection := range s.Network.collections() {
		if _, counted := all[kind]; !counted {
			all[kind] = collection.count()
		}
	}
	return all
}

// Add adds the objects of t. Resolved names are dropped. For the place of an object, s takes
// precedence. Two Networks are merged in order of name; a single one keeps its pointer.
func (s *Set) Add(t Set) {
	more := t.collections()
	for kind, collection := range s.collections() {
		collection.add(more[kind])
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

// addFiles adds the contents of files, by name.
func addFiles[T any](all *map[string]T, more map[string]T) {
	if *all == nil && len(more) > 0 {
		*all = make(map[string]T, len(more))
	}
	maps.Copy(*all, more)
}

// Join returns the objects of both, those of s first. Resolved names are dropped.
func (s Set) Join(t Set) Set {
	var all Set
	all.Add(s)
	all.Add(t)
	return all
}

// PodKind is the kind of pods.
const PodKind = "Pod"

// List is an EndpointList with its source's restrictions.
type List struct {
	v1alpha1.EndpointList
	// Loopback allows its names to resolve to loopback addresses. Lists of an API server may not,
	// since their authors could otherwise reach the loopback ports of Headgate's own pod.
	Loopback bool
}

// Pod is the part of a Kubernetes Pod that Headgate needs.
type Pod struct {
	Name   Name
	Labels map[string]string
	// IP is the pod's address; the zero Addr while the pod has no address.
	IP netip.Addr
	// Ready means that it may get new requests: the Ready condition is true, and it is not being
	// deleted, or it migrates.
	Ready bool
	// NodeSilent means that it was ready when its node last reported, a while ago.
	NodeSilent bool
	// Terminating means that it is being deleted and its containers have not all ended.
	Terminating bool
	// Migrates is the end of the migration of a terminating pod that still serves while its models
	// get copies elsewhere ([v1alpha1.PreStop]); otherwise zero.
	Migrates time.Time
	// Ports are the pool's target ports that the pod serves; nil means all.
	Ports []int32
	// Containers are its running containers, in the order of its status.
	Containers []Container
	Version
	// UID distinguishes it from earlier pods of the same name. It is empty if objects have no UIDs.
	UID string
	// OnTrial means that the pod would be ready if control had reported that models load there
	// ([v1alpha1.ModelsLoad]).
	OnTrial bool
}

// Version is a pod's version of its workload. It is zero for a pod without a controller.
type Version struct {
	Workload string    // name of the owner, such as a Deployment; empty if there is none
	Template string    // hash of the pod template
	Made     time.Time // creation time of the pod
}

// World is immutable once built and safe for concurrent use.
type World struct {
	// Pools by name.
	Pools map[Name]*Pool
	// Engines are the engines of all pools, sorted by address.
	Engines []Engine
	// Offer is the offer of the static data plane and of other gateways' pickers: every LLMRoute
	// and Model.
	Offer
	// Offers are the offers of Gateway listeners with LLMRoutes attached, by the listener's name;
	// package attach computes them. Nil if it was not asked to.
	Offers map[string]*Offer
	// Catalogue is every model that engines can load, sorted by pool and id.
	Catalogue []Entry
	// VModels are all declared VModels, sorted by pool and id, including those whose id belongs to
	// another object.
	VModels []VModel
	// Problems describe conflicts between objects that are each valid, for people.
	Problems []string
	// Settings are the PoolSettings in order of precedence, and Lists the EndpointLists.
	Settings []SettingsUse
	Lists    []ListUse
	// Doubles are the Models whose id belongs to another object. They are not in the catalogue.
	Doubles []Entry
	// Faults are the Problems that concern one route or model, for its status.
	Faults []Fault
	// Objects is the number of objects of each kind, including zeros.
	Objects map[string]int
	// Network is the Set's. It stays the same pointer as long as none of its objects changes.
	Network *Network
	// Slices are the Set's, in its order. They must not be changed.
	Slices []Slice

	open     []Name            // pools without LLMRoutes, sorted
	byName   map[Name]*Route   // LLMRoutes
	unrouted map[Name][]*Route // Models and VModels by pool, as if no LLMRoute admitted them
	at       map[Object]string
	written  map[Object]time.Time // see [Set.Written]
	lists    map[Name]bool        // EndpointLists
	vmodels  map[ModelKey]int     // VModels that own their id

	rpcs map[string][]ownRPC // owners' settings of methods, by method, sorted by pool

	// ports are the ports of endpoints that have any, by the endpoint's address; owners are these
	// endpoints by the addresses of their ports.
	ports  map[string]Ports
	owners map[string]string
}

// Fault is why an LLMRoute, a Model or a VModel does not take effect as written.
type Fault struct {
	Kind   string // v1alpha1.LLMRouteKind, v1alpha1.ModelKind or v1alpha1.VModelKind
	Object Name
	// Reason is the reason of the condition that is not true, from api/v1alpha1.
	Reason string
	// Words is the message for people, without the object's name.
	Words string
}

// Pool is an InferencePool with the endpoints that it selects.
type Pool struct {
	Name Name
	// Created is the InferencePool's creation time; zero if it has none, as for --endpoints.
	Created time.Time
	// Endpoints are sorted by address.
	Endpoints []Endpoint
	// H2C says that its endpoints speak HTTP/2 without TLS.
	H2C bool
	// CallsOnly says that one of its engines serves only gRPC.
	CallsOnly bool
	// Picker is the service that other gateways ask for this pool.
	Picker Picker
	// Routed says that an LLMRoute names the pool, so that it admits only the models of its routes.
	Routed bool
	// Settings is the spec of the pool's PoolSettings, nil if there is none; SettingsName is its
	// name.
	Settings     *v1alpha1.PoolSettingsSpec
	SettingsName Name
	// Profile is the latency profile of its engines from its Settings, nil if they have none.
	// Pinned turns learning off.
	Profile *profile.Profile
	Pinned  bool
	// Classes are profiles of single accelerators, which replace Profile: see [Pool.Said].
	Classes map[string]*Said
}

// Has reports whether an endpoint belongs to the pool, which may be nil.
func (p *Pool) Has(address string) bool {
	if p == nil {
		return false
	}
	_, has := slices.BinarySearchFunc(p.Endpoints, address, func(e Endpoint, address string) int {
		return strings.Compare(e.Address, address)
	})
	return has
}

// Endpoint is one port of one pod, or one address of an EndpointList.
type Endpoint struct {
	Address string            // "ip:port", with brackets around an IPv6 address
	Host    string            // the configured DNS name; empty if it was an IP address
	Pod     Name              // or its EndpointList
	Listed  bool              // an EndpointList declares it
	Labels  map[string]string // labels of the pod or the list; read-only
	Kind    engine.Kind       // kind of its engine, if configured; otherwise it is detected
	Ready   bool
	// NodeSilent says that Ready is the last report of a node that is now silent.
	NodeSilent bool
	// Terminating says that its pod is being deleted. Until Migrates it still serves, while its
	// models get copies elsewhere; zero otherwise.
	Terminating bool
	Migrates    time.Time
	// Management is the management address of an engine whose kind has one: "ip:port", or
	// "unix:PATH" for a model runtime; otherwise empty.
	Management string
	// Ports are its further ports.
	Ports Ports
	// Class is the accelerator of its engine, from the label that the pool's settings name; empty
	// if unknown.
	Class string
	// Incarnation distinguishes restarts of the engine: the ids of those containers of its pod that
	// declare one of its ports, or of all. It is empty if unknown.
	Incarnation string
	Version
	// UID is its pod's. OnTrial says that the pod would be ready if control had reported that
	// models load there.
	UID     string
	OnTrial bool
}

// Route is an LLMRoute prepared for use.
type Route struct {
	Name Name
	// Kind is the kind of its object: an LLMRoute, or a Model or VModel that no LLMRoute admits.
	Kind string
	// UID distinguishes its object from earlier ones of the same name. It is empty if objects have
	// no UIDs.
	UID string
	// Generation is its object's generation, 0 if objects have none.
	Generation int64
	// Models are the request names that it admits in its Offer, without those that an older route
	// has.
	Models []string
	// Adapter is the engine's name of its adapter, the id of its Model, or the id of a VModel;
	// empty means the base model.
	Adapter    string
	Priority   int32
	Objectives []v1alpha1.Objective
	// Sharing is how its requests share a pool with others; nil for the default: see [Sharing.Or].
	Sharing *Sharing
	// Backends are its pools. The sum of the weights is above 0.
	Backends []Backend
	// Parents are the Gateways that an LLMRoute names.
	Parents []v1alpha1.ParentReference

	wants   []string // the names that it would admit if it were the only route
	created time.Time
	written time.Time // modification time of its file; zero without a file
}

// LeadsTo reports whether a pool is among its backends.
func (r *Route) LeadsTo(pool Name) bool {
	return slices.ContainsFunc(r.Backends, func(b Backend) bool { return b.Pool == pool })
}

// Backend is a pool with its share of a route's requests.
type Backend struct {
	Pool   Name
	Weight int32
}

// Model is a name that requests may use.
type Model struct {
	Name    string
	Created time.Time // creation time of its route; zero if the route has none
}

// Build makes a World. Each object must be valid ([CheckRoute], [CheckPool], [CheckList]);
// conflicts between objects become Problems.
func Build(s Set) *World {
	w := &World{
		Pools: make(map[Name]*Pool, len(s.Pools)), Offer: newOffer(), Objects: s.count(), Network: s.Network, Slices: s.Slices,
		Problems: slices.Clone(s.Absent),
		byName:   make(map[Name]*Route, len(s.Routes)), unrouted: make(map[Name][]*Route), at: s.At,
		lists:   make(map[Name]bool, len(s.Lists)),
		written: s.Written,
	}
	for i := range s.Lists {
		w.lists[Name{s.Lists[i].Namespace, s.Lists[i].Name}] = true
	}
	selected, settings := newSelection(&s), SettingsOf(s.Settings)
	for i := range s.Pools {
		w.addPool(&s.Pools[i], &s, selected, settings)
	}
	w.addLists(&s)
	claims := w.claims()
	w.noteShared(claims)

	// Of two routes with the same name, the older one wins, then the first by object name: Gateway
	// API's rule for conflicts.
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

// Open returns the pools without LLMRoutes, sorted: they admit what their endpoints list. The
// caller must not change it.
func (w *World) Open() []Name { return w.open }

// Addresses returns the addresses of all endpoints, sorted and without duplicates.
func (w *World) Addresses() []string {
	all := make([]string, len(w.Engines))
	for i, e := range w.Engines {
		all[i] = e.Address
	}
	return all
}

// At returns where an object is written, such as file:line; empty if unknown.
func (w *World) At(o Object) string { return w.at[o] }

// Where names an object for people, with its place if known: "LLMRoute default/sql, routes.yaml:3".
func (w *World) Where(kind string, name Name) string {
	o := Object{kind, name}
	if at := w.at[o]; at != "" {
		return o.String() + ", " + at
	}
	return o.String()
}

// WhereOf is Where for the Pod or EndpointList of an endpoint.
func (w *World) WhereOf(e *Endpoint) string {
	if w.lists[e.Pod] {
		return w.Where(v1alpha1.EndpointListKind, e.Pod)
	}
	return w.Where(PodKind, e.Pod)
}

func routeName(r *v1alpha1.LLMRoute) Name { return Name{r.Namespace, r.Name} }

func (w *World) addPool(ip *pool.InferencePool, s *Set, selected selection, settings map[Name]*v1alpha1.PoolSettings) {
	p := &Pool{
		Name: Name{ip.Namespace, ip.Name}, Created: ip.CreationTimestamp.Time, H2C: ip.Spec.AppProtocol == pool.H2C,
		Picker: pickerOf(ip.Spec.EndpointPickerRef),
	}
	if w.Pools[p.Name] != nil {
		w.problem("InferencePool %s is defined twice: Headgate uses the one of --endpoints", p.Name)
		return
	}
	w.Pools[p.Name] = p
	for _, i := range selected.pods(ip) {
		pod := &s.Pods[i]
		if !pod.IP.IsValid() || !Selects(ip.Spec.Selector.MatchLabels, pod.Labels) {
			continue
		}
		kind := kindOf(pod.Labels)
		for _, port := range ip.Spec.TargetPorts {
			if pod.Ports != nil && !slices.Contains(pod.Ports, port.Number) {
				continue
			}
			p.Endpoints = append(p.Endpoints, Endpoint{
				Address: netip.AddrPortFrom(pod.IP, uint16(port.Number)).String(),
				Pod:     pod.Name, Labels: pod.Labels, Kind: kind, Ready: pod.Ready, NodeSilent: pod.NodeSilent,
				Terminating: pod.Terminating, Migrates: pod.Migrates,
				Incarnation: incarnation(pod.Containers, enginePorts(kind, port.Number, settings[p.Name])),
				Version:     pod.Version, UID: pod.UID, OnTrial: pod.OnTrial,
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
					w.problem("EndpointList %s: %s resolves to %s: %s; Headgate ignores this address", Name{list.Namespace, list.Name}, address.Name,
						at.Addr(), loopback)
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
	// A deleted pod and its successor may share an address for a moment: the ready one answers
	// there.
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

// kindLabel returns the engine kind in the labels of a pod or a list, empty if there is none.
func kindLabel(labels map[string]string) string {
	return cmp.Or(labels[engine.KindLabel], labels[engine.LegacyKindLabel])
}

// kindOf returns the engine kind in labels. An unknown kind is ignored, so that the kind is
// detected.
func kindOf(labels map[string]string) engine.Kind {
	kind, _ := engine.ParseKind(kindLabel(labels))
	return kind
}

// noteUnknownKinds records a problem for each unknown engine kind in a pool's labels.
func (w *World) noteUnknownKinds(p *Pool) {
	noted := make(map[string]bool)
	for _, e := range p.Endpoints {
		name := kindLabel(e.Labels)
		if _, ok := engine.ParseKind(name); ok || noted[name] {
			continue
		}
		noted[name] = true
		w.problem("InferencePool %s: the labels of %s name the engine %q, which is not one of %v: extproc detects its kind from what it serves",
			p.Name, e.Pod, name, engine.Kinds())
	}
}

// ListUse is an EndpointList, and whether a pool uses it.
type ListUse struct {
	Name       Name
	UID        string // empty if objects have none
	Generation int64
	// Selected says that a pool of its namespace selects it.
	Selected bool
}

// addLists adds every EndpointList. It records a problem for each that no pool selects. A pod
// without a pool is no mistake, but a list has no other use.
func (w *World) addLists(s *Set) {
	for _, list := range s.Lists {
		use := ListUse{Name: Name{list.Namespace, list.Name}, UID: string(list.UID), Generation: list.Generation}
		use.Selected = slices.ContainsFunc(s.Pools, func(p pool.InferencePool) bool {
			return p.Namespace == list.Namespace && Selects(p.Spec.Selector.MatchLabels, list.Labels)
		})
		if w.Lists = append(w.Lists, use); !use.Selected {
			w.problem("EndpointList %s: no InferencePool of its namespace selects its labels: nothing uses it", use.Name)
		}
	}
}

// Selects reports whether labels contain all of want.
func Selects[V ~string](want map[string]V, labels map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != string(v) {
			return false
		}
	}
	return true
}

// ModelNames returns the request names that an LLMRoute asks for. The caller must not change it.
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
		Objectives: lr.Spec.Objectives, Sharing: sharingOf(lr), Parents: lr.Spec.ParentRefs, wants: ModelNames(lr),
		created: lr.CreationTimestamp.Time, written: w.written[Object{v1alpha1.LLMRouteKind, routeName(lr)}],
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
			w.fault(r.Kind, r.Name, v1alpha1.ReasonBackendNotFound,
				"spec.backendRefs names InferencePool %s, which does not exist: its requests get 503", backend.Pool)
		}
		r.Backends = append(r.Backends, backend)
		w.pools[backend.Pool] = true
	}
	w.noteFallback(r)
	for _, k := range w.add(r) {
		w.fault(r.Kind, r.Name, v1alpha1.ReasonModelNameTaken, "model %q is already admitted by LLMRoute %s, which keeps it", k.name,
			k.by.Name)
	}
	w.byName[r.Name] = r
}

func (w *World) problem(format string, args ...any) {
	w.Problems = append(w.Problems, fmt.Sprintf(format, args...))
}

// fault records a problem of one object and returns its message.
func (w *World) fault(kind string, object Name, reason, format string, args ...any) string {
	f := Fault{kind, object, reason, fmt.Sprintf(format, args...)}
	w.Faults = append(w.Faults, f)
	w.problem("%s %s: %s", f.Kind, f.Object, f.Words)
	return f.Words
}
