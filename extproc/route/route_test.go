package route_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

func world(routes ...v1alpha1.LLMRoute) *objects.World {
	return objects.Build(objects.Set{Routes: routes})
}

func aRoute(name string, spec v1alpha1.LLMRouteSpec) v1alpha1.LLMRoute {
	return v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: spec}
}

func TestTargetOfARoute(t *testing.T) {
	objectives := []v1alpha1.Objective{{Type: v1alpha1.TimeToFirstToken}}
	w := world(aRoute("sql", v1alpha1.LLMRouteSpec{
		BackendRefs: []v1alpha1.BackendReference{{Name: "base"}},
		ModelNames:  []string{"text-to-sql"}, Adapter: &v1alpha1.Adapter{Name: "sql-v2"}, Priority: 7, Objectives: objectives,
		Share: new(int32(3)),
	}))
	got, err := route.Find(w, route.Ask{Model: "text-to-sql"})
	want := route.Target{
		Route: objects.Name{Namespace: "ns", Name: "sql"}, Pool: objects.Name{Namespace: "ns", Name: "base"},
		Adapter: "sql-v2", Priority: 7, Objectives: objectives, Sharing: &objects.Sharing{Share: 3},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := route.Find(w, route.Ask{Model: "sql-v2"}); !errors.Is(err, route.ErrUnknownModel) {
		t.Errorf("the adapter's own name is admitted: %v", err)
	}
}

func TestPoolsShareByWeight(t *testing.T) {
	three, none := int32(3), int32(0)
	w := world(aRoute("m", v1alpha1.LLMRouteSpec{BackendRefs: []v1alpha1.BackendReference{
		{Name: "one"}, {Name: "none", Weight: &none}, {Name: "three", Weight: &three},
	}}))
	random := rand.New(rand.NewPCG(1, 2))
	got := map[string]int{}
	for range 4000 {
		target, err := route.Find(w, route.Ask{Model: "m", Random: random.Uint64()})
		if err != nil {
			t.Fatal(err)
		}
		got[target.Pool.Name]++
	}
	if got["none"] != 0 || got["one"] < 900 || got["one"] > 1100 || got["one"]+got["three"] != 4000 {
		t.Errorf("of 4000 requests with weights 1, 0 and 3 the pools got %v", got)
	}
}

// The pool of a request comes from the model's route, the gateway or the default, never from a
// guess.
func TestPoolOfARequest(t *testing.T) {
	name := func(n string) objects.Name { return objects.Name{Namespace: "ns", Name: n} }
	routed, open := pool.InferencePool{}, pool.InferencePool{}
	routed.Namespace, routed.Name = "ns", "routed"
	open.Namespace, open.Name = "ns", "open"
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{routed, open},
		Routes: []v1alpha1.LLMRoute{aRoute("m", v1alpha1.LLMRouteSpec{
			BackendRefs: []v1alpha1.BackendReference{{Name: "routed"}}, Adapter: &v1alpha1.Adapter{Name: "a"}, ModelNames: []string{"m"},
		})},
	})
	ours := route.Target{Route: name("m"), Pool: name("routed"), Adapter: "a"}
	for _, c := range []struct {
		name string
		ask  route.Ask
		want route.Target
		err  error
	}{
		{"by its route", route.Ask{Model: "m"}, ours, nil},
		{"its route before the default", route.Ask{Model: "m", Default: name("open")}, ours, nil},
		{"its route within what the gateway asks for", route.Ask{Model: "m", Given: name("routed")}, ours, nil},
		{
			"its route names another pool than the gateway's",
			route.Ask{Model: "m", Given: name("open")},
			route.Target{Pool: name("open"), Open: true},
			nil,
		},
		{
			"no route, the gateway's pool has none",
			route.Ask{Model: "x", Given: name("open"), Default: name("routed")},
			route.Target{Pool: name("open"), Open: true},
			nil,
		},
		{
			"no route, the gateway's pool has some",
			route.Ask{Model: "x", Given: name("routed"), Default: name("open")},
			route.Target{},
			route.ErrUnknownModel,
		},
		{"no route, a default", route.Ask{Model: "x", Default: name("open")}, route.Target{Pool: name("open"), Open: true}, nil},
		{"no route, no default", route.Ask{Model: "x"}, route.Target{}, route.ErrUnknownModel},
		{"no model, the gateway's pool", route.Ask{Given: name("routed")}, route.Target{Pool: name("routed"), Open: true}, nil},
		{"no model, a default", route.Ask{Default: name("routed")}, route.Target{Pool: name("routed"), Open: true}, nil},
		{"nothing is known", route.Ask{}, route.Target{}, route.ErrUnknownPool},
	} {
		got, err := route.Find(w, c.ask)
		if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, c.err) {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, diff)
		}
	}
}
