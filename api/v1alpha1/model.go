package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelKind is the kind of [Model].
const ModelKind = "Model"

// Model is a model that engines can load while they run: a LoRA adapter on a base model, what is in
// a model repository, or whatever a model runtime serves. Requests may name it by its id, and so
// may LLMRoutes, as their adapter. Headgate's controller loads it where and when requests need it.
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=headgate
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=ID,type=string,JSONPath=.spec.id
// +kubebuilder:printcolumn:name=Pool,type=string,JSONPath=.spec.poolRef.name
// +kubebuilder:printcolumn:name=Copies,type=integer,JSONPath=.status.loaded
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=State,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name=Message,type=string,JSONPath=.status.message
// +kubebuilder:printcolumn:name=Used,type=date,JSONPath=.status.lastUsed,priority=1
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:validation:XValidation:rule="(has(self.spec.id) ? self.spec.id : self.metadata.name) == (has(oldSelf.spec.id) ? oldSelf.spec.id : oldSelf.metadata.name)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and make one of another name and id",reason=FieldValueForbidden,fieldPath=".spec.id"
type Model struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ModelSpec `json:"spec"`
	// Status is written by control.
	Status ModelStatus `json:"status,omitempty"`
}

// ModelList is what an API server lists.
//
// +kubebuilder:object:root=true
type ModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Model `json:"items"`
}

// ModelSpec is what people write. Only Copies, Pinned and ServiceTime may change: another model has
// another id.
// +kubebuilder:validation:XValidation:rule="self.poolRef.name == oldSelf.poolRef.name",message="only copies, pinned and serviceTime of a Model may change: delete the Model and make one of another name and id",reason=FieldValueForbidden,fieldPath=".poolRef"
// +kubebuilder:validation:XValidation:rule="(has(self.type) ? self.type : 'lora') == (has(oldSelf.type) ? oldSelf.type : 'lora')",message="only copies, pinned and serviceTime of a Model may change: delete the Model and make one of another name and id",reason=FieldValueForbidden,fieldPath=".type"
// +kubebuilder:validation:XValidation:rule="has(self.baseModel) == has(oldSelf.baseModel) && (!has(self.baseModel) || self.baseModel == oldSelf.baseModel)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and make one of another name and id",reason=FieldValueForbidden,fieldPath=".baseModel"
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and make one of another name and id",reason=FieldValueForbidden,fieldPath=".source"
// +kubebuilder:validation:XValidation:rule="has(self.key) == has(oldSelf.key) && (!has(self.key) || self.key == oldSelf.key)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and make one of another name and id",reason=FieldValueForbidden,fieldPath=".key"
// +kubebuilder:validation:XValidation:rule="has(self.size) == has(oldSelf.size) && (!has(self.size) || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) == 0)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and make one of another name and id",reason=FieldValueForbidden,fieldPath=".size"
type ModelSpec struct {
	// ID is the model's name in requests and at engines, any UTF-8 of at most 512 bytes. The
	// default is the object's name.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(^|/)[.]{0,2}(/|$)|^~|[\\x5c]')`,message="no model can have this name, which is empty or a path: write one such as sql-v2 or org/sql-v2"
	ID string `json:"id,omitempty"`
	// PoolRef names the InferencePool whose engines load it, in the same namespace.
	//
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name the InferencePool whose engines load it, in the same namespace",reason=FieldValueRequired,fieldPath=".name"
	PoolRef PoolReference `json:"poolRef"`
	// Type is what kind of model it is, in the words of its engines, such as lora or sklearn. The
	// default is lora.
	// +kubebuilder:validation:MaxLength=512
	Type string `json:"type,omitempty"`
	// BaseModel is what an adapter is made for, as the engines name it. Without it, any engine of
	// the pool will do.
	// +kubebuilder:validation:MaxLength=512
	BaseModel string `json:"baseModel,omitempty"`
	// Source is where the engines find it: a path or a URI that they can read. The default is that
	// of the pool's PoolSettings, else the id. Engines with a model repository (mlserver, triton)
	// do not read it: they find a model by its id.
	// +kubebuilder:validation:MaxLength=4096
	Source string `json:"source,omitempty"`
	// Key is what a model runtime is told beside the source (modelKey of ModelMesh's interface),
	// JSON as a rule. A number disk_size_bytes in it makes 1.25 times as many bytes the size of a
	// model that has none.
	// +kubebuilder:validation:MaxLength=65536
	Key string `json:"key,omitempty"`
	// Size is a hint at how much memory it takes, for when nothing better is known.
	//
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="it must be above 0, such as 50Mi"
	Size *resource.Quantity `json:"size,omitempty"`
	// ServiceTime is how long an engine takes for one request of a model without tokens where it
	// has no other: the mean of a batch of 1 in the profile that the command control profile
	// measures. By it extproc picks endpoints until it has seen how long requests take.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('1h')",message="it must be above 0s and no more than 1h, such as 15ms"
	ServiceTime *metav1.Duration `json:"serviceTime,omitempty"`
	// Copies bounds how many copies there are.
	Copies *Copies `json:"copies,omitempty"`
	// Pinned keeps copies that are loaded: none is unloaded to make room for another model. There
	// is at least one.
	Pinned bool `json:"pinned,omitempty"`
}

// Copies bounds how many copies of a model there are.
//
// +kubebuilder:validation:XValidation:rule="!has(self.max) || self.max >= 1 && self.max >= (has(self.min) ? self.min : 0)",message="it must be at least 1 and at least min",fieldPath=".max"
type Copies struct {
	// Min is how many there are even when no request asks. The default is 0.
	//
	// +kubebuilder:validation:Minimum=0
	Min int32 `json:"min,omitempty"`
	// Max is how many there are at most. The default is as many as there are endpoints.
	Max *int32 `json:"max,omitempty"`
}

// ModelStatus is what control says of a model, and what it remembers of it: who leads next reads it
// here.
type ModelStatus struct {
	// ObservedGeneration is that of the object that the rest is said of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Accepted and Ready.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Loaded is how many of the copies answer requests.
	//
	// +optional
	Loaded int32 `json:"loaded"`
	// Copies are those that there are, or that are to be.
	//
	// +listType=map
	// +listMapKey=endpoint
	Copies []CopyStatus `json:"copies,omitempty"`
	// Failures are the loads that failed and that still count.
	//
	// +listType=atomic
	Failures []FailureStatus `json:"failures,omitempty"`
	// Bytes is how much memory a copy takes, as far as is known.
	Bytes int64 `json:"bytes,omitempty"`
	// SizeSource says where bytes is known from: default, hint, predicted or measured.
	SizeSource string `json:"sizeSource,omitempty"`
	// LastUsed is when a request last used the model. It is written late.
	LastUsed *metav1.Time `json:"lastUsed,omitempty"`
	// Message says why the model has fewer copies than it should have.
	Message string `json:"message,omitempty"`
}

// CopyStatus is one copy of a model: what was last asked of an engine.
type CopyStatus struct {
	// Endpoint is ip:port.
	Endpoint string `json:"endpoint"`
	// State is queued, loading, loaded, draining or unloading.
	State string `json:"state"`
	// Since is when it came into its state.
	Since metav1.MicroTime `json:"since"`
	// Bytes is how much memory it takes, as far as is known.
	Bytes int64 `json:"bytes,omitempty"`
	// SizeSource says where bytes is known from: default, hint, predicted or measured.
	SizeSource string `json:"sizeSource,omitempty"`
	// Concurrency is how many requests it takes at once, by the engine; 0: as many as come.
	Concurrency int32 `json:"concurrency,omitempty"`
	// Incarnation of the engine, empty if nothing tells.
	Incarnation string `json:"incarnation,omitempty"`
	// Runtime is what the engine said of itself, if it is a model runtime: it cannot be asked again.
	Runtime *RuntimeStatus `json:"runtime,omitempty"`
}

// RuntimeStatus is what a model runtime said of itself when it became ready.
type RuntimeStatus struct {
	// CapacityBytes is how much memory it has for models.
	CapacityBytes int64 `json:"capacityBytes"`
	// DefaultModelBytes is what it takes a model to hold of which nothing is known.
	DefaultModelBytes int64 `json:"defaultModelBytes"`
	// MaxConcurrentLoads is how many loads it takes at once.
	MaxConcurrentLoads int32 `json:"maxConcurrentLoads"`
	// LoadTimeout is how long a load may take.
	LoadTimeout metav1.Duration `json:"loadTimeout"`
	// Methods are the gRPC methods that it takes, each with the numbers of the fields that lead to
	// where it wants the id of the model in their messages, such as
	// "inference.GRPCInferenceService/ModelInfer 1", and "*" if it takes all others, too. Without
	// one it takes all.
	// +listType=atomic
	Methods []string `json:"methods,omitempty"`
	// LimitsConcurrency says that each copy takes so many requests at once as the engine said when
	// it had loaded it.
	LimitsConcurrency bool `json:"limitsConcurrency,omitempty"`
}

// FailureStatus is a load that failed, in the engine's own words.
type FailureStatus struct {
	// Endpoint is ip:port.
	Endpoint string `json:"endpoint"`
	// At is when it failed.
	At metav1.MicroTime `json:"at"`
	// Message is what the engine answered.
	Message string `json:"message"`
	// Reason classifies the error: load_failed, rank_too_large, files_missing, or load_retried for
	// a transient error, such as a busy engine.
	Reason string `json:"reason,omitempty"`
}

// The condition of a model beside [ConditionAccepted], and its reasons.
const (
	// ConditionReady is true of a model that requests may name: it is loaded, or will be when they
	// do.
	ConditionReady = "Ready"

	// ReasonLoaded is that of a model with a copy that answers requests, and as many as it must have.
	ReasonLoaded = "Loaded"
	// ReasonLoadable is that of a model without a copy, which is loaded when a request names it.
	ReasonLoadable = "Loadable"
	// ReasonLoading is that of a model that must have more copies than it has.
	ReasonLoading = "Loading"
	// ReasonCannotLoad is that of a model that cannot be loaded for now: the message says why.
	ReasonCannotLoad = "CannotLoad"
	// ReasonPoolNotFound is that of a model whose pool does not exist.
	ReasonPoolNotFound = "PoolNotFound"
)
