// Package order decides what to send to one Envoy next, and when: it is the pure half of the delta variant of Envoy's aggregated discovery
// service. A stream is a state machine of what the Envoy asks for, has been sent, and has taken or refused; what it is to have is a
// [Snapshot].
//
// Envoy takes each type of resource by itself, and orders nothing between types. So that no request meets a route whose cluster is not
// there, clusters go before the listeners and routes that name them, which wait until Envoy has taken the clusters (it takes one when it
// has its endpoints); and what leaves goes the other way round. An Envoy that is slow holds up nobody else: each has a Stream of its own.
//
// Endpoints wait for nothing, and nothing for them: an Envoy asks for those of each cluster on a stream of its own.
package order

import (
	"maps"
	"slices"
	"strconv"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Types of resources, by their URLs.
const (
	Endpoints = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	Clusters  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	Listeners = "type.googleapis.com/envoy.config.listener.v3.Listener"
	Routes    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	Secrets   = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// sequence is the order in which types are sent.
var sequence = []string{Endpoints, Clusters, Secrets, Listeners, Routes}

// Resource is one with its version, which is another where the bytes are.
type Resource struct {
	Version string
	Body    *anypb.Any
}

// Snapshot is all that an Envoy is to have, by type and name. It is not changed once it is given away.
type Snapshot map[string]map[string]Resource

// Stream is what is known of one Envoy. Make one with [New].
type Stream struct {
	types map[string]*subscription
	nonce int
}

// subscription is what is known of one type.
type subscription struct {
	all     bool            // it asks for whatever there is
	names   map[string]bool // else for these
	greeted bool            // it has been sent something, or had something when it came
	// has are the versions that it was told of, by name, those that it refused too: what it refused is not sent again. Of those that
	// are in refused it may still have another.
	has     map[string]string
	refused map[string]bool
	// nonce is that of the response that it has not answered, empty for none, and pending what that has: versions, empty for what is
	// to go.
	nonce   string
	pending map[string]string
}

// New returns the Stream of an Envoy that has asked for nothing yet.
func New() *Stream { return &Stream{types: make(map[string]*subscription)} }

// Answer is what an Envoy says of a response.
type Answer struct {
	Type string
	// Names are the resources that the response had or took away.
	Names []string
	// Versions are those of the resources that it had, by name. An Envoy that refuses a response of several may have taken some of them.
	Versions map[string]string
	// Refused is why, in Envoy's words; empty if it has taken them.
	Refused string
}

// Hear takes a request. It returns what the Envoy says of a response; false where it only asks.
func (s *Stream) Hear(r *discoveryv3.DeltaDiscoveryRequest) (Answer, bool) {
	sub := s.types[r.GetTypeUrl()]
	first := sub == nil
	if first {
		sub = &subscription{names: make(map[string]bool), has: make(map[string]string), refused: make(map[string]bool), greeted: len(r.GetInitialResourceVersions()) > 0}
		s.types[r.GetTypeUrl()] = sub
	}
	sub.subscribe(r, first)
	maps.Copy(sub.has, r.GetInitialResourceVersions()) // of the first alone
	if r.GetResponseNonce() == "" || r.GetResponseNonce() != sub.nonce {
		return Answer{}, false
	}
	a := Answer{Type: r.GetTypeUrl(), Names: slices.Sorted(maps.Keys(sub.pending)), Versions: make(map[string]string, len(sub.pending)), Refused: r.GetErrorDetail().GetMessage()}
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

// subscribe takes what a request asks for. A first one that names nothing asks for all (xDS, wildcard subscriptions).
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
		delete(sub.has, name) // it asks anew: whatever it had, it is told
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

// wants says whether the Envoy asks for a resource.
func (sub *subscription) wants(name string) bool { return sub.all || sub.names[name] }

// behind are the resources that the Envoy has not what it is to have of: those to send, and those to take away.
func (sub *subscription) behind(all map[string]Resource) (send, remove []string) {
	if sub.all {
		for name, r := range all {
			if sub.has[name] != r.Version {
				send = append(send, name)
			}
		}
	} else {
		for name := range sub.names { // one among thousands, where it is endpoints
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

// Next returns the responses that can be sent now, in order; nil if there are none. It is to be called after each request, and when what
// the Envoy is to have changes.
func (s *Stream) Next(to Snapshot) []*discoveryv3.DeltaDiscoveryResponse {
	var all []*discoveryv3.DeltaDiscoveryResponse
	clusters := s.settled(Clusters, to, false)
	// Nobody knows which routes an Envoy has that is back and has not asked for them yet.
	routes := s.types[Listeners] != nil && (s.types[Routes] != nil || len(to[Listeners]) == 0) && s.settled(Listeners, to, true) && s.settled(Routes, to, false) &&
		!s.refuses(Routes) // what it has in their place may name clusters that nothing else does
	for _, of := range sequence {
		sub := s.types[of]
		if sub == nil || sub.nonce != "" { // what changes meanwhile goes together, after the answer
			continue
		}
		if (of == Listeners || of == Routes) && !clusters {
			continue
		}
		send, remove := sub.behind(to[of])
		if of == Clusters && (!clusters || !routes) {
			remove = nil
		}
		if of == Endpoints { // they leave with their cluster, which serves with them until then
			remove = nil
		}
		if r := s.response(of, sub, to[of], send, remove); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// settled says whether an Envoy has of a type what it is to have, or has refused it; with removals if those count. What it never asked
// for is settled: there is nothing that it could miss.
func (s *Stream) settled(of string, to Snapshot, removals bool) bool {
	sub := s.types[of]
	if sub == nil {
		return true
	}
	send, remove := sub.behind(to[of])
	return sub.nonce == "" && len(send) == 0 && (!removals || len(remove) == 0)
}

// Settled says whether an Envoy has, of all that it asks for, what it is to have, or has refused it.
func (s *Stream) Settled(to Snapshot) bool {
	for _, of := range sequence {
		if !s.settled(of, to, true) {
			return false
		}
	}
	return true
}

// refuses says whether an Envoy has refused what it is to have of a type.
func (s *Stream) refuses(of string) bool { return s.types[of] != nil && len(s.types[of].refused) > 0 }

// response makes a response, nil if it would say nothing. An Envoy that asks for all waits for the first one, even if it is empty.
func (s *Stream) response(of string, sub *subscription, all map[string]Resource, send, remove []string) *discoveryv3.DeltaDiscoveryResponse {
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
