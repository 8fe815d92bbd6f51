package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PoolSettingsKind is the kind of [PoolSettings].
const PoolSettingsKind = "PoolSettings"

// PoolSettings says how extproc picks among the endpoints of one InferencePool, where that is not as its flags say.
// What it leaves out stays as the flags have it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=poolsettings,singular=poolsettings,categories=headgate
// +kubebuilder:printcolumn:name=Pool,type=string,JSONPath=.spec.poolRef.name
// +kubebuilder:printcolumn:name=Policy,type=string,JSONPath=.spec.policy
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type PoolSettings struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PoolSettingsSpec `json:"spec"`
}

// PoolSettingsList is what an API server lists.
//
// +kubebuilder:object:root=true
type PoolSettingsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PoolSettings `json:"items"`
}

// PoolSettingsSpec is what people write.
//
// +kubebuilder:validation:XValidation:rule="!has(self.authorization) || self.authorization != 'Engine' || has(self.engineToken)",message="name the token that engines are to get, in engineToken",reason=FieldValueRequired,fieldPath=".engineToken"
type PoolSettingsSpec struct {
	// PoolRef names the InferencePool, in the same namespace. At most one PoolSettings names a pool.
	//
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name the InferencePool, in the same namespace",reason=FieldValueRequired,fieldPath=".name"
	PoolRef PoolReference `json:"poolRef"`
	// Policy is proposal, leastRequest, roundRobin or random.
	//
	// +kubebuilder:validation:Enum=proposal;leastRequest;roundRobin;random
	Policy *string `json:"policy,omitempty"`
	// AdapterThreshold is, with the policy proposal, how many requests in flight for one adapter at one endpoint make
	// extproc prefer another endpoint. At least 1.
	//
	// +kubebuilder:validation:Minimum=1
	AdapterThreshold *int64 `json:"adapterThreshold,omitempty"`
	// Retry says where a request goes that an endpoint turned away.
	Retry *Retry `json:"retry,omitempty"`
	// SessionAffinity prefers one endpoint for the requests of a session.
	SessionAffinity *SessionAffinity `json:"sessionAffinity,omitempty"`
	// Timeouts bound what may take long.
	Timeouts *PoolTimeouts `json:"timeouts,omitempty"`
	// Placement says how models are put onto the pool's engines.
	Placement *Placement `json:"placement,omitempty"`
	// EngineToken is the bearer token with which extproc looks at the pool's engines, and control tells them what to load.
	// Requests of clients are passed on without it, if authorization does not say otherwise. It is for objects of an API server
	// alone: the engines of a folder have the token of --engine-token-file.
	EngineToken *EngineToken `json:"engineToken,omitempty"`
	// Authorization is what engines get as the Authorization header of requests: Client, the default, is the client's own, and Engine
	// the token of engineToken in its place, or nothing while that cannot be read. The client's own never reaches an engine then.
	// extproc sends it where it picks: another endpoint picker cannot, and without extproc no request is sent.
	//
	// +kubebuilder:validation:Enum=Client;Engine
	Authorization string `json:"authorization,omitempty"`
	// EngineTLS has the pool's engines reached over TLS: by the Envoys of Headgate's Gateways, and by extproc and control, for which
	// --engine-tls says it else. The Envoy of envoy.yaml does not read it.
	EngineTLS *EngineTLS `json:"engineTLS,omitempty"`
}

// AuthorizationOfEngine is an authorization: engines get their own token with requests.
const AuthorizationOfEngine = "Engine"

// EngineTLS says how engines are known: by a name that their certificates are for, or not at all.
//
// +kubebuilder:validation:XValidation:rule="has(self.insecureSkipVerify) && self.insecureSkipVerify || has(self.hostname) && size(self.hostname) > 0",message="name what the engines' certificates are for",reason=FieldValueRequired,fieldPath=".hostname"
// +kubebuilder:validation:XValidation:rule="!has(self.insecureSkipVerify) || !self.insecureSkipVerify || !has(self.caCertificates)",message="with insecureSkipVerify nobody looks at them",fieldPath=".caCertificates"
type EngineTLS struct {
	// Hostname is the DNS name that the certificates of all the pool's engines are for, which engines are told as the server's. It
	// is not needed with insecureSkipVerify.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="want a DNS name, such as engines.llm.svc"
	Hostname string `json:"hostname,omitempty"`
	// CACertificates are the certificate authorities that are trusted, in PEM. Without them those of the system are, where extproc
	// and control run, and for Envoy those in /etc/ssl/certs/ca-certificates.crt where it runs.
	//
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule="self == '' || self.contains('-----BEGIN CERTIFICATE-----')",message="want certificates in PEM"
	CACertificates string `json:"caCertificates,omitempty"`
	// InsecureSkipVerify accepts any certificate: who intercepts the connection can read requests, and the token.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// EngineToken says where a bearer token is.
type EngineToken struct {
	// SecretRef names a Secret, in the same namespace. A Role of that namespace lets the service accounts of extproc and
	// control get it. A token that is replaced there is in use within some ten seconds.
	//
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name the Secret, in the same namespace",reason=FieldValueRequired,fieldPath=".name"
	SecretRef SecretKeyReference `json:"secretRef"`
}

// SecretKeyReference names a key of a Secret in the object's own namespace.
type SecretKeyReference struct {
	// Name is the Secret's.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="no Secret can have this name: write one such as engine-token"
	Name string `json:"name"`
	// Key is the one of the Secret's data that holds the token. The default is token.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[-._a-zA-Z0-9]+$') && self != '.' && !self.startsWith('..')",message="no Secret can have this key: write one such as token"
	Key string `json:"key,omitempty"`
}

// Placement says how models are put onto the engines of a pool.
type Placement struct {
	// MaxAdapters is how many adapters may be registered at one endpoint at once. Without it: as many as its GPU holds
	// (max_loras of vLLM) once the engine tells, and 1 until then. At least 1.
	//
	// +kubebuilder:validation:Minimum=1
	MaxAdapters *int32 `json:"maxAdapters,omitempty"`
	// Source is where the engines find a model that does not say so itself: a path or a URI, in which {id} stands for the
	// model's id. The default is {id}.
	//
	// +kubebuilder:validation:MaxLength=4096
	Source string `json:"source,omitempty"`
	// Management is where model runtimes are managed, port:NUMBER at each endpoint's own address. It makes the pool's
	// endpoints that name no engine of another kind model runtimes.
	//
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.matches('^port:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="want port:NUMBER, such as port:8085; a socket is for an EndpointList of one address in a folder"
	Management string `json:"management,omitempty"`
}

// PoolReference names an InferencePool in the object's own namespace.
type PoolReference struct {
	// Name is the pool's.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Retry is how often a request is tried elsewhere.
type Retry struct {
	// Attempts is how many other endpoints the data plane is told, in order, for a request that the first one turns
	// away. 0 to 7. More than 0 needs a data plane that walks a list: ORIGINAL_DST answers 503 to one.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	Attempts *int32 `json:"attempts,omitempty"`
}

// SessionAffinity says what names a session: a header or a cookie. It is a preference: a session's endpoint that has
// much more to do than the others is passed over.
//
// +kubebuilder:validation:XValidation:rule="(has(self.header) && size(self.header) > 0) != (has(self.cookie) && size(self.cookie) > 0)",message="name either a header or a cookie"
type SessionAffinity struct {
	// Header is a request header's name, in lower case.
	//
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self == self.lowerAscii()",message="write the header's name in lower case"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith(':')",message="it is a part of the request line: name a header, such as x-session-id"
	Header string `json:"header,omitempty"`
	// Cookie is a cookie's name.
	//
	// +kubebuilder:validation:MaxLength=256
	Cookie string `json:"cookie,omitempty"`
}

// PoolTimeouts are above 0.
//
// +kubebuilder:validation:XValidation:rule="!has(self.stale) || !has(self.lost) || !self.stale.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') || !self.lost.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') || duration(self.lost) >= duration(self.stale)",message="it must be at least as long as stale",fieldPath=".lost"
type PoolTimeouts struct {
	// Request bounds a whole request, from its last byte to the last of its answer. Headgate's own data plane obeys it.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	Request *metav1.Duration `json:"request,omitempty"`
	// Hold bounds how long a request waits for its model to be loaded.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	Hold *metav1.Duration `json:"hold,omitempty"`
	// Lease is how long a request whose end nothing reports counts as in flight.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	Lease *metav1.Duration `json:"lease,omitempty"`
	// Stale is the silence after which an endpoint gets requests only where no other can.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	Stale *metav1.Duration `json:"stale,omitempty"`
	// Lost is the silence after which an endpoint gets requests only where every endpoint is silent.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	Lost *metav1.Duration `json:"lost,omitempty"`
}
