package metrics_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/objects"
)

// document is one YAML document of the page of profiles.
type document struct {
	Pool, Accelerator, Why, Since string
	Trusted                       bool
	Measurements                  int
	Off                           float64
	Factors                       map[string]float64
	Profile                       v1alpha1.PoolProfile
}

// inPool returns a World with one pool. Its one endpoint has an accelerator, and the pool has this
// profile.
func inPool(is *v1alpha1.PoolProfile) *objects.World {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": "llama"}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	s := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
	s.Spec.PoolRef.Name, s.Spec.Profile = "pool", is
	list := objects.List{}
	list.Namespace, list.Name, list.Labels = "ns", "l", map[string]string{"app": "llama", "gpu": "A100 & more"}
	list.Spec.Addresses = []string{"10.0.0.1:8000"}
	return objects.Build(objects.Set{Pools: []pool.InferencePool{p}, Settings: []v1alpha1.PoolSettings{s}, Lists: []objects.List{list}})
}

// documents returns the documents of the profiles page.
func documents(t *testing.T, f *fleet.Fleet) (all []document) {
	t.Helper()
	code, page := get(t, metrics.New(f), "/profiles")
	if code != http.StatusOK {
		t.Fatal(code)
	}
	for text := range strings.SplitSeq(page, "---\n") {
		var d document
		if err := yaml.UnmarshalStrict([]byte(text), &d); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if d.Pool != "" {
			all = append(all, d)
		}
	}
	return all
}

// If a profile from the page is copied into a PoolSettings, the pool gets the same profile, whether
// the original was configured or learned.
func TestProfileIsPrintedAsItIsWritten(t *testing.T) {
	now := time.Unix(1e9, 0)
	f := fleet.New(fleet.Config{Now: func() time.Time { return now }})
	for _, is := range []*v1alpha1.PoolProfile{
		nil,
		{Hardware: "4 x A100-80GB", Parameters: "70B"},
		{Hardware: "L4", Parameters: "8B", AcceleratorLabel: "gpu", Pinned: true},
		{AcceleratorLabel: "gpu", Accelerators: []v1alpha1.AcceleratorProfile{{
			Accelerator: "A100 & more", Hardware: "H100",
			Parameters: "8B",
		}}},
	} {
		for _, learned := range []bool{false, true} {
			w := inPool(is)
			f.SetWorld(w)
			for range 20 * map[bool]int{true: 1}[learned] {
				f.Observe(outcome.Outcome{
					Pool: "ns/pool", Model: "x", Endpoint: "10.0.0.1:8000", Status: 200, Stream: true, Attempts: 1, Adapter: "storage",
					FirstBody: 123456789, Expected: 1,
				})
			}
			docs, known := documents(t, f), fleet.Read(f, func(s *endpointstate.State) []endpointstate.Known { return s.Times.Known() })
			if len(docs) != 1 || len(known) != 1 {
				t.Fatalf("the page has %+v", docs)
			}
			d := docs[0]
			if d.Pool != "ns/pool" || d.Trusted != (is != nil) || d.Why == "" || d.Accelerator != known[0].Accelerator ||
				(d.Accelerator != "") != (is != nil && is.AcceleratorLabel != "") {
				t.Errorf("it contains %+v", d)
			}
			pinned := is != nil && is.Pinned
			if got := known[0].Profile.AdapterLoad.Mean != 0; got != (learned && !pinned) {
				t.Errorf("pinned: %v, learned: %v: a load takes %g s", pinned, learned, known[0].Profile.AdapterLoad.Mean)
			}
			pasted := v1alpha1.PoolSettings{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
				Spec:       v1alpha1.PoolSettingsSpec{PoolRef: v1alpha1.PoolReference{Name: "pool"}, Profile: &d.Profile},
			}
			if errs := objects.CheckServerSettings(&pasted); len(errs) > 0 {
				t.Errorf("the printed profile is rejected: %v", errs)
			}
			if got := inPool(&d.Profile).Pools[objects.Name{Namespace: "ns", Name: "pool"}].Profile; got == nil ||
				*got != known[0].Profile {
				t.Errorf("the printed profile is read as\n%+v, want\n%+v", got, known[0].Profile)
			}
		}
	}
}
