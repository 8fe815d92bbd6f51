package route_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

func TestATargetCarriesWhatItsRouteSays(t *testing.T) {
	objectives := []v1alpha1.Objective{{Type: v1alpha1.TimeToFirstToken}}
	w := world(aRoute("sql", v1alpha1.LLMRouteSpec{
		BackendRefs: []v1alpha1.BackendReference{{Name: "base"}},
		ModelNames:  []string{"text-to-sql"}, Adapter: &v1alpha1.Adapter{Name: "sql-v2"}, Priority: 7, Objectives: objectives,
	}))
	got, err := route.Find(w, "text-to-sql", 0)
	want := route.Target{
		Route: objects.Name{Namespace: "ns", Name: "sql"}, Pool: objects.Name{Namespace: "ns", Name: "base"},
		Adapter: "sql-v2", Priority: 7, Objectives: objectives,
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := route.Find(w, "sql-v2", 0); !errors.Is(err, route.ErrUnknownModel) {
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
		target, err := route.Find(w, "m", random.Uint64())
		if err != nil {
			t.Fatal(err)
		}
		got[target.Pool.Name]++
	}
	if got["none"] != 0 || got["one"] < 900 || got["one"] > 1100 || got["one"]+got["three"] != 4000 {
		t.Errorf("of 4000 requests with weights 1, 0 and 3 the pools got %v", got)
	}
}
