package metrics_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Streams count for each objective that their route states, and the quantile is a metric. Series of
// objectives and routes that are gone are removed.
func TestObjectives(t *testing.T) {
	of := func(kind v1alpha1.ObjectiveType, most time.Duration) v1alpha1.Objective {
		return v1alpha1.Objective{Type: kind, Latency: v1alpha1.Latency{Value: metav1.Duration{Duration: most}}}
	}
	worldWith := func(all ...v1alpha1.Objective) *objects.World {
		r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "chat"}}
		r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: "pool"}}
		r.Spec.Objectives = all
		return objects.Build(objects.Set{Routes: []v1alpha1.LLMRoute{r}})
	}
	first := of(v1alpha1.TimeToFirstToken, time.Second)
	first.Latency.Quantile = &v1alpha1.Quantile{Numerator: 9, Denominator: 10}
	m, _ := started()
	m.SetWorld(worldWith(first, of(v1alpha1.OutputTokenLatency, 100*time.Millisecond)))
	for _, took := range []time.Duration{time.Second / 2, time.Second, time.Second + time.Millisecond} {
		m.Observe(outcome.Outcome{
			Route: "ns/chat", Endpoint: "a", Status: 200, Stream: true, FirstBody: took, Duration: took + time.Second,
			Completion: engine.Known(12), // 1 s for 11 tokens
		})
	}
	m.Observe(outcome.Outcome{Route: "ns/chat", Endpoint: "a", Status: 200, Stream: true, FirstBody: time.Second, Duration: 2 * time.Second})
	m.Observe(outcome.Outcome{Route: "ns/chat", Endpoint: "a", Status: 503, Stream: true, FirstBody: 9 * time.Second})
	m.Observe(outcome.Outcome{Route: "ns/gone", Endpoint: "a", Status: 200, Stream: true, FirstBody: 9 * time.Second})
	page := func() string {
		_, page := get(t, m, "/metrics")
		return page
	}
	expect(t, page(),
		`headgate_objective_requests_total{objective="time_to_first_token",result="met",route="ns/chat"} 3`,
		`headgate_objective_requests_total{objective="time_to_first_token",result="missed",route="ns/chat"} 1`,
		`headgate_objective_requests_total{objective="output_token_latency",result="met",route="ns/chat"} 3`,
		`headgate_objective_quantile{objective="time_to_first_token",route="ns/chat"} 0.9`,
		`headgate_objective_quantile{objective="output_token_latency",route="ns/chat"} 0.99`,
	)
	m.SetWorld(worldWith(first))
	if strings.Contains(page(), `headgate_objective_quantile{objective="output_token_latency"`) {
		t.Error("an objective that is gone still has its quantile")
	}
	m.SetWorld(objects.Build(objects.Set{}))
	if strings.Contains(page(), "headgate_objective_requests_total{") || strings.Contains(page(), "headgate_objective_quantile{") {
		t.Error("a route that is gone still has series")
	}
}
