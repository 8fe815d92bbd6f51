package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PoolSettingsKind is the kind of [PoolSettings].
const PoolSettingsKind = "PoolSettings"

// PoolSettings overrides the flags of extproc and control for one InferencePool. A field that is
// not set has the value of the flag.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=poolsettings,singular=poolsettings,shortName=poolset,categories=headgate
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Pool,type=string,JSONPath=.spec.poolRef.name
// +kubebuilder:printcolumn:name=Policy,type=string,JSONPath=.spec.policy
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name=Endpoints,type=string,JSONPath=.status.endpoints
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Message,type=string,JSONPath=`.status.conditions[?(@.status=="False")].message`,priority=1
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type PoolSettings struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PoolSettingsSpec `json:"spec"`
	// Status is written by control.
	Status PoolSettingsStatus `json:"status,omitempty"`
}

// PoolSettingsStatus is the state of a PoolSettings and of its pool as control observes them.
type PoolSettingsStatus struct {
	// ObservedGeneration is the generation of the object that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Endpoints is how many endpoints of the pool answer, as in "3/4". It is empty if the
	// PoolSettings is not accepted.
	Endpoints string `json:"endpoints,omitempty"`
	// Conditions are Accepted, Ready and Endpoints. Of several PoolSettings of a pool, the oldest
	// is accepted, or the first by name. Ready is true if an endpoint of the pool answers, and
	// Endpoints if all do.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PoolSettingsList is a list of PoolSettings.
// +kubebuilder:object:root=true
type PoolSettingsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PoolSettings `json:"items"`
}

// PoolSettingsSpec is the settings of one pool.
// +kubebuilder:validation:XValidation:rule="!has(self.authorization) || self.authorization != 'Engine' || has(self.engineToken)",message="name the engines' token in engineToken",reason=FieldValueRequired,fieldPath=".engineToken"
type PoolSettingsSpec struct {
	// PoolRef names the InferencePool, in the same namespace. Only one PoolSettings may name a
	// pool.
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name the InferencePool, in the same namespace",reason=FieldValueRequired,fieldPath=".name"
	PoolRef PoolReference `json:"poolRef"`
	// Policy is the rule by which extproc picks an endpoint: latency, proposal, leastRequest,
	// roundRobin or random. The default is that of extproc --policy, which is latency unless set.
	// While there is not enough timing data to predict latencies, latency behaves like proposal.
	// +kubebuilder:validation:Enum=latency;proposal;leastRequest;roundRobin;random
	Policy *string `json:"policy,omitempty"`
	// AdapterThreshold applies to the policy proposal. extproc prefers another endpoint once this
	// many requests for the adapter are in flight at one endpoint. At least 1. The default is that
	// of extproc --adapter-threshold, 32 unless set.
	// +kubebuilder:validation:Minimum=1
	AdapterThreshold *int64 `json:"adapterThreshold,omitempty"`
	// Retry configures retries at other endpoints.
	Retry *Retry `json:"retry,omitempty"`
	// SessionAffinity sends the requests of a session to the same endpoint. By default requests
	// have no session.
	SessionAffinity *SessionAffinity `json:"sessionAffinity,omitempty"`
	// DefaultModel is the model for OpenAI and Anthropic requests whose model is missing, empty or
	// null. extproc writes it into the body, so it must be a name that clients may use. It applies
	// only if the pool is known without the model: through an HTTPRoute, another gateway or extproc
	// --pool-name, or because there is only one pool. Without it, such requests get 400.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	DefaultModel string `json:"defaultModel,omitempty"`
	// Timeouts are the timeouts of the pool's requests and endpoints.
	Timeouts *PoolTimeouts `json:"timeouts,omitempty"`
	// Flow configures the queue in which requests wait for the pool's engines.
	Flow *PoolFlow `json:"flow,omitempty"`
	// Placement configures which models control loads onto the pool's engines.
	Placement *Placement `json:"placement,omitempty"`
	// EngineToken is the bearer token that extproc and control send when they scrape and manage the
	// pool's engines. Requests of clients do not get it, unless authorization is Engine. It applies
	// only to objects of an API server; for objects in a folder use --engine-token-file.
	EngineToken *EngineToken `json:"engineToken,omitempty"`
	// Authorization is the Authorization header that engines get with requests. Client, the
	// default, passes on the client's header. Engine replaces it by the token of engineToken, or
	// removes it while the token cannot be read. It needs extproc: another endpoint picker cannot
	// set the token, and without extproc requests fail.
	// +kubebuilder:validation:Enum=Client;Engine
	Authorization string `json:"authorization,omitempty"`
	// EngineTLS makes the Envoys of Headgate's Gateways, extproc and control connect to the pool's
	// engines with TLS. extproc and control otherwise follow --engine-tls. The Envoy of envoy.yaml
	// ignores it.
	EngineTLS *EngineTLS `json:"engineTLS,omitempty"`
	// Profile is the speed and the limits of the pool's engines. It is optional: extproc learns a
	// profile from requests.
	Profile *PoolProfile `json:"profile,omitempty"`
	// Ports are further ports of the pool's endpoints. They apply to pods, and to EndpointLists
	// that do not set ports.
	Ports *Ports `json:"ports,omitempty"`
	// RPCConfigs has one entry for each gRPC method, package.Service/Method, whose messages name
	// the model. It corresponds to ModelMesh's data plane configuration, and replaces the built-in
	// entries for KServe's V2, TensorFlow Serving and TorchServe. It does not change which methods
	// clients may call. At most 64 entries.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(method, method.matches('^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*/[A-Za-z_][A-Za-z0-9_]*$'))",message="write methods as package.Service/Method"
	RPCConfigs map[string]RPCConfig `json:"rpcConfigs,omitempty"`
	// AllowOtherRPCs says whether clients may call gRPC methods without an entry in rpcConfigs,
	// with the model in the headers. The default is true.
	AllowOtherRPCs *bool `json:"allowOtherRpcs,omitempty"`
}

// RPCConfig is the location of the model's id in the messages of a gRPC method.
type RPCConfig struct {
	// IDExtractionPath lists the field numbers that lead to the model's id, a string. Every number
	// but the last selects a nested message. At most 16. If it is empty, or a message lacks the
	// field, the id is in the headers.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=536870911
	// +kubebuilder:validation:XValidation:rule="self.all(n, n < 19000 || n > 19999)",message="protobuf reserves the field numbers from 19000 to 19999"
	IDExtractionPath []int32 `json:"idExtractionPath,omitempty"`
	// VModelID says that the id names a VModel, if one with that id exists. The default is false.
	VModelID bool `json:"vModelId,omitempty"`
}

// PoolProfile is the speed and the limits of a pool's engines. Set one of inline, file, or hardware
// with parameters. All may be empty if accelerators is set.
// +kubebuilder:validation:XValidation:rule="(has(self.inline) ? 1 : 0) + (has(self.file) && size(self.file) > 0 ? 1 : 0) + (has(self.hardware) && size(self.hardware) > 0 || has(self.parameters) && size(self.parameters) > 0 ? 1 : 0) in (has(self.accelerators) && size(self.accelerators) > 0 ? [0, 1] : [1])",message="set one of inline, file, and hardware with parameters"
// +kubebuilder:validation:XValidation:rule="(has(self.hardware) && size(self.hardware) > 0) == (has(self.parameters) && size(self.parameters) > 0)",message="set both hardware and parameters, such as 4 x A100-80GB and 70B"
// +kubebuilder:validation:XValidation:rule="!has(self.pinned) || !self.pinned || has(self.inline) || has(self.file) && size(self.file) > 0 || has(self.hardware) && size(self.hardware) > 0",message="pinned needs a profile: set inline, file, or hardware with parameters"
// +kubebuilder:validation:XValidation:rule="!has(self.accelerators) || size(self.accelerators) == 0 || has(self.acceleratorLabel) && size(self.acceleratorLabel) > 0",message="name the label that says which accelerator an endpoint has",reason=FieldValueRequired,fieldPath=".acceleratorLabel"
type PoolProfile struct {
	// Inline is the profile itself, as `headgate profile fit` prints it and extproc serves it at
	// /profiles.
	Inline *EngineProfile `json:"inline,omitempty"`
	// File is the name of a YAML file that contains only the profile, in the folder of this object.
	// It is only for objects in a folder.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == ''",message="file works only for objects in a folder: put its content under inline"
	File string `json:"file,omitempty"`
	// Hardware is the number and kind of GPUs that serve one copy of the base model together, such
	// as 4 x A100-80GB. Known kinds are T4, V100-16GB, V100-32GB, A10, A10G, L4, L40S, A100-40GB,
	// A100-80GB, H100-80GB and H200-141GB.
	// +kubebuilder:validation:MaxLength=253
	Hardware string `json:"hardware,omitempty"`
	// Parameters is the number of parameters of the base model, such as 70B.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^ *[0-9]+([.][0-9]+)? *[bBmM] *$')",message="set the model's number of parameters, such as 8B, 70B or 500M"
	Parameters string `json:"parameters,omitempty"`
	// AcceleratorLabel is the label of Pods and EndpointLists whose value is the accelerator of an
	// endpoint. Set it if a pool mixes hardware: extproc then learns one profile for each
	// accelerator.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && (!self.contains('/') || size(self.split('/')[0]) <= 253)",message="no label can have this name: write one such as example.com/gpu"
	AcceleratorLabel string `json:"acceleratorLabel,omitempty"`
	// Pinned makes extproc use the profile as it is and learn no timing of this pool. By default
	// the profile is the starting point for learning.
	Pinned bool `json:"pinned,omitempty"`
	// Accelerators are the profiles of single accelerators, at most 32. They replace the profile of
	// the pool for endpoints with that accelerator.
	// +listType=map
	// +listMapKey=accelerator
	// +kubebuilder:validation:MaxItems=32
	Accelerators []AcceleratorProfile `json:"accelerators,omitempty"`
}

// AcceleratorProfile is the speed and the limits of the engines on one accelerator. Set one of
// inline, file, or hardware with parameters.
// +kubebuilder:validation:XValidation:rule="(has(self.inline) ? 1 : 0) + (has(self.file) && size(self.file) > 0 ? 1 : 0) + (has(self.hardware) && size(self.hardware) > 0 || has(self.parameters) && size(self.parameters) > 0 ? 1 : 0) == 1",message="set one of inline, file, and hardware with parameters"
// +kubebuilder:validation:XValidation:rule="(has(self.hardware) && size(self.hardware) > 0) == (has(self.parameters) && size(self.parameters) > 0)",message="set both hardware and parameters, such as 4 x A100-80GB and 70B"
type AcceleratorProfile struct {
	// Accelerator is a value of the label that acceleratorLabel names.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Accelerator string `json:"accelerator"`
	// Inline is the profile itself, as `headgate profile fit` prints it and extproc serves it at
	// /profiles.
	Inline *EngineProfile `json:"inline,omitempty"`
	// File is the name of a YAML file that contains only the profile, in the folder of this object.
	// It is only for objects in a folder.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == ''",message="file works only for objects in a folder: put its content under inline"
	File string `json:"file,omitempty"`
	// Hardware is the number and kind of GPUs that serve one copy of the base model together, such
	// as 4 x A100-80GB.
	// +kubebuilder:validation:MaxLength=253
	Hardware string `json:"hardware,omitempty"`
	// Parameters is the number of parameters of the base model, such as 70B.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^ *[0-9]+([.][0-9]+)? *[bBmM] *$')",message="set the model's number of parameters, such as 8B, 70B or 500M"
	Parameters string `json:"parameters,omitempty"`
	// Pinned makes extproc use the profile as it is and learn no timing of this accelerator.
	Pinned bool `json:"pinned,omitempty"`
}

// EngineProfile is the speed of one engine, in seconds, and its limits.
type EngineProfile struct {
	// Name is the model and the hardware, as a note for readers.
	// +kubebuilder:validation:MaxLength=512
	Name string `json:"name,omitempty"`
	// Source is the origin of the figures, as a note for readers.
	// +kubebuilder:validation:MaxLength=4096
	Source string `json:"source,omitempty"`
	// FrontendOverhead is the time that the engine's API server needs to read and tokenize a
	// request before it is queued, in seconds.
	// +kubebuilder:validation:Minimum=0
	FrontendOverhead float64 `json:"frontendOverhead,omitempty"`
	// Prefill is the time to compute a prompt.
	Prefill PrefillTimes `json:"prefill"`
	// Decode is the time of a step that computes one token for each running request.
	Decode DecodeTimes `json:"decode"`
	// LaunchOverhead is the time to launch the kernels of a step with prompts, in seconds. Such a
	// step takes at least this long.
	// +kubebuilder:validation:Minimum=0
	LaunchOverhead float64 `json:"launchOverhead,omitempty"`
	// MixedBatchOverhead is added to the computed time of a step that contains both prompts and
	// decoding requests, in seconds. It has no effect if the sum is below prefill.floor or
	// launchOverhead.
	// +kubebuilder:validation:Minimum=0
	MixedBatchOverhead float64 `json:"mixedBatchOverhead,omitempty"`
	// AsyncScheduling says that the engine schedules the next step during the current one
	// (async_scheduling in vLLM).
	AsyncScheduling bool `json:"asyncScheduling,omitempty"`
	// AdapterLoad is the time to load an adapter from storage into host memory.
	// +optional
	AdapterLoad Spread `json:"adapterLoad"`
	// AdapterActivation is the time to copy an adapter from host memory into a slot on the GPU.
	// +optional
	AdapterActivation Spread `json:"adapterActivation"`
	// Limits are the engine's limits of batch, memory and adapters.
	Limits EngineLimits `json:"limits"`
}

// PrefillTimes is the time to compute n prompt tokens after c tokens that are already in the KV
// cache: the larger of floor and base + perToken*n + perTokenSquared*((c+n)² - c²), in seconds.
type PrefillTimes struct {
	// Floor is the time of the shortest prompts, in seconds.
	// +kubebuilder:validation:Minimum=0
	Floor float64 `json:"floor,omitempty"`
	// Base is the constant part, in seconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Base float64 `json:"base"`
	// PerToken is the time for each computed token, in seconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PerToken float64 `json:"perToken"`
	// PerTokenSquared is the time for attention, whose cost grows with all earlier tokens, in
	// seconds.
	// +kubebuilder:validation:Minimum=0
	PerTokenSquared float64 `json:"perTokenSquared,omitempty"`
	// MaxMeasuredTokens is the number of tokens in the longest measured prompt. headgate plan warns
	// if prompts are longer. 0 is unknown.
	// +kubebuilder:validation:Minimum=0
	MaxMeasuredTokens int `json:"maxMeasuredTokens,omitempty"`
}

// DecodeTimes is the time of a decoding step, in seconds: base, plus perSequence for each request,
// plus perKVToken for each token of these requests in the KV cache.
type DecodeTimes struct {
	// Base is the time to read the weights, in seconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Base float64 `json:"base"`
	// PerSequence is the time for each request in the step, in seconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PerSequence float64 `json:"perSequence"`
	// PerKVToken is the time for each token of these requests in the KV cache, in seconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PerKVToken float64 `json:"perKVToken"`
	// AdapterSlowdown is the factor by which a step with adapters takes longer, at least 1. 0, the
	// default, means 1.
	// +kubebuilder:validation:XValidation:rule="self == 0.0 || self >= 1.0",message="it is how many times as long a step takes with adapters, at least 1"
	AdapterSlowdown float64 `json:"adapterSlowdown,omitempty"`
}

// Spread is the mean and the standard deviation of a time.
type Spread struct {
	// Mean is the mean, in seconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Mean float64 `json:"mean"`
	// StdDev is the standard deviation, in seconds.
	//
	// +kubebuilder:validation:Minimum=0
	StdDev float64 `json:"stddev,omitempty"`
}

// EngineLimits are the engine's limits of batch, memory and adapters.
// +kubebuilder:validation:XValidation:rule="(has(self.hostAdapters) ? self.hostAdapters : 0) >= (has(self.gpuAdapters) ? self.gpuAdapters : 0)",message="it must be at least gpuAdapters",fieldPath=".hostAdapters"
type EngineLimits struct {
	// MaxSequences is the maximum number of requests in a step (max_num_seqs in vLLM).
	// +kubebuilder:validation:Minimum=1
	MaxSequences int `json:"maxSequences"`
	// MaxBatchedTokens is the maximum number of tokens in a step (max_num_batched_tokens in vLLM).
	// +kubebuilder:validation:Minimum=1
	MaxBatchedTokens int `json:"maxBatchedTokens"`
	// KVBlocks is the number of blocks in the KV cache (num_gpu_blocks in vLLM).
	// +kubebuilder:validation:Minimum=1
	KVBlocks int `json:"kvBlocks"`
	// BlockSize is the number of tokens in a block.
	// +kubebuilder:validation:Minimum=1
	BlockSize int `json:"blockSize"`
	// GPUAdapters is the number of adapters that fit on the GPU (max_loras in vLLM).
	// +optional
	// +kubebuilder:validation:Minimum=0
	GPUAdapters int `json:"gpuAdapters"`
	// HostAdapters is the number of adapters that fit in host memory, including those on the GPU
	// (max_cpu_loras in vLLM).
	// +optional
	// +kubebuilder:validation:Minimum=0
	HostAdapters int `json:"hostAdapters"`
}

// AuthorizationOfEngine is the value of authorization with which engines get the token of
// engineToken.
const AuthorizationOfEngine = "Engine"

// EngineTLS says how the certificates of engines are verified.
// +kubebuilder:validation:XValidation:rule="has(self.insecureSkipVerify) && self.insecureSkipVerify || has(self.hostname) && size(self.hostname) > 0",message="set the DNS name in the engines' certificates",reason=FieldValueRequired,fieldPath=".hostname"
// +kubebuilder:validation:XValidation:rule="!has(self.insecureSkipVerify) || !self.insecureSkipVerify || !has(self.caCertificates)",message="insecureSkipVerify ignores them: set only one of the two",fieldPath=".caCertificates"
type EngineTLS struct {
	// Hostname is a DNS name that the certificates of all engines of the pool contain. It is also
	// sent as the server name (SNI). It is required unless insecureSkipVerify is set.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="want a DNS name, such as engines.llm.svc"
	Hostname string `json:"hostname,omitempty"`
	// CACertificates are the trusted certificate authorities, in PEM. The default is the system's:
	// for extproc and control those of their machine, for Envoy the file
	// /etc/ssl/certs/ca-certificates.crt on its machine.
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule="self == '' || self.contains('-----BEGIN CERTIFICATE-----')",message="want certificates in PEM"
	CACertificates string `json:"caCertificates,omitempty"`
	// InsecureSkipVerify accepts any certificate, so that anyone who intercepts the connection can
	// read requests and the token. The default is false.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// EngineToken is the location of a bearer token.
type EngineToken struct {
	// SecretRef names a Secret in the same namespace. A Role of that namespace must allow the
	// service accounts of extproc and control to get it. A changed token is used after about ten
	// seconds.
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name the Secret, in the same namespace",reason=FieldValueRequired,fieldPath=".name"
	SecretRef SecretKeyReference `json:"secretRef"`
}

// SecretKeyReference names a key of a Secret in the object's own namespace.
type SecretKeyReference struct {
	// Name is the name of the Secret.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="no Secret can have this name: write one such as engine-token"
	Name string `json:"name"`
	// Key is the key in the Secret's data. The default is token.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[-._a-zA-Z0-9]+$') && self != '.' && !self.startsWith('..')",message="no Secret can have this key: write one such as token"
	Key string `json:"key,omitempty"`
}

// Placement configures which models control loads onto the engines of a pool.
type Placement struct {
	// MaxAdapters is the maximum number of adapters that are registered at one endpoint, at least
	// 1. The default is hostAdapters, else the number of adapters that the engine reports for its
	// GPU (max_loras in vLLM), else 1.
	// +kubebuilder:validation:Minimum=1
	MaxAdapters *int32 `json:"maxAdapters,omitempty"`
	// HostAdapters is the number of adapters that fit in an engine's host memory, including those
	// on its GPU (max_cpu_loras in vLLM), at least 1. Engines do not report it. An engine with more
	// adapters reads some of them from storage when they are used.
	// +kubebuilder:validation:Minimum=1
	HostAdapters *int32 `json:"hostAdapters,omitempty"`
	// Capacity is the memory for models at one endpoint, above 0, such as 4Gi. It applies to
	// engines that do not report it: mlserver, triton, torchserve and tfserving. A model counts
	// with the size of its Model, else that in its key, else defaultSize. By default only the
	// number of models is limited.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="it must be above 0, such as 4Gi"
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// MaxModels is the maximum number of models at one endpoint of such engines, at least 1. The
	// default is the number that fits into capacity, or 1 if capacity is not set.
	// +kubebuilder:validation:Minimum=1
	MaxModels *int32 `json:"maxModels,omitempty"`
	// DefaultSize is the assumed memory of a model of unknown size, above 0. The default is 1M, as
	// in ModelMesh.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="it must be above 0, such as 50Mi"
	DefaultSize *resource.Quantity `json:"defaultSize,omitempty"`
	// Eviction selects the model to evict if an endpoint has no room. reloadCost, the default,
	// evicts the model with the lowest expected reload cost, computed from its request rate, load
	// time and size. The window over which the request rate counts is tuned automatically. lru
	// evicts the least recently used model.
	// +kubebuilder:validation:Enum=reloadCost;lru
	Eviction string `json:"eviction,omitempty"`
	// ScaleUpRPM is the number of requests per minute that one copy of a model serves, at least 10
	// (MM_SCALEUP_RPM_THRESHOLD in ModelMesh). A model with more requests gets another copy. By
	// default a model gets another copy if its requests keep more engines busy than one endpoint's
	// share of the pool.
	// +kubebuilder:validation:Minimum=10
	ScaleUpRPM *int32 `json:"scaleUpRPM,omitempty"`
	// LoadTimeout is the longest time that a load may take, above 0. A shorter limit of the engine
	// takes precedence. The default is the engine's limit, else a multiple of the load times that
	// were measured for models of that type in the pool. Before four loads are measured, it is 1
	// minute for adapters of vLLM and SGLang, and 2 minutes for all other models.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	LoadTimeout *metav1.Duration `json:"loadTimeout,omitempty"`
	// FailureExpiry is how long control remembers a failed load, above 0. Meanwhile it does not
	// load the model at that endpoint, and after three failures nowhere. The time is halved for a
	// model with requests. The default is 15 minutes.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	FailureExpiry *metav1.Duration `json:"failureExpiry,omitempty"`
	// Source is the path or URI from which engines read models whose Model has no source. {id}
	// stands for the model's id. The default is {id}.
	// +kubebuilder:validation:MaxLength=4096
	Source string `json:"source,omitempty"`
	// Management is the port of the management API of model runtimes and of engines of the kinds
	// torchserve, vllm and sglang, as port:NUMBER at the address of each endpoint. For vllm and
	// sglang it is the port of an agent, which fetches adapters. Endpoints of the pool without
	// another engine kind become model runtimes.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.matches('^port:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="want port:NUMBER, such as port:8085; a socket is for an EndpointList of one address in a folder"
	Management string `json:"management,omitempty"`
	// Constraints restrict models of a type to some endpoints, by labels of pods and EndpointLists.
	// At most 64. By default every endpoint can load every model.
	// +optional
	// +listType=map
	// +listMapKey=modelType
	// +kubebuilder:validation:MaxItems=64
	Constraints []Constraint `json:"constraints,omitempty"`
}

// Constraint restricts models of one type to some endpoints.
type Constraint struct {
	// ModelType is the type of the models, such as sklearn. If it is empty, the constraint applies
	// to all types without their own constraint.
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=512
	ModelType string `json:"modelType"`
	// Required are the labels that an endpoint must have to load the models: all of them, at most
	// 16.
	// +kubebuilder:validation:MaxProperties=16
	Required map[string]LabelValue `json:"required,omitempty"`
	// Preferred are up to 16 sets of labels. Control prefers endpoints with all labels of any of
	// the sets, unless requests would wait longer or another model would have to be evicted. By
	// default it prefers endpoints that the fewest other model types may use.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinProperties=1
	// +kubebuilder:validation:items:MaxProperties=16
	Preferred []map[string]LabelValue `json:"preferred,omitempty"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
type LabelValue string

// The values of [Placement.Eviction].
const (
	EvictionReloadCost = "reloadCost"
	EvictionLRU        = "lru"
)

// PoolReference names an InferencePool in the object's own namespace.
type PoolReference struct {
	// Name is the name of the pool.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Retry configures retries at other endpoints.
type Retry struct {
	// Attempts is the number of further endpoints, 0 to 7, that the data plane may try in order if
	// the first one rejects the request. The default is extproc --endpoints-per-request, minus 1.
	// More than 0 needs a data plane that supports a list of endpoints; an ORIGINAL_DST cluster
	// answers a list with 503.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	Attempts *int32 `json:"attempts,omitempty"`
	// Unavailable says whether to retry at the next endpoint if an engine answers UNAVAILABLE, or
	// 503 without Retry-After. The default is true, because full and stopping engines answer like
	// that. Set it to false for models that return these errors themselves and must not run twice.
	// Refused connections are retried in any case.
	Unavailable *bool `json:"unavailable,omitempty"`
}

// SessionAffinity names the header or the cookie that identifies a session. It is a preference:
// extproc picks another endpoint if the session's endpoint has much more load than the others.
// +kubebuilder:validation:XValidation:rule="(has(self.header) && size(self.header) > 0) != (has(self.cookie) && size(self.cookie) > 0)",message="name either a header or a cookie"
type SessionAffinity struct {
	// Header is the name of a request header, in lower case.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self == self.lowerAscii()",message="write the header's name in lower case"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith(':')",message="it is a part of the request line: name a header, such as x-session-id"
	Header string `json:"header,omitempty"`
	// Cookie is the name of a cookie.
	// +kubebuilder:validation:MaxLength=256
	Cookie string `json:"cookie,omitempty"`
}

// PoolTimeouts are the timeouts of a pool, all above 0 except empty.
// +kubebuilder:validation:XValidation:rule="!has(self.staleAfter) || !has(self.lostAfter) || !self.staleAfter.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') || !self.lostAfter.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') || duration(self.lostAfter) >= duration(self.staleAfter)",message="it must be at least as long as staleAfter",fieldPath=".lostAfter"
type PoolTimeouts struct {
	// Request is the longest time from the last byte of a request to the last byte of its answer.
	// Only Headgate's own data plane enforces it. The default is no limit.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	Request *metav1.Duration `json:"request,omitempty"`
	// Queue is the longest time that a request waits in extproc, for its model to be loaded or for
	// an engine with room. The default is that of extproc --max-queue-time, 5m unless set.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	Queue *metav1.Duration `json:"queue,omitempty"`
	// Empty is the longest time that a request waits while no endpoint of the pool may get
	// requests, such as while an autoscaler starts the first pod. The default is 0: such requests
	// get 503 at once. The longest wait is 5m, the max_message_timeout of envoy.yaml, unless
	// extproc --max-queue-time is longer.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$|^0$') && duration(self) >= duration('0s')",message="it must be at least 0, such as 150s"
	Empty *metav1.Duration `json:"empty,omitempty"`
	// InFlight is the time after which a request no longer counts as in flight if nothing reports
	// its end. The default is that of extproc --in-flight-timeout, 1m unless set.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	InFlight *metav1.Duration `json:"inFlight,omitempty"`
	// StaleAfter is the time without an answer after which an endpoint gets only requests that no
	// other endpoint can serve. The default is that of extproc --stale-after, 1s unless set.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	StaleAfter *metav1.Duration `json:"staleAfter,omitempty"`
	// LostAfter is the time without an answer after which an endpoint gets requests only if all
	// endpoints are silent. It is at least staleAfter. The default is that of extproc --lost-after,
	// 10s unless set.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	LostAfter *metav1.Duration `json:"lostAfter,omitempty"`
}
