// Package envoy turns a plan into xDS resources: listeners, routes and clusters. It does no I/O.
// Filters, limits, local replies, the access log, and how requests reach engines are only defined
// in envoy.yaml.
package envoy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	// The extensions that envoy.yaml uses: decoding an Any needs the package of its message.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/content_parsers/json/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/matcher/action/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/json_to_metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/sse_to_metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/subset/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/input_matchers/metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/control/attach/plan"
)

// Template is envoy.yaml, parsed. It is immutable. Make one with [Read].
type Template struct {
	bootstrap      *bootstrapv3.Bootstrap
	listener       *listenerv3.Listener
	manager        *hcmv3.HttpConnectionManager
	copies         *hcmv3.HttpFilter // filter that copies requests and responses to extproc; manager lacks it
	host           *routev3.VirtualHost
	forward        *routev3.RouteAction // route to endpoints
	pool           *clusterv3.Cluster
	answer         *routev3.RouteAction // route to endpoints for gRPC calls
	calls          *clusterv3.Cluster
	unread         *extprocv3.ExtProcOverrides // ext_proc overrides of gRPC calls
	messageTimeout *durationpb.Duration        // timeout of a picker's response
	headers        []string                    // request headers that ext_proc forwards besides those in manager
}

// Read parses envoy.yaml.
func Read(text []byte) (*Template, error) {
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	t := &Template{bootstrap: new(bootstrapv3.Bootstrap), manager: new(hcmv3.HttpConnectionManager)}
	if err := protojson.Unmarshal(asJSON, t.bootstrap); err != nil {
		return nil, err
	}
	all := t.bootstrap.GetStaticResources()
	if len(all.GetListeners()) != 1 || len(all.GetListeners()[0].GetFilterChains()) != 1 ||
		len(all.GetListeners()[0].GetFilterChains()[0].GetFilters()) != 1 {
		return nil, errors.New("want one listener with one filter")
	}
	t.listener = all.GetListeners()[0]
	t.listener.AdditionalAddresses = nil // a Gateway uses its own addresses
	if err := t.listener.GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(t.manager); err != nil {
		return nil, err
	}
	t.manager.HttpFilters = slices.DeleteFunc(t.manager.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool {
		if f.GetName() == copiesFilter {
			t.copies = f
		}
		return f.GetDisabled() // only a Gateway's settings add disabled filters
	})
	if !t.copies.GetDisabled() {
		return nil, fmt.Errorf("want a filter %s that is disabled", copiesFilter)
	}
	hosts := t.manager.GetRouteConfig().GetVirtualHosts()
	if len(hosts) != 1 || len(hosts[0].GetRoutes()) == 0 {
		return nil, errors.New("want one virtual host with routes")
	}
	t.host = hosts[0]
	t.forward = t.host.GetRoutes()[len(t.host.GetRoutes())-1].GetRoute() // action of the catch-all route
	for _, c := range all.GetClusters() {
		switch c.GetName() {
		case wire.EndpointsCluster:
			t.pool = c
		case wire.CallsCluster:
			t.calls = c
		}
	}
	for _, f := range t.manager.GetHttpFilters() {
		if is := new(extprocv3.ExternalProcessor); f.GetTypedConfig().UnmarshalTo(is) == nil {
			t.messageTimeout = is.GetMessageTimeout()
		}
	}
	if len(t.manager.GetEarlyHeaderMutationExtensions()) != 1 {
		return nil, errors.New("want one early_header_mutation_extension")
	}
	if t.forward.GetCluster() != wire.EndpointsCluster || t.pool == nil {
		return nil, fmt.Errorf("want a last route that leads to a cluster %s", wire.EndpointsCluster)
	}
	for _, r := range t.host.GetRoutes() {
		per := new(extprocv3.ExtProcPerRoute)
		if r.GetMatch().GetGrpc() != nil && r.GetTypedPerFilterConfig()[extProcFilter].UnmarshalTo(per) == nil {
			t.answer, t.unread = r.GetRoute(), per.GetOverrides()
		}
	}
	if t.answer.GetCluster() != wire.CallsCluster || t.calls == nil || t.unread == nil {
		return nil, fmt.Errorf("want a route for gRPC that leads to a cluster %s, and says how ext_proc sees it", wire.CallsCluster)
	}
	return t, nil
}

// wants are the changes that a plan makes to a Template.
type wants struct {
	idleTimeout time.Duration // idle timeout of responses; 0: that of the Template
	copies      bool          // add the filter that copies requests and responses
	headers     string        // names of request headers for extproc, separated by commas
}

func wantsOf(p *plan.Plan) wants { return wants{p.IdleTimeout, p.Copies, strings.Join(p.Headers, ",")} }

// as returns the Template with the changes of a plan.
func (t *Template) as(w wants) *Template {
	is := *t
	if w.idleTimeout != 0 {
		is.forward = proto.CloneOf(t.forward)
		is.forward.IdleTimeout = durationpb.New(w.idleTimeout)
	}
	if w.copies {
		is.manager = proto.CloneOf(t.manager)
		router := len(is.manager.GetHttpFilters()) - 1 // the router is always last
		is.manager.HttpFilters = slices.Insert(is.manager.GetHttpFilters(), router, t.copies)
	}
	if w.headers != "" {
		is.headers = strings.Split(w.headers, ",")
	}
	return &is
}
