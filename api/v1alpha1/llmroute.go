// Package v1alpha1 holds the kinds of inference.x-k8s.io/v1alpha1 that people write for Headgate. Types only.
package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GroupVersion names the kinds of this package in YAML.
const GroupVersion = "inference.x-k8s.io/v1alpha1"

// LLMRouteKind is the kind of [LLMRoute].
const LLMRouteKind = "LLMRoute"

// LLMRoute is a use case of language models: which request names it admits, the adapter that serves it, the pool that
// holds it, and how fast it must be. It is the object of the LLM Instance Gateway proposal (Kubernetes wg-serving).
type LLMRoute struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec LLMRouteSpec `json:"spec"`
}

// LLMRouteSpec is what people write.
type LLMRouteSpec struct {
	// ParentRefs are the gateways that the route attaches to. The standalone data plane has one and ignores them.
	ParentRefs []ParentReference `json:"parentRefs,omitempty"`
	// BackendRefs are the pools that serve the route, at least one. A request goes to one of them, by weight.
	BackendRefs []BackendReference `json:"backendRefs"`
	// ModelNames are the names in requests that this route admits. The default is the adapter's name, else the
	// route's own.
	ModelNames []string `json:"modelNames,omitempty"`
	// Adapter is the adapter that serves the route. Without one, the base model of the pool's engines does.
	Adapter *Adapter `json:"adapter,omitempty"`
	// Priority orders routes when there is not room for all: a higher one goes first. The default is 0.
	Priority int32 `json:"priority,omitempty"`
	// Objectives are the latencies that the route needs.
	Objectives []Objective `json:"objectives,omitempty"`
	// Metrics tells how the engines of the pool report their load.
	Metrics *Metrics `json:"metrics,omitempty"`
}

// ParentReference names a Gateway or one of its listeners.
type ParentReference struct {
	Group       *string `json:"group,omitempty"`
	Kind        *string `json:"kind,omitempty"`
	Namespace   *string `json:"namespace,omitempty"`
	Name        string  `json:"name"`
	SectionName *string `json:"sectionName,omitempty"`
	Port        *int32  `json:"port,omitempty"`
}

// BackendReference names an InferencePool in the route's own namespace.
type BackendReference struct {
	// Group is inference.networking.k8s.io, the default.
	Group *string `json:"group,omitempty"`
	// Kind is InferencePool, the default.
	Kind *string `json:"kind,omitempty"`
	Name string  `json:"name"`
	// Weight is this pool's share of the route's requests relative to the other weights. The default is 1; 0 gets
	// none.
	Weight *int32 `json:"weight,omitempty"`
}

// Adapter names a LoRA adapter as the engines list it.
type Adapter struct {
	Name string `json:"name"`
}

// ObjectiveType is what an objective measures.
type ObjectiveType string

const (
	// OutputTokenLatency is the time from one output token to the next.
	OutputTokenLatency ObjectiveType = "OutputTokenLatency"
	// TimeToFirstToken is the time from a request's last byte to its first output token.
	TimeToFirstToken ObjectiveType = "TimeToFirstToken"
)

// Objective is a latency that a share of the route's requests must keep.
type Objective struct {
	Type    ObjectiveType `json:"type"`
	Latency Latency       `json:"latency"`
}

// Latency is a bound and the share of requests that it is for.
type Latency struct {
	// Value is the bound, written as "200ms" or "2s".
	Value metav1.Duration `json:"value"`
	// Quantile is the share of requests that must keep the bound. The default is 99/100.
	Quantile *Quantile `json:"quantile,omitempty"`
}

// Quantile is the fraction Numerator/Denominator, above 0 and at most 1.
type Quantile struct {
	Numerator   int32 `json:"numerator"`
	Denominator int32 `json:"denominator"`
}

// MetricsPrometheus is the one metrics format so far.
const MetricsPrometheus = "Prometheus"

// Metrics tells how the engines of the pool are read.
type Metrics struct {
	// Format is Prometheus: the engines serve GET /metrics in Prometheus' text format.
	Format string `json:"format"`
}
