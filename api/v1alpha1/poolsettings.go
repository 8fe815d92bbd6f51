package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PoolSettingsKind is the kind of [PoolSettings].
const PoolSettingsKind = "PoolSettings"

// PoolSettings says how extproc picks among the endpoints of one InferencePool, where that is not as its flags say.
// What it leaves out stays as the flags have it.
type PoolSettings struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PoolSettingsSpec `json:"spec"`
}

// PoolSettingsSpec is what people write.
type PoolSettingsSpec struct {
	// PoolRef names the InferencePool, in the same namespace. At most one PoolSettings names a pool.
	PoolRef PoolReference `json:"poolRef"`
	// Policy is proposal, leastRequest, roundRobin or random.
	Policy *string `json:"policy,omitempty"`
	// AdapterThreshold is, with the policy proposal, the number of requests for one adapter at one endpoint from which
	// on another endpoint is looked for. At least 1.
	AdapterThreshold *int64 `json:"adapterThreshold,omitempty"`
	// Retry says where a request goes that an endpoint turned away.
	Retry *Retry `json:"retry,omitempty"`
	// SessionAffinity prefers one endpoint for the requests of a session.
	SessionAffinity *SessionAffinity `json:"sessionAffinity,omitempty"`
	// Timeouts bound what may take long.
	Timeouts *PoolTimeouts `json:"timeouts,omitempty"`
	// Placement says how models are put onto the pool's engines.
	Placement *Placement `json:"placement,omitempty"`
}

// Placement says how models are put onto the engines of a pool.
type Placement struct {
	// MaxAdapters is how many adapters may be registered at one endpoint at once. Without it: as many as its GPU holds
	// (max_loras of vLLM) once the engine tells, and 1 until then. At least 1.
	MaxAdapters *int32 `json:"maxAdapters,omitempty"`
	// Source is where the engines find a model that does not say so itself: a path or a URI, in which {id} stands for the
	// model's id. The default is {id}.
	Source string `json:"source,omitempty"`
	// Management is where model runtimes are managed, port:NUMBER at each endpoint's own address. It makes the pool's
	// endpoints that name no engine of another kind model runtimes.
	Management string `json:"management,omitempty"`
}

// PoolReference names an InferencePool in the object's own namespace.
type PoolReference struct {
	Name string `json:"name"`
}

// Retry is how often a request is tried elsewhere.
type Retry struct {
	// Attempts is how many other endpoints the data plane is told, in order, for a request that the first one turns
	// away. 0 to 7. More than 0 needs a data plane that walks a list: ORIGINAL_DST answers 503 to one.
	Attempts *int32 `json:"attempts,omitempty"`
}

// SessionAffinity says what names a session: a header or a cookie. It is a preference: a session's endpoint that has
// much more to do than the others is passed over.
type SessionAffinity struct {
	Header string `json:"header,omitempty"`
	Cookie string `json:"cookie,omitempty"`
}

// PoolTimeouts are above 0.
type PoolTimeouts struct {
	// Request bounds a whole request, from its last byte to the last of its answer. Headgate's own data plane obeys it.
	Request *metav1.Duration `json:"request,omitempty"`
	// Hold bounds how long a request waits for its model to be loaded.
	Hold *metav1.Duration `json:"hold,omitempty"`
	// Lease is how long a request whose end nothing reports counts as in flight.
	Lease *metav1.Duration `json:"lease,omitempty"`
	// Stale is the silence after which an endpoint gets requests only where no other can.
	Stale *metav1.Duration `json:"stale,omitempty"`
	// Lost is the silence after which an endpoint gets requests only where every endpoint is silent.
	Lost *metav1.Duration `json:"lost,omitempty"`
}
