package lifecycle

import (
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/metrics"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/placementserver"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

// The conditions of objects in a folder, which have no status, are those that objects of an API
// server would have.
func TestConditionsOfAFolder(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	file, err := store.Open(filepath.Join(t.TempDir(), "db"), log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	placer, err := place.New(place.Config{Memory: file, Log: log, Publisher: placementserver.New(log), Meter: metrics.New()})
	if err != nil {
		t.Fatal(err)
	}
	l := &latest{StatusWriter: noStatus{}, placer: placer}
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"}}
	r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: "p"}}
	l.SetWorld(objects.Build(objects.Set{Pools: []pool.InferencePool{p}, Routes: []v1alpha1.LLMRoute{r}}))
	if got := l.conditions(); got == nil || len(got) > 0 {
		t.Errorf("before anything is known of endpoints, the conditions are %+v", got)
	}
	route := func(of, reason, words string) admin.Condition {
		return admin.Condition{Kind: "LLMRoute", Name: "ns/r", Type: of, Reason: reason, Message: words}
	}
	const nobody = "no extproc is connected to control: start extproc; if it runs, its log names the error: check its flag --control, " +
		"its token and its certificate"
	l.SetObserved(conditions.Observed{})
	if got, want := l.conditions(), []admin.Condition{route("Ready", "NoPicker", nobody)}; !slices.Equal(got, want) {
		t.Errorf("without an extproc the conditions are %+v, want %+v", got, want)
	}
	l.SetObserved(conditions.Observed{Extprocs: []conditions.Extproc{{Standalone: true}}})
	if got, want := l.conditions(), []admin.Condition{
		route("Ready", "NoEndpoints", "InferencePool p: it has no endpoints"),
	}; !slices.Equal(got, want) {
		t.Errorf("with one the conditions are %+v, want %+v", got, want)
	}
}
