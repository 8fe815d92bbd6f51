// Package order decides which response to send to one Envoy next, and when. It implements delta ADS
// without I/O. A stream is a state machine: it records the resources that the Envoy subscribes to,
// those that it was sent, and those that it accepted or rejected. A [Snapshot] is the state that
// the Envoy should reach.
//
// Envoy applies each resource type separately, in no defined order. No route may name a cluster
// that Envoy does not have yet. So the stream sends clusters first. Listeners and routes that name
// these clusters wait for the ACK, which Envoy sends when it has the clusters' endpoints. Removals
// use the opposite order. Each Envoy has its own Stream, so a slow Envoy does not delay others.
//
// Endpoints are independent: Envoy subscribes to those of each cluster on a separate stream.
package order

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Type URLs of xDS resources.
const (
	Endpoints = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	Clusters  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	Listeners = "type.googleapis.com/envoy.config.listener.v3.Listener"
	Routes    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	Secrets   = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// sequence is the order in which resource types are sent.
var sequence = []string{Endpoints, Clusters, Secrets, Listeners, Routes}

// Resource is an encoded resource. Its version changes whenever its bytes change.
type Resource struct {
	Version string
	Body    *anypb.Any
}

// Snapshot contains all resources that an Envoy should have, by type and name. It is immutable once
// it is shared.
type Snapshot map[string]map[string]Resource

// Stream is the state of one Envoy. Make one with [New].
type Stream struct {
	types map[string]*subscription
	nonce int
}

// subscription is the state of one resource type.
type subscription struct {
	all     bool            // wildcard subscription
	names   map[string]bool // subscribed names, if not all
	greeted bool            // Envoy was sent a response, or had resources at the start
	// has is the last version that was sent of each resource, by name. It includes rejected
	// versions, so they are not sent again. For a name in refused, Envoy may still use an older
	// version.
	has     map[string]string
	refused map[string]bool
	// nonce is that of the unanswered response, empty for none. pending contains the versions in
	// that response; the version of a removed resource is empty.
	nonce   string
	pending map[string]string
}

// New returns the Stream of an Envoy that has not subscribed yet.
func New() *Stream { return &Stream{types: make(map[string]*subscription)} }

// String returns the state of each type, for tests and debugging.
func (s *Stream) String() string {
	var out strings.Builder
	for _, of := range sequence {
		if sub := s.types[of]; sub != nil {
			fmt.Fprintf(&out, "%s: wildcard %v, names %v, has %v, rejected %v, unanswered %v\n", of[strings.LastIndex(of, ".")+1:], sub.all,
				slices.Sorted(maps.Keys(sub.names)), sub.has, slices.Sorted(maps.Keys(sub.refused)), sub.pending)
		}
	}
	return out.String()
}

// Answer is an Envoy's ACK or NACK.
type Answer struct {
	Type string
	// Names are the resources that the response sent or removed.
	Names []string
	// Versions contains the versions of these resources, by name. After a NACK of several
	// resources, Envoy may have accepted some of them.
	Versions map[string]string
	// Refused is Envoy's error; empty for an ACK.
	Refused string
}

// Hear processes a request of Envoy. It returns the ACK or NACK in it, and false if the request
// only subscribes.
func (s *Stream) Hear(r *discoveryv3.DeltaDiscoveryRequest) (Answer, bool) {
	sub := s.types[r.GetTypeUrl()]
	first := sub == nil
	if first {
		sub = &subscription{
			names: make(map[string]bool), has: make(map[string]string), refused: make(map[string]bool),
			greeted: len(r.GetInitialResourceVersions()) > 0,
		}
		s.types[r.GetTypeUrl()] = sub
	}
	sub.subscribe(r, first)
	maps.Copy(sub.has, r.GetInitialResourceVersions()) // only the first request contains versions
	if r.GetResponseNonce() == "" || r.GetResponseNonce() != sub.nonce {
		return Answer{}, false
	}
	a := Answer{
		Type: r.GetTypeUrl(), Names: slices.Sorted(maps.Keys(sub.pending)), Versions: make(map[string]string, len(sub.pending)),
		Refused: r.GetErrorDetail().GetMessage(),
	}
	if r.GetErrorDetail() != nil && a.Refused == "" {
		a.Refused = "Envoy does not say why"
	}
	for name, version := range sub.pending {
		delete(sub.refused, name)
		if version == "" {
			delete(sub.has, name)
			continue
		}
		sub.has[name], a.Versions[name] = version, version
		if a.Refused != "" {
			sub.refused[name] = true
		}
	}
	sub.nonce, sub.pending = "", nil
	return a, true
}

// subscribe updates the subscription. If the first request names no resource, it is a wildcard
// subscription.
func (sub *subscription) subscribe(r *discoveryv3.DeltaDiscoveryRequest, first bool) {
	if first && len(r.GetResourceNamesSubscribe()) == 0 {
		sub.all = true
	}
	for _, name := range r.GetResourceNamesSubscribe() {
		if name == "*" {
			sub.all = true
			continue
		}
		sub.names[name] = true
		delete(sub.has, name) // Envoy subscribes again, so send the resource again
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		if name == "*" {
			sub.all = false
			continue
		}
		delete(sub.names, name)
		delete(sub.has, name)
		delete(sub.refused, name)
	}
}

// wants reports whether Envoy subscribes to a resource.
func (sub *subscription) wants(name string) bool { return sub.all || sub.names[name] }

// behind returns the names of the resources to send, and of those to remove.
func (sub *subscription) behind(all map[string]Resource) (send, remove []string) {
	if sub.all {
		for name, r := range all {
			if sub.has[name] != r.Version {
				send = append(send, name)
			}
		}
	} else {
		for name := range sub.names { // fast for endpoints: a stream subscribes to one of thousands
			if r, there := all[name]; there && sub.has[name] != r.Version {
				send = append(send, name)
			}
		}
	}
	for name := range sub.has {
		if _, there := all[name]; !there && sub.wants(name) {
			remove = append(remove, name)
		}
	}
	slices.Sort(send)
	slices.Sort(remove)
	return send, remove
}

// Next returns the responses to send now, in order. Call it after each request, and whenever the
// snapshot changes.
func (s *Stream) Next(to Snapshot) []*discoveryv3.DeltaDiscoveryResponse {
	var all []*discoveryv3.DeltaDiscoveryResponse
	clusters := s.settled(Clusters, to, false)
	// A reconnected Envoy that has not subscribed to routes yet may still use any old route.
	routes := s.types[Listeners] != nil && (s.types[Routes] != nil || len(to[Listeners]) == 0) && s.settled(Listeners, to, true) &&
		s.settled(Routes, to, false) &&
		!s.refuses(Routes) // Envoy keeps the old routes, which may name clusters to remove
	for _, of := range sequence {
		sub := s.types[of]
		if sub == nil || sub.nonce != "" { // wait for the answer; the next response then contains all changes
			continue
		}
		if (of == Listeners || of == Routes) && !clusters {
			continue
		}
		send, remove := sub.behind(to[of])
		if of == Clusters && (!clusters || !routes) {
			remove = nil
		}
		if of == Endpoints { // Envoy removes endpoints with their cluster, which serves until then
			remove = nil
		}
		if r := s.response(of, sub, to[of], send, remove); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// settled reports whether Envoy has answered all resources of a type, and all removals if removals
// is set. A type without a subscription is settled.
func (s *Stream) settled(of string, to Snapshot, removals bool) bool {
	sub := s.types[of]
	if sub == nil {
		return true
	}
	send, remove := sub.behind(to[of])
	return sub.nonce == "" && len(send) == 0 && (!removals || len(remove) == 0)
}

// Settled reports whether Envoy has answered all resources that it subscribes to.
func (s *Stream) Settled(to Snapshot) bool {
	for _, of := range sequence {
		if !s.settled(of, to, true) {
			return false
		}
	}
	return true
}

// refuses reports whether Envoy rejects the current version of any resource of a type.
func (s *Stream) refuses(of string) bool { return s.types[of] != nil && len(s.types[of].refused) > 0 }

// response makes a response, and returns nil if it would be empty. The first response to a wildcard
// subscription is sent even if it is empty.
func (s *Stream) response(of string, sub *subscription, all map[string]Resource, send,
	remove []string,
) *discoveryv3.DeltaDiscoveryResponse {
	if len(send)+len(remove) == 0 && (!sub.all || sub.greeted) {
		return nil
	}
	sub.greeted = true
	s.nonce++
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: of, Nonce: strconv.Itoa(s.nonce), RemovedResources: remove}
	sub.nonce, sub.pending = r.GetNonce(), make(map[string]string, len(send)+len(remove))
	for _, name := range send {
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: name, Version: all[name].Version, Resource: all[name].Body})
		sub.pending[name] = all[name].Version
	}
	for _, name := range remove {
		sub.pending[name] = ""
	}
	return r
}
