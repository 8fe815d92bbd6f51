package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LLMRouteKind is the kind of [LLMRoute].
const LLMRouteKind = "LLMRoute"

// LLMRoute is a use case of language models: which request names it admits, the adapter that serves
// it, the pool that holds it, and how fast it must be. It is the object of the LLM Instance Gateway
// proposal (Kubernetes wg-serving).
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=headgate
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Models,type=string,JSONPath=.status.models
// +kubebuilder:printcolumn:name=Adapter,type=string,JSONPath=.spec.adapter.name
// +kubebuilder:printcolumn:name=Pools,type=string,JSONPath=.status.pools
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="ResolvedRefs")].status`
// +kubebuilder:printcolumn:name=Priority,type=integer,JSONPath=.spec.priority,priority=1
// +kubebuilder:printcolumn:name=Message,type=string,JSONPath=`.status.conditions[?(@.status=="False")].message`,priority=1
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type LLMRoute struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec LLMRouteSpec `json:"spec"`
	// Status is written by control.
	Status LLMRouteStatus `json:"status,omitempty"`
}

// LLMRouteList is what an API server lists.
//
// +kubebuilder:object:root=true
type LLMRouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []LLMRoute `json:"items"`
}

// LLMRouteSpec is what people write.
//
// +kubebuilder:validation:XValidation:rule="has(self.backendRefs) && size(self.backendRefs) > 0",message="name the InferencePool that serves the route",reason=FieldValueRequired,fieldPath=".backendRefs"
// +kubebuilder:validation:XValidation:rule="!has(self.backendRefs) || size(self.backendRefs) == 0 || self.backendRefs.exists(b, !has(b.weight) || b.weight > 0)",message="give at least one pool a weight above 0",fieldPath=".backendRefs"
type LLMRouteSpec struct {
	// ParentRefs are the gateways that the route attaches to. The standalone data plane has one and
	// ignores them.
	// +kubebuilder:validation:MaxItems=32
	ParentRefs []ParentReference `json:"parentRefs,omitempty"`
	// BackendRefs are the pools that serve the route, at least one. A request goes to one of them,
	// by weight.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	BackendRefs []BackendReference `json:"backendRefs"`
	// ModelNames are the names in requests that this route admits. The default is the adapter's
	// name, else the route's own. A name may be a path, because some engines list a model under the
	// path of its weights.
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	ModelNames []string `json:"modelNames,omitempty"`
	// Adapter is the adapter that serves the route. Without one, the base model of the pool's
	// engines does.
	Adapter *Adapter `json:"adapter,omitempty"`
	// Priority orders routes when there is not room for all: a higher one goes first. The default
	// is 0.
	Priority int32 `json:"priority,omitempty"`
	// Objectives are the latencies that the route needs.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Objectives []Objective `json:"objectives,omitempty"`
	// Metrics tells how the engines of the pool report their load.
	Metrics *Metrics `json:"metrics,omitempty"`
}

// ParentReference names a Gateway or one of its listeners.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name the Gateway",reason=FieldValueRequired,fieldPath=".name"
type ParentReference struct {
	Group     *string `json:"group,omitempty"`
	Kind      *string `json:"kind,omitempty"`
	Namespace *string `json:"namespace,omitempty"`
	// +optional
	Name        string  `json:"name"`
	SectionName *string `json:"sectionName,omitempty"`
	Port        *int32  `json:"port,omitempty"`
}

// BackendReference names an InferencePool in the route's own namespace.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name an InferencePool in the route's namespace",reason=FieldValueRequired,fieldPath=".name"
type BackendReference struct {
	// Group is inference.networking.k8s.io, the default.
	//
	// +kubebuilder:validation:Enum=inference.networking.k8s.io
	Group *string `json:"group,omitempty"`
	// Kind is InferencePool, the default.
	//
	// +kubebuilder:validation:Enum=InferencePool
	Kind *string `json:"kind,omitempty"`
	// Name is the pool's.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Weight is this pool's share of the route's requests relative to the other weights. The
	// default is 1; 0 gets none.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight *int32 `json:"weight,omitempty"`
}

// Adapter names a LoRA adapter as the engines list it.
type Adapter struct {
	// Name is any that a model can have.
	//
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(^|/)[.]{0,2}(/|$)|^~|[\\x5c]')`,message="no model can have this name, which is empty or a path: write one such as sql-v2 or org/sql-v2"
	Name string `json:"name"`
}

// ObjectiveType is what an objective measures.
//
// +kubebuilder:validation:Enum=OutputTokenLatency;TimeToFirstToken
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
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="a latency is above 0, such as 200ms"
	Value metav1.Duration `json:"value"`
	// Quantile is the share of requests that must keep the bound. The default is 99/100.
	Quantile *Quantile `json:"quantile,omitempty"`
}

// Quantile is the fraction Numerator/Denominator, above 0 and at most 1.
//
// +kubebuilder:validation:XValidation:rule="self.numerator > 0 && self.denominator >= self.numerator",message="a quantile is above 0 and at most 1, such as {numerator: 99, denominator: 100}"
type Quantile struct {
	Numerator   int32 `json:"numerator"`
	Denominator int32 `json:"denominator"`
}

// MetricsPrometheus is the one metrics format so far.
const MetricsPrometheus = "Prometheus"

// Metrics tells how the engines of the pool are read.
type Metrics struct {
	// Format is Prometheus: the engines serve GET /metrics in Prometheus' text format.
	//
	// +kubebuilder:validation:Enum=Prometheus
	Format string `json:"format"`
}

// LLMRouteStatus is what control says of a route.
type LLMRouteStatus struct {
	// Models are the names that requests may use for the route: those that no older route took first.
	//
	// +listType=atomic
	Models []string `json:"models,omitempty"`
	// Pools are the names of its pools, in the order of backendRefs.
	//
	// +listType=atomic
	Pools []string `json:"pools,omitempty"`
	// Conditions are Accepted and ResolvedRefs.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Parents are what became of each of its parentRefs that names a Gateway, or a ListenerSet of
	// one, as its controller says.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Parents []ParentStatus `json:"parents,omitempty"`
}

// ParentStatus is what one controller says of a parentRef of a route: RouteParentStatus of Gateway
// API.
type ParentStatus struct {
	// ParentRef is that of the route.
	ParentRef ParentReference `json:"parentRef"`
	// ControllerName is who wrote this, DOMAIN/PATH.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ControllerName string `json:"controllerName"`
	// Conditions are Accepted, ResolvedRefs and, where other routes of a listener have some of the
	// route's names, PartiallyInvalid.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Conditions of a route, and their reasons.
const (
	// ConditionAccepted is true of a route that is valid and admits all of its names, and of a
	// model whose id is its own.
	ConditionAccepted = "Accepted"
	// ConditionResolvedRefs is true of a route whose pools all exist.
	ConditionResolvedRefs = "ResolvedRefs"

	// ReasonAccepted is that of what is accepted.
	ReasonAccepted = "Accepted"
	// ReasonModelNameTaken is that of a route of whose names one is an older route's, and of a
	// model whose id is another's.
	ReasonModelNameTaken = "ModelNameTaken"
	// ReasonResolvedRefs is that of a route whose pools exist.
	ReasonResolvedRefs = "ResolvedRefs"
	// ReasonBackendNotFound is that of a route with a pool that does not exist: requests that fall
	// to it get 503.
	ReasonBackendNotFound = "BackendNotFound"
)
