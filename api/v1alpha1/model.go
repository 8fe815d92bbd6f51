package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelKind is the kind of [Model].
const ModelKind = "Model"

// Model is a model that engines can load at run time: a LoRA adapter for a base model, a model in a
// model repository, or any model of a model runtime. Requests name it by its id, and LLMRoutes may
// name it as their adapter. control loads it when and where requests need it.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mdl,categories=headgate
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=ID,type=string,JSONPath=.spec.id
// +kubebuilder:printcolumn:name=Pool,type=string,JSONPath=.spec.poolRef.name
// +kubebuilder:printcolumn:name=Copies,type=integer,JSONPath=.status.loaded
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=State,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name=Message,type=string,JSONPath=.status.message
// +kubebuilder:printcolumn:name=Used,type=date,JSONPath=.status.lastUsed,priority=1
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:validation:XValidation:rule="(has(self.spec.id) ? self.spec.id : self.metadata.name) == (has(oldSelf.spec.id) ? oldSelf.spec.id : oldSelf.metadata.name)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id",reason=FieldValueForbidden,fieldPath=".spec.id"
type Model struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ModelSpec `json:"spec"`
	// Status is written by control.
	Status ModelStatus `json:"status,omitempty"`
}

// ModelList is a list of Models.
// +kubebuilder:object:root=true
type ModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Model `json:"items"`
}

// ModelSpec describes a model. Only copies, pinned and serviceTime may change. To change anything
// else, create another Model with another id.
// +kubebuilder:validation:XValidation:rule="self.poolRef.name == oldSelf.poolRef.name",message="only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id",reason=FieldValueForbidden,fieldPath=".poolRef"
// +kubebuilder:validation:XValidation:rule="(has(self.type) ? self.type : 'lora') == (has(oldSelf.type) ? oldSelf.type : 'lora')",message="only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id",reason=FieldValueForbidden,fieldPath=".type"
// +kubebuilder:validation:XValidation:rule="has(self.baseModel) == has(oldSelf.baseModel) && (!has(self.baseModel) || self.baseModel == oldSelf.baseModel)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id",reason=FieldValueForbidden,fieldPath=".baseModel"
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id",reason=FieldValueForbidden,fieldPath=".source"
// +kubebuilder:validation:XValidation:rule="has(self.key) == has(oldSelf.key) && (!has(self.key) || self.key == oldSelf.key)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id",reason=FieldValueForbidden,fieldPath=".key"
// +kubebuilder:validation:XValidation:rule="has(self.storage) == has(oldSelf.storage) && (!has(self.storage) || self.storage == oldSelf.storage)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id",reason=FieldValueForbidden,fieldPath=".storage"
// +kubebuilder:validation:XValidation:rule="!has(self.storage) || !has(self.key) || size(self.key) == 0",message="with storage, control writes the key: leave key empty, or write storage_key and storage_params into it instead of storage",fieldPath=".key"
// +kubebuilder:validation:XValidation:rule="has(self.size) == has(oldSelf.size) && (!has(self.size) || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) == 0)",message="only copies, pinned and serviceTime of a Model may change: delete the Model and create one with another name and id",reason=FieldValueForbidden,fieldPath=".size"
type ModelSpec struct {
	// ID is the model's name in requests and at engines: UTF-8 of at most 512 bytes. The default is
	// the name of the object.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(^|/)[.]{0,2}(/|$)|^~|[\\x5c]')`,message="no model can have this name, which is empty or a path: write one such as sql-v2 or org/sql-v2"
	ID string `json:"id,omitempty"`
	// PoolRef names the InferencePool, in the same namespace, whose engines load the model.
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name the InferencePool whose engines load it, in the same namespace",reason=FieldValueRequired,fieldPath=".name"
	PoolRef PoolReference `json:"poolRef"`
	// Type is the type of the model, as its engines name it, such as lora or sklearn. The default
	// is lora.
	// +kubebuilder:validation:MaxLength=512
	Type string `json:"type,omitempty"`
	// BaseModel is the base model of an adapter, as the engines list it. By default every engine of
	// the pool can load the adapter.
	// +kubebuilder:validation:MaxLength=512
	BaseModel string `json:"baseModel,omitempty"`
	// Source is the path or URI from which engines read the model. The default is placement.source
	// of the pool's PoolSettings, else the id. Engines with a model repository (mlserver, triton)
	// ignore it and find the model by its id.
	// +kubebuilder:validation:MaxLength=4096
	Source string `json:"source,omitempty"`
	// Key is passed to model runtimes together with source (modelKey in ModelMesh's interface). It
	// is usually JSON. If size is not set and the JSON has a number disk_size_bytes, the model's
	// size is estimated as 1.25 times that number. With storage it must be empty.
	// +kubebuilder:validation:MaxLength=65536
	Key string `json:"key,omitempty"`
	// Storage is for engines with an agent, which fetches the model from source: an entry of the
	// agent's storage-config Secret, with parameters.
	Storage *Storage `json:"storage,omitempty"`
	// Size is an estimate of the memory that the model needs, such as 50Mi. It is used until the
	// engine reports or predicts the size.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="it must be above 0, such as 50Mi"
	Size *resource.Quantity `json:"size,omitempty"`
	// ServiceTime is the time in which an idle engine computes one request, for models without
	// tokens: the mean for batch size 1 in the output of `headgate profile`. extproc uses it to
	// pick endpoints until it has measured requests. It is above 0s and at most 1h.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('1h')",message="it must be above 0s and no more than 1h, such as 15ms"
	ServiceTime *metav1.Duration `json:"serviceTime,omitempty"`
	// Copies bounds the number of copies.
	Copies *Copies `json:"copies,omitempty"`
	// Pinned keeps loaded copies: control never evicts one to make room for another model, and
	// keeps at least one copy. The default is false.
	Pinned bool `json:"pinned,omitempty"`
}

// Storage is how an agent fetches the files of a model. control sends it as ModelMesh does, as
// storage_key, storage_params and schema_path of the JSON modelKey.
type Storage struct {
	// Key is the name of an entry in the agent's storage-config Secret. Without it, the agent uses
	// the entry default_TYPE of the source's type, such as default_s3, else the entry default.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[-._a-zA-Z0-9]+$') && self != '.' && !self.startsWith('..')",message="no Secret can have this key: write one such as my-bucket"
	Key string `json:"key,omitempty"`
	// Parameters override fields of the entry, such as bucket or region. Of a source on the Hugging
	// Face Hub, include selects files by patterns that commas separate.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(name, size(name) > 0 && size(name) <= 253)",message="the name of a parameter has 1 to 253 characters"
	Parameters map[string]StorageParameter `json:"parameters,omitempty"`
	// SchemaPath is the path of the model's schema file in the same bucket.
	// +kubebuilder:validation:MaxLength=4096
	SchemaPath string `json:"schemaPath,omitempty"`
}

// StorageParameter is the value of a parameter.
//
// +kubebuilder:validation:MaxLength=4096
type StorageParameter string

// Copies bounds the number of copies of a model.
// +kubebuilder:validation:XValidation:rule="!has(self.max) || self.max >= 1 && self.max >= (has(self.min) ? self.min : 0)",message="it must be at least 1 and at least min",fieldPath=".max"
type Copies struct {
	// Min is the number of copies that stay loaded without requests. The default is 0.
	// +kubebuilder:validation:Minimum=0
	Min int32 `json:"min,omitempty"`
	// Max is the maximum number of copies, at least 1 and at least min. The default is the number
	// of endpoints.
	Max *int32 `json:"max,omitempty"`
}

// ModelStatus is the state of a model as control observes it. A new leader of the control replicas
// continues from it.
type ModelStatus struct {
	// ObservedGeneration is the generation of the object that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Accepted and Ready.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Loaded is the number of copies that serve requests.
	// +optional
	Loaded int32 `json:"loaded"`
	// Copies are the copies that exist or are about to be loaded.
	// +listType=map
	// +listMapKey=endpoint
	Copies []CopyStatus `json:"copies,omitempty"`
	// Failures are the failed loads that have not expired.
	// +listType=atomic
	Failures []FailureStatus `json:"failures,omitempty"`
	// Bytes is the best known size of a copy in memory.
	Bytes int64 `json:"bytes,omitempty"`
	// SizeSource is where bytes comes from: default, hint (spec.size or spec.key), predicted (by
	// the engine) or measured (by the engine after the load).
	SizeSource string `json:"sizeSource,omitempty"`
	// LastUsed is the time of the last request for the model. It is updated with a delay.
	LastUsed *metav1.Time `json:"lastUsed,omitempty"`
	// Message says why the model has fewer copies than it should. It is empty if it has enough.
	Message string `json:"message,omitempty"`
}

// CopyStatus is one copy of a model, in the state that control last requested of the engine.
type CopyStatus struct {
	// Endpoint is the endpoint of the copy, as IP:PORT.
	Endpoint string `json:"endpoint"`
	// State is queued, loading, loaded, draining or unloading.
	State string `json:"state"`
	// Since is when the copy entered its state.
	Since metav1.MicroTime `json:"since"`
	// Bytes is the best known size of this copy in memory.
	Bytes int64 `json:"bytes,omitempty"`
	// SizeSource is where bytes comes from: default, hint, predicted or measured.
	SizeSource string `json:"sizeSource,omitempty"`
	// Concurrency is the number of requests that the copy serves at once, as the engine reports it.
	// 0 is unlimited.
	Concurrency int32 `json:"concurrency,omitempty"`
	// Incarnation identifies the run of the engine process that loaded the copy. It is empty if the
	// engine reports none.
	Incarnation string `json:"incarnation,omitempty"`
	// Runtime is what a model runtime reported when it became ready. control stores it, because a
	// runtime cannot be asked again.
	Runtime *RuntimeStatus `json:"runtime,omitempty"`
}

// RuntimeStatus is what a model runtime reported when it became ready.
type RuntimeStatus struct {
	// CapacityBytes is the runtime's memory for models.
	CapacityBytes int64 `json:"capacityBytes"`
	// DefaultModelBytes is the memory that the runtime assumes for a model of unknown size.
	DefaultModelBytes int64 `json:"defaultModelBytes"`
	// MaxConcurrentLoads is the number of models that the runtime loads at once.
	MaxConcurrentLoads int32 `json:"maxConcurrentLoads"`
	// LoadTimeout is the longest time that a load may take.
	LoadTimeout metav1.Duration `json:"loadTimeout"`
	// Methods are the gRPC methods that the runtime serves. After each method come the field
	// numbers that lead to the model's id in the message, as in
	// "inference.GRPCInferenceService/ModelInfer 1". "*" stands for all other methods. An empty
	// list also means all methods.
	// +listType=atomic
	Methods []string `json:"methods,omitempty"`
	// LimitsConcurrency is true if the runtime reports a concurrency limit for each loaded copy.
	LimitsConcurrency bool `json:"limitsConcurrency,omitempty"`
}

// FailureStatus is a failed load.
type FailureStatus struct {
	// Endpoint is the endpoint where the load failed, as IP:PORT.
	Endpoint string `json:"endpoint"`
	// At is when the load failed.
	At metav1.MicroTime `json:"at"`
	// Message is the engine's error message.
	Message string `json:"message"`
	// Reason classifies the error: load_failed, rank_too_large, files_missing, or load_retried for
	// a transient error, such as a busy engine.
	Reason string `json:"reason,omitempty"`
}

// The condition types of a model besides [ConditionAccepted], and their reasons.
const (
	// ConditionReady is true if requests for the model are served, because it is loaded or can be
	// loaded on request.
	ConditionReady = "Ready"

	// ReasonLoaded means that the model has a copy that serves requests, and at least copies.min.
	ReasonLoaded = "Loaded"
	// ReasonLoadable means that the model has no copy. It is loaded when a request names it.
	ReasonLoadable = "Loadable"
	// ReasonLoading means that the model has fewer copies than copies.min.
	ReasonLoading = "Loading"
	// ReasonCannotLoad means that the model cannot be loaded for now. The message says why.
	ReasonCannotLoad = "CannotLoad"
	// ReasonPoolNotFound means that the model's pool does not exist.
	ReasonPoolNotFound = "PoolNotFound"
)
