package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LLMRouteKind is the kind of [LLMRoute].
const LLMRouteKind = "LLMRoute"

// LLMRoute is a use case of language models: the model names that it admits in requests, the
// adapter and the pools that serve it, and its latency objectives. The kind comes from the LLM
// Instance Gateway proposal of Kubernetes' wg-serving.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=llmr,categories=headgate
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Models,type=string,JSONPath=.status.columns.models
// +kubebuilder:printcolumn:name=Adapter,type=string,JSONPath=.spec.adapter.name
// +kubebuilder:printcolumn:name=Pools,type=string,JSONPath=.status.columns.pools
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
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

// LLMRouteList is a list of LLMRoutes.
// +kubebuilder:object:root=true
type LLMRouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []LLMRoute `json:"items"`
}

// LLMRouteSpec is the model names, pools and objectives of a route.
// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !has(self.limits.tenant) || has(self.tenantHeader) && size(self.tenantHeader) > 0",message="name the header that identifies tenants",reason=FieldValueRequired,fieldPath=".tenantHeader"
// +kubebuilder:validation:XValidation:rule="!has(self.fallback) || has(self.fallback.pool) && size(self.fallback.pool) > 0 || !has(self.fallback.baseModel) || !self.fallback.baseModel || has(self.adapter)",message="the route has no adapter: this is a fallback to itself",fieldPath=".fallback.baseModel"
// +kubebuilder:validation:XValidation:rule="!has(self.fallback) || !has(self.fallback.pool) || !has(self.backendRefs) || has(self.adapter) && has(self.fallback.baseModel) && self.fallback.baseModel || !self.backendRefs.exists(b, has(b.name) && b.name == self.fallback.pool && (!has(b.weight) || b.weight > 0))",message="the route already serves requests from this pool: this is a fallback to itself",fieldPath=".fallback.pool"
// +kubebuilder:validation:XValidation:rule="has(self.backendRefs) && size(self.backendRefs) > 0",message="name the InferencePool that serves the route",reason=FieldValueRequired,fieldPath=".backendRefs"
// +kubebuilder:validation:XValidation:rule="!has(self.backendRefs) || size(self.backendRefs) == 0 || self.backendRefs.exists(b, !has(b.weight) || b.weight > 0)",message="give at least one pool a weight above 0",fieldPath=".backendRefs"
type LLMRouteSpec struct {
	// ParentRefs are the Gateways or ListenerSets that the route attaches to, at most 32. The
	// standalone data plane (envoy.yaml) ignores them.
	// +kubebuilder:validation:MaxItems=32
	ParentRefs []ParentReference `json:"parentRefs,omitempty"`
	// BackendRefs are the 1 to 16 pools that serve the route. Each request goes to one of them, at
	// random by weight.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	BackendRefs []BackendReference `json:"backendRefs"`
	// ModelNames are the model names that the route admits in requests, at most 128. The default is
	// the adapter's name, else the name of the route object. A name may be a path, because some
	// engines list a model by the path of its weights.
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	ModelNames []string `json:"modelNames,omitempty"`
	// Adapter is the LoRA adapter that serves the route. The default is the base model of the
	// pool's engines.
	Adapter *Adapter `json:"adapter,omitempty"`
	// Priority is the route's band; the default is 0. While requests wait for a pool, a band is
	// served only if no higher band has a request that an engine has room for.
	Priority int32 `json:"priority,omitempty"`
	// Share is the route's weight relative to the other routes of its band, 1 to 1000000. The
	// default is 1. While requests wait, each route gets service in proportion to its share.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Share *int32 `json:"share,omitempty"`
	// TenantHeader is the request header whose value identifies the tenant. Tenants of a route get
	// equal service while requests wait, and limits.tenant applies to each. Clients that can set
	// the header can take more service and evade these limits. With headgate envoy --api-keys, use
	// x-headgate-client. envoy.yaml forwards x-headgate-client, x-tenant-* and x-program-* to
	// extproc. By default a route has one tenant.
	TenantHeader SharingHeader `json:"tenantHeader,omitempty"`
	// ProgramHeader is the request header whose value identifies a program, such as the session of
	// an agent. Programs of a tenant get equal service while requests wait.
	// +kubebuilder:validation:XValidation:rule="self != 'x-headgate-client'",message="it is a header of Headgate: name another one, such as x-program-id"
	ProgramHeader SharingHeader `json:"programHeader,omitempty"`
	// Late selects what happens to a request that is predicted to wait longer than the objective
	// TimeToFirstToken of the route. Serve, the default, serves it. Shed rejects it with 429 and
	// Retry-After when it arrives. A request that would wait longer than its client's own deadline
	// is rejected in both cases.
	// +kubebuilder:validation:Enum=Serve;Shed
	Late string `json:"late,omitempty"`
	// FailurePolicy selects what happens while all endpoints of the pool are silent. FailOpen, the
	// default, sends requests to them. FailClose rejects requests with 503, after timeouts.empty of
	// the PoolSettings.
	// +kubebuilder:validation:Enum=FailOpen;FailClose
	FailurePolicy string `json:"failurePolicy,omitempty"`
	// Fallback serves requests that Headgate would otherwise reject with 429, 503 or 504. It does
	// not serve requests that exceed a limit, or that an engine may have received. By default there
	// is no fallback.
	Fallback *Fallback `json:"fallback,omitempty"`
	// Limits limit the requests of the route and of each tenant. By default nothing is limited.
	Limits *RouteLimits `json:"limits,omitempty"`
	// Objectives are the latency objectives of the route, at most 16. The policy latency picks
	// endpoints by them. The defaults are 2s to the first token and 100ms for each further token.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Objectives []Objective `json:"objectives,omitempty"`
	// Metrics is the format of the engines' metrics.
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
	// Name is the name of the pool.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Weight is the pool's share of requests, relative to the sum of all weights, 0 to 1000000. The
	// default is 1. A pool with weight 0 gets no requests.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight *int32 `json:"weight,omitempty"`
}

// Adapter names a LoRA adapter as the engines list it.
type Adapter struct {
	// Name is the adapter's name, as the engines list it.
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

// Objective is a latency objective for a share of the route's requests.
type Objective struct {
	Type    ObjectiveType `json:"type"`
	Latency Latency       `json:"latency"`
}

// Latency is an upper bound on a latency quantile.
type Latency struct {
	// Value is the upper bound, above 0, such as 200ms or 2s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="a latency is above 0, such as 200ms"
	Value metav1.Duration `json:"value"`
	// Quantile is the share of requests that must stay within the bound. The default is 99/100.
	Quantile *Quantile `json:"quantile,omitempty"`
}

// Quantile is the fraction Numerator/Denominator, above 0 and at most 1.
//
// +kubebuilder:validation:XValidation:rule="self.numerator > 0 && self.denominator >= self.numerator",message="a quantile is above 0 and at most 1, such as {numerator: 99, denominator: 100}"
type Quantile struct {
	Numerator   int32 `json:"numerator"`
	Denominator int32 `json:"denominator"`
}

// MetricsPrometheus is the only supported format of metrics.
const MetricsPrometheus = "Prometheus"

// Metrics is the format of the engines' metrics.
type Metrics struct {
	// Format is Prometheus: engines serve GET /metrics in Prometheus' text format.
	// +kubebuilder:validation:Enum=Prometheus
	Format string `json:"format"`
}

// LLMRouteStatus is the state of a route as control observes it.
type LLMRouteStatus struct {
	// Models are the model names that the route serves: its modelNames, without those that an older
	// route has.
	// +listType=atomic
	Models []string `json:"models,omitempty"`
	// Pools are the names of the route's pools, in the order of backendRefs.
	// +listType=atomic
	Pools []string `json:"pools,omitempty"`
	// Columns are the lists of this status as text, for kubectl get.
	Columns LLMRouteColumns `json:"columns,omitempty,omitzero"`
	// Conditions are Accepted, ResolvedRefs and Ready. Ready is true if a request would be served
	// now.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Parents has one entry for each parentRef that names a Gateway or a ListenerSet of Headgate's:
	// the conditions of the route there.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Parents []ParentStatus `json:"parents,omitempty"`
}

// LLMRouteColumns are columns of kubectl get, which prints lists as JSON.
type LLMRouteColumns struct {
	// Models are the model names, such as "chat,code" or "chat,code,+7".
	Models string `json:"models,omitempty"`
	// Pools are the names of the pools.
	Pools string `json:"pools,omitempty"`
}

// ParentStatus is the state of a route at one parentRef, as one controller reports it:
// RouteParentStatus of Gateway API.
type ParentStatus struct {
	// ParentRef is the parentRef of the route.
	ParentRef ParentReference `json:"parentRef"`
	// ControllerName is the controller that wrote this entry, as DOMAIN/PATH.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ControllerName string `json:"controllerName"`
	// Conditions are Accepted and ResolvedRefs. PartiallyInvalid is added if other routes of the
	// listener already serve some of the route's model names.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The condition types of a route, and their reasons. Other reasons are those of Gateway API.
const (
	// ConditionAccepted is true if a data plane serves a route with all of its model names, or if
	// no other model has a model's id, or if an object is in force.
	ConditionAccepted = "Accepted"
	// ConditionResolvedRefs is true if all pools of a route exist.
	ConditionResolvedRefs = "ResolvedRefs"

	// ReasonAccepted is the reason if ConditionAccepted is true.
	ReasonAccepted = "Accepted"
	// ReasonModelNameTaken means that an older route has one of the route's model names, or that
	// another model has the model's id.
	ReasonModelNameTaken = "ModelNameTaken"
	// ReasonResolvedRefs means that all pools of the route exist.
	ReasonResolvedRefs = "ResolvedRefs"
	// ReasonBackendNotFound means that a pool of the route does not exist. Requests for that pool
	// get 503.
	ReasonBackendNotFound = "BackendNotFound"
	// ReasonNotProgrammed means that no Envoy of the route's Gateways has accepted its
	// configuration yet.
	ReasonNotProgrammed = "NotProgrammed"
)
