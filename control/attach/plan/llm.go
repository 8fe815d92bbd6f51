package plan

import (
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// llmRules returns the rules for inference at a listener. All LLMRoutes of the listener, and its
// pools without an LLMRoute, share them, and they name no route. extproc chooses the pool by the
// model, so adding or removing a model does not change the rules. The argument open is the cluster
// of the pool if there is only one pool and it fails open; otherwise it is empty.
func llmRules(open string) []Rule {
	add := func(all []Rule, kind PathKind, path, open string) []Rule {
		return append(all, Rule{Match: Match{Kind: kind, Path: path}, Forward: &Forward{Models: true, Open: open}})
	}
	var all []Rule
	for _, path := range wire.InferencePaths {
		all = add(all, Exact, path, open)
	}
	for _, path := range wire.V2Paths {
		all = add(all, Exact, path, "")
	}
	all = add(all, Prefix, wire.V2ModelsPath, "")
	for _, path := range wire.CallsPaths {
		all = append(all, Rule{Match: Match{Kind: Prefix, Path: path}, Forward: &Forward{Models: true, Calls: true}})
	}
	all = add(all, Exact, wire.HealthPath, "")
	all = add(all, Prefix, wire.ModelsPath, "")
	return add(all, Prefix, wire.ResponsesPath, "")
}

// addPools adds the pools of an LLMRoute to the plan's clusters, and returns their names.
func (b *builder) addPools(r *v1alpha1.LLMRoute, of objects.Object) (all []objects.Name) {
	v := new(verdict)
	for _, ref := range r.Spec.BackendRefs {
		name := objects.Name{Namespace: r.Namespace, Name: ref.Name}
		all = append(all, name)
		p := b.pools[name]
		if p == nil {
			v.ref(gatewayv1.RouteReasonBackendNotFound, "InferencePool %s does not exist: its requests get 503", name)
			continue
		}
		if !b.addPool(name, p) {
			v.ref(gatewayv1.RouteReasonUnsupportedProtocol, "InferencePool %s: %s: its requests get 503", name, p.Refused.Message)
		}
	}
	if f := r.Spec.Fallback; f != nil && f.Pool != "" {
		b.addFallback(objects.Name{Namespace: r.Namespace, Name: f.Pool}, v)
	}
	b.verdicts[of] = v.result()
	return all
}

// addFallback adds the pool of a route's fallback to the plan's clusters.
func (b *builder) addFallback(name objects.Name, v *verdict) {
	p := b.pools[name]
	if p == nil {
		v.ref(gatewayv1.RouteReasonBackendNotFound, "spec.fallback names InferencePool %s, which does not exist: the route has no fallback",
			name)
		return
	}
	if !b.addPool(name, p) {
		v.ref(gatewayv1.RouteReasonUnsupportedProtocol, "spec.fallback names InferencePool %s: %s: the route has no fallback", name,
			p.Refused.Message)
	}
}

// sharingHeaders returns the names of tenant and program headers of the LLMRoutes whose requests
// these pools may serve, sorted. It leaves out names that envoy.yaml forwards, and the header that
// clients of a Gateway can set although it is Headgate's.
func sharingHeaders(routes []v1alpha1.LLMRoute, pools map[objects.Name]bool) (all []string) {
	for i := range routes {
		r := &routes[i]
		if r.Spec.TenantHeader == "" && r.Spec.ProgramHeader == "" {
			continue
		}
		if !slices.ContainsFunc(r.Spec.BackendRefs, func(ref v1alpha1.BackendReference) bool {
			return pools[objects.Name{Namespace: r.Namespace, Name: ref.Name}]
		}) {
			continue
		}
		for _, header := range []v1alpha1.SharingHeader{r.Spec.TenantHeader, r.Spec.ProgramHeader} {
			name := string(header)
			if name != "" && name != wire.ClientHeader && !strings.HasPrefix(name, wire.TenantPrefix) &&
				!strings.HasPrefix(name, wire.ProgramPrefix) {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// addPool adds the clusters of a pool to the plan, and reports whether the pool can serve.
func (b *builder) addPool(name objects.Name, p *pooled) bool {
	b.used[name] = true
	if p.Refused != (attach.Verdict{}) {
		return false
	}
	b.use(p.cluster)
	b.use(p.calls())
	return true
}

// oldestModels adds the clusters of a listener's pools to the plan. The result oldest is the index
// of the oldest LLMRoute, -1 if there is none. The result open is the cluster of the pool if the
// listener has only one pool and it fails open; otherwise it is empty.
func (b *builder) oldestModels(l *attach.Listener) (oldest int, open string) {
	oldest = -1
	pools := make(map[objects.Name]bool)
	for age, at := range l.Routes {
		if at.Route.Kind != v1alpha1.LLMRouteKind {
			continue
		}
		for _, name := range b.addPools(b.llm[at.Route.Name], at.Route) {
			pools[name] = true
		}
		if oldest < 0 {
			oldest = age
		}
	}
	for _, name := range l.Pools {
		b.addPool(name, b.pools[name])
		pools[name] = true
	}
	for name := range pools {
		if p := b.pools[name]; len(pools) == 1 && p != nil && p.cluster.Open {
			open = p.cluster.Name
		}
	}
	return oldest, open
}
