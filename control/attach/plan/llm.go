package plan

import (
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// llmRules returns the rules of all LLMRoutes of a listener together: extproc finds by the model which of them has a request, so that
// a model that comes or goes changes nothing here. Of says no route.
func llmRules() []Rule {
	add := func(all []Rule, kind PathKind, path string) []Rule {
		return append(all, Rule{Match: Match{Kind: kind, Path: path}, Forward: &Forward{Models: true}})
	}
	var all []Rule
	for _, path := range wire.InferencePaths {
		all = add(all, Exact, path)
	}
	all = add(all, Exact, wire.HealthPath)
	all = add(all, Prefix, wire.ModelsPath)
	return add(all, Prefix, wire.ResponsesPath)
}

// addPools adds the pools of an LLMRoute to the plan's clusters.
func (b *builder) addPools(r *v1alpha1.LLMRoute, of objects.Object) {
	v := new(verdict)
	for _, ref := range r.Spec.BackendRefs {
		name := objects.Name{Namespace: r.Namespace, Name: ref.Name}
		if !b.pools[name] {
			v.ref(gatewayv1.RouteReasonBackendNotFound, "InferencePool %s does not exist: its requests get 503", name)
			continue
		}
		b.use(poolCluster(name))
	}
	b.verdicts[of] = v.result()
}

// oldestModels adds the pools of the LLMRoutes of a listener, and returns which of its routes is the oldest of them; -1 if it has none.
func (b *builder) oldestModels(l *attach.Listener) int {
	oldest := -1
	for age, at := range l.Routes {
		if at.Route.Kind != v1alpha1.LLMRouteKind {
			continue
		}
		b.addPools(b.llm[at.Route.Name], at.Route)
		if oldest < 0 {
			oldest = age
		}
	}
	return oldest
}
