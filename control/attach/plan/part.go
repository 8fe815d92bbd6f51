package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"reflect"
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// part is the part of a plan that results from the routes of one listener.
type part struct {
	routes   []attach.Attached // the listener's routes; input
	unrouted []objects.Name    // the listener's pools without an LLMRoute; input
	hosts    []Host
	clusters map[string]Cluster    // clusters that the rules name, by name
	used     map[objects.Name]bool // pools that the routes name
	applied  map[objects.Name]*policy
	verdicts map[objects.Object]RouteVerdict
	contents map[objects.Object]string // hash of each route's rules, as in [Plan.Contents]
}

func newPart() *part {
	return &part{
		clusters: make(map[string]Cluster), used: make(map[objects.Name]bool), applied: make(map[objects.Name]*policy),
		verdicts: make(map[objects.Object]RouteVerdict), contents: make(map[objects.Object]string),
	}
}

// add adds the part of another listener to p, except its hosts.
func (p *part) add(more *part) {
	maps.Copy(p.clusters, more.clusters)
	maps.Copy(p.used, more.used)
	maps.Copy(p.applied, more.applied)
	maps.Copy(p.verdicts, more.verdicts)
	for of, content := range more.contents {
		p.contents[of] += content
	}
}

// at identifies a listener by the index of its Gateway and its index in that Gateway.
type at struct{ gateway, listener int }

// listener returns the part of a listener. It reuses the part of the last plans if the listener's
// routes and pools are the same.
func (b *builder) listener(key at, port *Port, l *attach.Listener) *part {
	is := b.last[key]
	if is == nil || !b.sameRoutes(is.routes, l.Routes) || !slices.Equal(is.unrouted, l.Pools) {
		is = newPart()
		b.part, is.routes, is.unrouted = is, l.Routes, l.Pools
		is.hosts = b.hosts(port, l)
		is.contents = contentsOf(port.Number, l, is.hosts)
	}
	b.served[key] = is
	return is
}

// made contains the input of plans, and the parts of the plans.
type made struct {
	network *objects.Network
	known   Known
	beside  beside
	served  map[at]*part
}

// stillServes reports whether all input except routes is the same, so that parts whose routes have
// not changed can be reused.
func (m *made) stillServes(n *objects.Network, known Known) bool {
	return m.network != nil && reflect.DeepEqual(withoutRoutes(m.network), withoutRoutes(n)) && reflect.DeepEqual(m.known, known)
}

func withoutRoutes(n *objects.Network) objects.Network {
	is := *n
	is.HTTPRoutes, is.GRPCRoutes, is.Routes = nil, nil, nil
	return is
}

// sameRoutes reports whether two lists contain the same routes, none of which has changed.
func (b *builder) sameRoutes(were, are []attach.Attached) bool {
	return slices.EqualFunc(were, are, func(was, is attach.Attached) bool {
		return was.Route == is.Route && !b.changed[is.Route]
	})
}

// changed returns the routes that are new or have changed.
func changed(were, are *objects.Network) map[objects.Object]bool {
	all := make(map[objects.Object]bool)
	note := func(kind string) func(objects.Name) {
		return func(name objects.Name) { all[objects.Object{Kind: kind, Name: name}] = true }
	}
	eachChanged(were.HTTPRoutes, are.HTTPRoutes, func(r *gatewayv1.HTTPRoute) (objects.Name, any) {
		return objects.Name{Namespace: r.Namespace, Name: r.Name}, &r.Spec
	}, note(objects.HTTPRouteKind))
	eachChanged(were.GRPCRoutes, are.GRPCRoutes, func(r *gatewayv1.GRPCRoute) (objects.Name, any) {
		return objects.Name{Namespace: r.Namespace, Name: r.Name}, &r.Spec
	}, note(objects.GRPCRouteKind))
	eachChanged(were.Routes, are.Routes, func(r *v1alpha1.LLMRoute) (objects.Name, any) {
		return objects.Name{Namespace: r.Namespace, Name: r.Name}, &r.Spec
	}, note(v1alpha1.LLMRouteKind))
	return all
}

// eachChanged calls note for each new or changed object. Both lists are sorted by name. Unchanged
// objects usually share memory with the old ones, so the comparison is fast.
func eachChanged[T any](were, are []T, of func(*T) (name objects.Name, spec any), note func(objects.Name)) {
	for i := range are {
		name, spec := of(&are[i])
		for len(were) > 0 {
			was, said := of(&were[0])
			order := was.Compare(name)
			if order <= 0 {
				were = were[1:]
			}
			if order == 0 && reflect.DeepEqual(said, spec) {
				name = objects.Name{} // the object has not changed
			}
			if order >= 0 {
				break
			}
		}
		if name != (objects.Name{}) {
			note(name)
		}
	}
}

// contentsOf returns, for each route, a hash of its rules at a listener.
func contentsOf(port int32, l *attach.Listener, hosts []Host) map[objects.Object]string {
	sums := make(map[objects.Object]hash.Hash)
	for _, h := range hosts {
		for _, r := range h.Rules {
			if r.Of == (objects.Object{}) {
				continue
			}
			if sums[r.Of] == nil {
				sums[r.Of] = sha256.New()
			}
			rule, _ := json.Marshal(r) // a Rule contains only types that JSON can encode
			fmt.Fprintf(sums[r.Of], "%d %s %q %s\n", port, l, h.Domain, rule)
		}
	}
	all := make(map[objects.Object]string, len(sums))
	for of, sum := range sums {
		all[of] = hex.EncodeToString(sum.Sum(nil)[:8])
	}
	return all
}
