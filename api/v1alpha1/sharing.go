package v1alpha1

// SharingHeader is the name of a request header that identifies a tenant or a program.
//
// +kubebuilder:validation:MaxLength=256
// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[a-z0-9][a-z0-9_-]*$')",message="want a header's name in lower case, such as x-tenant-id"
// +kubebuilder:validation:XValidation:rule="!self.matches('^(x-(gateway|llm-d|envoy|forwarded|slo)-.*|proxy-.*|content-.*|grpc-.*|authorization|cookie|set-cookie|x-api-key|api-key|host|connection|keep-alive|transfer-encoding|te|trailer|upgrade|expect|date|via|x-request-id|traceparent|tracestate|epp-profile|test-epp-endpoint-selection)$')",message="it is a credential, or a header of HTTP, Envoy or Headgate: name another one, such as x-tenant-id"
// +kubebuilder:validation:XValidation:rule="!self.startsWith('x-headgate-') || self == 'x-headgate-client'",message="it is a header of Headgate: name another one, such as x-tenant-id"
type SharingHeader string

// ClientTenant is the header of Headgate's that may be a tenant header. `headgate envoy --api-keys`
// sets it, and clients cannot.
const ClientTenant = "x-headgate-client"

// The values of [LLMRouteSpec.Late].
const (
	// LateServe serves requests that are predicted to miss their objective.
	LateServe = "Serve"
	// LateShed rejects them with 429 when they arrive.
	LateShed = "Shed"
)

// The values of [LLMRouteSpec.FailurePolicy].
const (
	// FailOpen sends requests to endpoints that are all silent.
	FailOpen = "FailOpen"
	// FailClose rejects them with 503.
	FailClose = "FailClose"
)

// Fallback serves a request that Headgate would otherwise reject. It is used once: a fallback has
// no fallback.
//
// +kubebuilder:validation:XValidation:rule="(has(self.pool) && size(self.pool) > 0) || (has(self.baseModel) && self.baseModel)",message="name a pool, or set baseModel"
type Fallback struct {
	// Pool is the name of an InferencePool in the route's namespace that serves the request
	// instead, with the route's adapter unless baseModel is true.
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`
	// BaseModel makes the base model of the pool serve the request, without the route's adapter.
	BaseModel bool `json:"baseModel,omitempty"`
}

// RouteLimits are the limits of a route and of each of its tenants.
type RouteLimits struct {
	// Route limits the requests of the route together.
	Route *Limit `json:"route,omitempty"`
	// Tenant limits the requests of each tenant. It needs tenantHeader.
	Tenant *Limit `json:"tenant,omitempty"`
}

// Limit limits requests. A request beyond it gets 429 with Retry-After. A number that is not set
// limits nothing.
type Limit struct {
	// Concurrent is the number of requests at a time, those that wait included, at least 1.
	// +kubebuilder:validation:Minimum=1
	Concurrent *int32 `json:"concurrent,omitempty"`
	// RequestsPerMinute is the number of requests per minute, at least 1.
	// +kubebuilder:validation:Minimum=1
	RequestsPerMinute *int32 `json:"requestsPerMinute,omitempty"`
	// TokensPerMinute is the number of tokens per minute, of prompts and answers, at least 1.
	// +kubebuilder:validation:Minimum=1
	TokensPerMinute *int32 `json:"tokensPerMinute,omitempty"`
}

// The values of [PoolFlow.Mode].
const (
	FlowOn  = "On"
	FlowOff = "Off"
)

// PoolFlow configures the queue of a pool.
type PoolFlow struct {
	// Mode is On, the default, or Off. On queues requests in extproc while engines have no room for
	// them, and serves them in a fair order. Off sends requests to engines at once. In YAML, quote
	// the value.
	// +kubebuilder:validation:Enum=On;Off
	Mode string `json:"mode,omitempty"`
	// RequestsPerEndpoint is the number of requests that one endpoint gets at a time if its engine
	// reports no load and Headgate cannot predict its service times, at least 1. By default such an
	// engine gets requests at once.
	// +kubebuilder:validation:Minimum=1
	RequestsPerEndpoint *int32 `json:"requestsPerEndpoint,omitempty"`
}
