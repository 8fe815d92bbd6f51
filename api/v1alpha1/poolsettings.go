package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PoolSettingsKind is the kind of [PoolSettings].
const PoolSettingsKind = "PoolSettings"

// PoolSettings says how extproc picks among the endpoints of one InferencePool, where that is not
// as its flags say. What it leaves out stays as the flags have it.
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
	// Policy says how extproc picks an endpoint: latency, proposal, leastRequest, roundRobin or
	// random. Latency is the default; while its predictions are not to be trusted it is proposal.
	// +kubebuilder:validation:Enum=latency;proposal;leastRequest;roundRobin;random
	Policy *string `json:"policy,omitempty"`
	// AdapterThreshold is, with the policy proposal, how many requests in flight for one adapter at
	// one endpoint make extproc prefer another endpoint. At least 1.
	// +kubebuilder:validation:Minimum=1
	AdapterThreshold *int64 `json:"adapterThreshold,omitempty"`
	// Retry says where a request goes that an endpoint turned away.
	Retry *Retry `json:"retry,omitempty"`
	// SessionAffinity prefers one endpoint for the requests of a session.
	SessionAffinity *SessionAffinity `json:"sessionAffinity,omitempty"`
	// DefaultModel is the model for OpenAI and Anthropic requests that name no model (missing,
	// empty or null). extproc writes it into the body, so it must be a name that clients may use.
	// It applies only if the pool is known without the model: through an HTTPRoute, another gateway
	// or --pool-name, or because there is only one pool. Without it, such requests get 400.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	DefaultModel string `json:"defaultModel,omitempty"`
	// Timeouts bound what may take long.
	Timeouts *PoolTimeouts `json:"timeouts,omitempty"`
	// Placement says how models are put onto the pool's engines.
	Placement *Placement `json:"placement,omitempty"`
	// EngineToken is the bearer token with which extproc looks at the pool's engines, and control
	// tells them what to load. Requests of clients are passed on without it, if authorization does
	// not say otherwise. It is for objects of an API server alone: the engines of a folder have the
	// token of --engine-token-file.
	EngineToken *EngineToken `json:"engineToken,omitempty"`
	// Authorization is what engines get as the Authorization header of requests: Client, the
	// default, is the client's own, and Engine the token of engineToken in its place, or nothing
	// while that cannot be read. The client's own never reaches an engine then. extproc sends it
	// where it picks: another endpoint picker cannot, and without extproc no request is sent.
	// +kubebuilder:validation:Enum=Client;Engine
	Authorization string `json:"authorization,omitempty"`
	// EngineTLS has the pool's engines reached over TLS: by the Envoys of Headgate's Gateways, and
	// by extproc and control, for which --engine-tls says it else. The Envoy of envoy.yaml does not
	// read it.
	EngineTLS *EngineTLS `json:"engineTLS,omitempty"`
	// Profile says how long the pool's engines take, and how much they hold. Nobody has to write one.
	Profile *PoolProfile `json:"profile,omitempty"`
	// Ports are where else the pool's endpoints listen than at its targetPorts, or at the addresses
	// of EndpointLists that say nothing of that.
	Ports *Ports `json:"ports,omitempty"`
	// RPCConfigs say of gRPC methods, package.Service/Method, where their messages name the model:
	// ModelMesh's configuration of its data plane. They take the place of what is known of methods
	// by default: of KServe's V2, TensorFlow Serving and TorchServe. Which methods no client may
	// call stays as it is.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(method, method.matches('^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*/[A-Za-z_][A-Za-z0-9_]*$'))",message="write methods as package.Service/Method"
	RPCConfigs map[string]RPCConfig `json:"rpcConfigs,omitempty"`
	// AllowOtherRPCs says whether models of the pool take calls of gRPC methods that rpcConfigs do
	// not name, whose headers name the model. The default is true.
	AllowOtherRPCs *bool `json:"allowOtherRpcs,omitempty"`
}

// RPCConfig says where the messages of a gRPC method name the model.
type RPCConfig struct {
	// IDExtractionPath are the numbers of fields that lead to the model's id, a string: all but the
	// last are of messages, each within the one before. Without it, and in a message that names
	// none, the id is in the headers.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=536870911
	// +kubebuilder:validation:XValidation:rule="self.all(n, n < 19000 || n > 19999)",message="protobuf keeps the numbers from 19000 to 19999 for itself"
	IDExtractionPath []int32 `json:"idExtractionPath,omitempty"`
	// VModelID says that the id in messages is that of a VModel, if there is one of it.
	VModelID bool `json:"vModelId,omitempty"`
}

// PoolProfile says how long engines take: by figures, by the name of a file that has them, or by
// what the engines run on. One of inline, file, and hardware with parameters is given, or none
// where classes have their own.
// +kubebuilder:validation:XValidation:rule="(has(self.inline) ? 1 : 0) + (has(self.file) && size(self.file) > 0 ? 1 : 0) + (has(self.hardware) && size(self.hardware) > 0 || has(self.parameters) && size(self.parameters) > 0 ? 1 : 0) in (has(self.accelerators) && size(self.accelerators) > 0 ? [0, 1] : [1])",message="write one of inline, file, and hardware with parameters"
// +kubebuilder:validation:XValidation:rule="(has(self.hardware) && size(self.hardware) > 0) == (has(self.parameters) && size(self.parameters) > 0)",message="write both hardware and parameters, such as 4 x A100-80GB and 70B"
// +kubebuilder:validation:XValidation:rule="!has(self.pinned) || !self.pinned || has(self.inline) || has(self.file) && size(self.file) > 0 || has(self.hardware) && size(self.hardware) > 0",message="say what is pinned: inline, file, or hardware with parameters"
// +kubebuilder:validation:XValidation:rule="!has(self.accelerators) || size(self.accelerators) == 0 || has(self.acceleratorLabel) && size(self.acceleratorLabel) > 0",message="name the label that says which accelerator an endpoint has",reason=FieldValueRequired,fieldPath=".acceleratorLabel"
type PoolProfile struct {
	// Inline is the profile, as control profile fit prints it, and extproc what it has learned.
	Inline *EngineProfile `json:"inline,omitempty"`
	// File is the name of a YAML file, in the folder of this object, that holds the profile and
	// nothing else. It is for objects of a folder alone.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == ''",message="a file is for objects in a folder: write what it holds as inline"
	File string `json:"file,omitempty"`
	// Hardware is how many GPUs of which kind share one copy of the model, such as 4 x A100-80GB.
	// Known are T4, V100-16GB, V100-32GB, A10, A10G, L4, L40S, A100-40GB, A100-80GB, H100-80GB and
	// H200-141GB.
	// +kubebuilder:validation:MaxLength=253
	Hardware string `json:"hardware,omitempty"`
	// Parameters is how many the model has, such as 70B.
	//
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^ *[0-9]+([.][0-9]+)? *[bBmM] *$')",message="write how many parameters the model has, such as 8B, 70B or 500M"
	Parameters string `json:"parameters,omitempty"`
	// AcceleratorLabel is the name of the label of Pods and EndpointLists that says which class of
	// hardware an endpoint runs on, where a pool has several: what endpoints of one class take is
	// learned apart from what others take.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && (!self.contains('/') || size(self.split('/')[0]) <= 253)",message="no label can have this name: write one such as example.com/gpu"
	AcceleratorLabel string `json:"acceleratorLabel,omitempty"`
	// Pinned has requests decided by the profile as it is, and nothing learned of how long engines
	// take: neither of their kind, nor of one beside others. Without it the profile is what
	// learning begins with.
	Pinned bool `json:"pinned,omitempty"`
	// Accelerators are profiles of single classes of hardware, in the place of the pool's own.
	//
	// +listType=map
	// +listMapKey=accelerator
	// +kubebuilder:validation:MaxItems=32
	Accelerators []AcceleratorProfile `json:"accelerators,omitempty"`
}

// AcceleratorProfile is how long engines of one class of hardware take, in one of the forms of a
// pool's profile.
// +kubebuilder:validation:XValidation:rule="(has(self.inline) ? 1 : 0) + (has(self.file) && size(self.file) > 0 ? 1 : 0) + (has(self.hardware) && size(self.hardware) > 0 || has(self.parameters) && size(self.parameters) > 0 ? 1 : 0) == 1",message="write one of inline, file, and hardware with parameters"
// +kubebuilder:validation:XValidation:rule="(has(self.hardware) && size(self.hardware) > 0) == (has(self.parameters) && size(self.parameters) > 0)",message="write both hardware and parameters, such as 4 x A100-80GB and 70B"
type AcceleratorProfile struct {
	// Accelerator is the value of the label that acceleratorLabel names.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Accelerator string `json:"accelerator"`
	// Inline is the profile, as control profile fit prints it, and extproc what it has learned.
	Inline *EngineProfile `json:"inline,omitempty"`
	// File is the name of a YAML file, in the folder of this object, that holds the profile and
	// nothing else. It is for objects of a folder alone.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == ''",message="a file is for objects in a folder: write what it holds as inline"
	File string `json:"file,omitempty"`
	// Hardware is how many GPUs of which kind share one copy of the model, as in a pool's profile.
	//
	// +kubebuilder:validation:MaxLength=253
	Hardware string `json:"hardware,omitempty"`
	// Parameters is how many the model has, such as 70B.
	//
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^ *[0-9]+([.][0-9]+)? *[bBmM] *$')",message="write how many parameters the model has, such as 8B, 70B or 500M"
	Parameters string `json:"parameters,omitempty"`
	// Pinned has requests decided by the profile as it is, and nothing learned of how long engines
	// of the class take.
	Pinned bool `json:"pinned,omitempty"`
}

// EngineProfile is how long one engine takes, in seconds, and how much it holds.
type EngineProfile struct {
	// Name says which model on which hardware, for people.
	//
	// +kubebuilder:validation:MaxLength=512
	Name string `json:"name,omitempty"`
	// Source says where the figures are from, for people.
	//
	// +kubebuilder:validation:MaxLength=4096
	Source string `json:"source,omitempty"`
	// FrontendOverhead is how long a request takes before it is in its engine's queue, in seconds:
	// an API server reads it and makes tokens of it.
	// +kubebuilder:validation:Minimum=0
	FrontendOverhead float64 `json:"frontendOverhead,omitempty"`
	// Prefill is how long a prompt takes.
	Prefill PrefillTimes `json:"prefill"`
	// Decode is how long a step takes in which each request gets one token.
	Decode DecodeTimes `json:"decode"`
	// LaunchOverhead is how long the engine takes to start the kernels of a step with prompts, in
	// seconds; such a step takes at least that.
	// +kubebuilder:validation:Minimum=0
	LaunchOverhead float64 `json:"launchOverhead,omitempty"`
	// MixedBatchOverhead is by how much longer a step takes that has both prompts and decoding
	// requests than their terms say, in seconds. It has no effect on steps whose terms and
	// MixedBatchOverhead together are below the floor of prefill or below launchOverhead.
	// +kubebuilder:validation:Minimum=0
	MixedBatchOverhead float64 `json:"mixedBatchOverhead,omitempty"`
	// AsyncScheduling is set where the engine schedules a step while the one before it is computed:
	// async_scheduling of vLLM.
	AsyncScheduling bool `json:"asyncScheduling,omitempty"`
	// AdapterLoad is how long an adapter takes from storage into host memory.
	//
	// +optional
	AdapterLoad Spread `json:"adapterLoad"`
	// AdapterActivation is how long an adapter takes from host memory into a slot of the GPU.
	//
	// +optional
	AdapterActivation Spread `json:"adapterActivation"`
	// Limits are what an engine holds at once.
	Limits EngineLimits `json:"limits"`
}

// PrefillTimes is how long n tokens of a prompt take behind c tokens that were computed before: the
// larger of floor and base + perToken*n + perTokenSquared*((c+n)² - c²), in seconds.
type PrefillTimes struct {
	// Floor is what the shortest prompts take, in seconds.
	//
	// +kubebuilder:validation:Minimum=0
	Floor float64 `json:"floor,omitempty"`
	// Base is in seconds, as all that follows.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Base float64 `json:"base"`
	// PerToken is for each token that is computed.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	PerToken float64 `json:"perToken"`
	// PerTokenSquared is for attention, which looks at all tokens before.
	//
	// +kubebuilder:validation:Minimum=0
	PerTokenSquared float64 `json:"perTokenSquared,omitempty"`
	// MaxMeasuredTokens is how many tokens the longest prompt had that was measured. A plan warns
	// where prompts are longer. 0 is unknown.
	// +kubebuilder:validation:Minimum=0
	MaxMeasuredTokens int `json:"maxMeasuredTokens,omitempty"`
}

// DecodeTimes is how long a step takes: base, perSequence for each request in it, and perKVToken
// for each token that these have in the KV cache, in seconds.
type DecodeTimes struct {
	// Base is for reading the weights, in seconds.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Base float64 `json:"base"`
	// PerSequence is for each request in the step.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	PerSequence float64 `json:"perSequence"`
	// PerKVToken is for each token in the KV cache of these requests.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	PerKVToken float64 `json:"perKVToken"`
	// AdapterSlowdown is how many times as long a step takes in which an adapter runs. At least 1.
	//
	// +kubebuilder:validation:XValidation:rule="self == 0.0 || self >= 1.0",message="it is how many times as long a step takes with adapters, at least 1"
	AdapterSlowdown float64 `json:"adapterSlowdown,omitempty"`
}

// Spread is a time and how it varies, in seconds.
type Spread struct {
	// Mean is in seconds.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Mean float64 `json:"mean"`
	// StdDev is the standard deviation, in seconds.
	//
	// +kubebuilder:validation:Minimum=0
	StdDev float64 `json:"stddev,omitempty"`
}

// EngineLimits are what an engine holds at once.
//
// +kubebuilder:validation:XValidation:rule="(has(self.hostAdapters) ? self.hostAdapters : 0) >= (has(self.gpuAdapters) ? self.gpuAdapters : 0)",message="it must be at least gpuAdapters",fieldPath=".hostAdapters"
type EngineLimits struct {
	// MaxSequences is how many requests are in a step: max_num_seqs of vLLM.
	//
	// +kubebuilder:validation:Minimum=1
	MaxSequences int `json:"maxSequences"`
	// MaxBatchedTokens is how many tokens a step computes: max_num_batched_tokens of vLLM.
	//
	// +kubebuilder:validation:Minimum=1
	MaxBatchedTokens int `json:"maxBatchedTokens"`
	// KVBlocks is how many blocks the KV cache has: num_gpu_blocks of vLLM.
	//
	// +kubebuilder:validation:Minimum=1
	KVBlocks int `json:"kvBlocks"`
	// BlockSize is how many tokens a block holds.
	//
	// +kubebuilder:validation:Minimum=1
	BlockSize int `json:"blockSize"`
	// GPUAdapters is how many adapters have a slot on the GPU: max_loras of vLLM.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	GPUAdapters int `json:"gpuAdapters"`
	// HostAdapters is how many adapters are in host memory, those on the GPU among them:
	// max_cpu_loras of vLLM.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HostAdapters int `json:"hostAdapters"`
}

// AuthorizationOfEngine is an authorization: engines get their own token with requests.
const AuthorizationOfEngine = "Engine"

// EngineTLS says how engines are known: by a name that their certificates are for, or not at all.
//
// +kubebuilder:validation:XValidation:rule="has(self.insecureSkipVerify) && self.insecureSkipVerify || has(self.hostname) && size(self.hostname) > 0",message="name what the engines' certificates are for",reason=FieldValueRequired,fieldPath=".hostname"
// +kubebuilder:validation:XValidation:rule="!has(self.insecureSkipVerify) || !self.insecureSkipVerify || !has(self.caCertificates)",message="with insecureSkipVerify nobody looks at them",fieldPath=".caCertificates"
type EngineTLS struct {
	// Hostname is the DNS name that the certificates of all the pool's engines are for, which
	// engines are told as the server's. It is not needed with insecureSkipVerify.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="want a DNS name, such as engines.llm.svc"
	Hostname string `json:"hostname,omitempty"`
	// CACertificates are the certificate authorities that are trusted, in PEM. Without them those
	// of the system are, where extproc and control run, and for Envoy those in
	// /etc/ssl/certs/ca-certificates.crt where it runs.
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule="self == '' || self.contains('-----BEGIN CERTIFICATE-----')",message="want certificates in PEM"
	CACertificates string `json:"caCertificates,omitempty"`
	// InsecureSkipVerify accepts any certificate: who intercepts the connection can read requests,
	// and the token.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// EngineToken says where a bearer token is.
type EngineToken struct {
	// SecretRef names a Secret, in the same namespace. A Role of that namespace lets the service
	// accounts of extproc and control get it. A token that is replaced there is in use within some
	// ten seconds.
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
	// MaxAdapters is how many adapters may be registered at one endpoint at once. Without it:
	// hostAdapters, else as many as its GPU holds (max_loras of vLLM) once the engine tells, and 1
	// until then. At least 1.
	// +kubebuilder:validation:Minimum=1
	MaxAdapters *int32 `json:"maxAdapters,omitempty"`
	// HostAdapters is how many adapters an engine has in host memory, those on its GPU among them
	// (max_cpu_loras of vLLM), which no engine tells: beyond them an adapter is read from storage
	// again when it is used. At least 1.
	// +kubebuilder:validation:Minimum=1
	HostAdapters *int32 `json:"hostAdapters,omitempty"`
	// Capacity is how much memory all models may take together at one endpoint of engines that load
	// models of their files (mlserver, triton, torchserve, tfserving), which do not say it: a model
	// takes the size of its Model, else that of its key, else defaultSize. Without it only their
	// number is bounded.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="it must be above 0, such as 4Gi"
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// MaxModels is how many models may be loaded at one such endpoint at once. Without it: as many
	// as capacity has room for, and 1 without that. At least 1.
	// +kubebuilder:validation:Minimum=1
	MaxModels *int32 `json:"maxModels,omitempty"`
	// DefaultSize is how much memory a model takes there of which nothing is known. The default is
	// 1M, as ModelMesh's.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="it must be above 0, such as 50Mi"
	DefaultSize *resource.Quantity `json:"defaultSize,omitempty"`
	// Eviction says which model leaves where another needs its room. reloadCost, the default, is
	// the one that is missed least: of which the fewest seconds of loads are to be expected, by how
	// often it is used, what a load of it takes, and its size. How far back use counts is found by
	// itself. lru is the one that was used least recently.
	// +kubebuilder:validation:Enum=reloadCost;lru
	Eviction string `json:"eviction,omitempty"`
	// ScaleUpRPM is how many requests a minute of one model make another copy of it. Without it a
	// model gets more copies where its requests keep more engines busy than one endpoint's share of
	// all there is. At least 10 (ModelMesh's MM_SCALEUP_RPM_THRESHOLD).
	// +kubebuilder:validation:Minimum=10
	ScaleUpRPM *int32 `json:"scaleUpRPM,omitempty"`
	// LoadTimeout bounds the load of a model. An engine's own limit applies if it is shorter.
	// Without LoadTimeout, the bound is the engine's own, else a multiple of the measured load
	// times of that model type in the pool. Until four loads are measured it is 1 minute for
	// adapters of vLLM and SGLang, and 2 minutes otherwise.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	LoadTimeout *metav1.Duration `json:"loadTimeout,omitempty"`
	// FailureExpiry is how long a load that failed counts: the model is not loaded at that engine
	// meanwhile, and nowhere after three of them. Half as long for a model in use. The default is
	// 15 minutes.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	FailureExpiry *metav1.Duration `json:"failureExpiry,omitempty"`
	// Source is where the engines find a model that does not say so itself: a path or a URI, in
	// which {id} stands for the model's id. The default is {id}.
	// +kubebuilder:validation:MaxLength=4096
	Source string `json:"source,omitempty"`
	// Management is where model runtimes and engines of the kind torchserve are managed,
	// port:NUMBER at each endpoint's own address. It makes the pool's endpoints that name no engine
	// of another kind model runtimes.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.matches('^port:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="want port:NUMBER, such as port:8085; a socket is for an EndpointList of one address in a folder"
	Management string `json:"management,omitempty"`
	// Constraints say which endpoints models may be loaded at, by their types and the labels of
	// pods and EndpointLists. Without one, all endpoints are for all models.
	// +optional
	// +listType=map
	// +listMapKey=modelType
	// +kubebuilder:validation:MaxItems=64
	Constraints []Constraint `json:"constraints,omitempty"`
}

// Constraint says which endpoints are for models of a type.
type Constraint struct {
	// ModelType is the type of the models, such as sklearn. Empty: all types that have no
	// constraint of their own.
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=512
	ModelType string `json:"modelType"`
	// Required are labels that an endpoint must have, every one of them, to load the models.
	//
	// +kubebuilder:validation:MaxProperties=16
	Required map[string]LabelValue `json:"required,omitempty"`
	// Preferred are sets of labels: the models are loaded at endpoints that have all labels of any
	// of the sets, where that has nobody wait longer and nothing leave that would not elsewhere.
	// Without it, those endpoints are preferred that the fewest other types may use.
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

// What may be written as [Placement.Eviction].
const (
	EvictionReloadCost = "reloadCost"
	EvictionLRU        = "lru"
)

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
	// Attempts is how many other endpoints the data plane is told, in order, for a request that the
	// first one turns away. 0 to 7. More than 0 needs a data plane that walks a list: ORIGINAL_DST
	// answers 503 to one.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	Attempts *int32 `json:"attempts,omitempty"`
	// Unavailable says whether to retry on the next endpoint if an engine answers UNAVAILABLE, or
	// 503 without Retry-After. The default is true, because full or stopping engines answer so. Set
	// it to false for models that return these errors themselves and must not run twice. Refused
	// connections are still retried.
	Unavailable *bool `json:"unavailable,omitempty"`
}

// SessionAffinity says what names a session: a header or a cookie. It is a preference: a session's
// endpoint that has much more to do than the others is passed over.
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
// +kubebuilder:validation:XValidation:rule="!has(self.staleAfter) || !has(self.lostAfter) || !self.staleAfter.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') || !self.lostAfter.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') || duration(self.lostAfter) >= duration(self.staleAfter)",message="it must be at least as long as staleAfter",fieldPath=".lostAfter"
type PoolTimeouts struct {
	// Request bounds a whole request, from its last byte to the last of its answer. Headgate's own
	// data plane obeys it.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	Request *metav1.Duration `json:"request,omitempty"`
	// Queue bounds how long a request waits for its model to be loaded.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	Queue *metav1.Duration `json:"queue,omitempty"`
	// InFlight is how long a request whose end nothing reports counts as in flight.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	InFlight *metav1.Duration `json:"inFlight,omitempty"`
	// StaleAfter is the silence after which an endpoint gets requests only where no other can.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	StaleAfter *metav1.Duration `json:"staleAfter,omitempty"`
	// LostAfter is the silence after which an endpoint gets requests only where every endpoint is
	// silent.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 30s"
	LostAfter *metav1.Duration `json:"lostAfter,omitempty"`
}
