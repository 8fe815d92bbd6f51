package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelKind is the kind of [Model].
const ModelKind = "Model"

// Model is a model that engines can load while they run: a LoRA adapter on a base model, or whatever a model runtime
// serves. Requests may name it by its id, and so may LLMRoutes, as their adapter. Headgate's controller loads it where
// and when requests need it.
type Model struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ModelSpec `json:"spec"`
}

// ModelSpec is what people write. Only Copies and Pinned may change: another model has another id.
type ModelSpec struct {
	// ID is the model's name in requests and at engines, any UTF-8 of at most 512 bytes. The default is the object's name.
	ID string `json:"id,omitempty"`
	// PoolRef names the InferencePool whose engines load it, in the same namespace.
	PoolRef PoolReference `json:"poolRef"`
	// Type is what kind of model it is, in the words of its engines, such as lora or sklearn. The default is lora.
	Type string `json:"type,omitempty"`
	// BaseModel is what an adapter is made for, as the engines name it. Without it, any engine of the pool will do.
	BaseModel string `json:"baseModel,omitempty"`
	// Source is where the engines find it: a path or a URI that they can read. The default is that of the pool's
	// PoolSettings, else the id.
	Source string `json:"source,omitempty"`
	// Key is what a model runtime is told beside the source (modelKey of ModelMesh's interface), JSON as a rule.
	Key string `json:"key,omitempty"`
	// Size is a hint at how much memory it takes, for when nothing better is known.
	Size *resource.Quantity `json:"size,omitempty"`
	// Copies bounds how many copies there are.
	Copies *Copies `json:"copies,omitempty"`
	// Pinned keeps copies that are loaded: none is unloaded to make room for another model. There is at least one.
	Pinned bool `json:"pinned,omitempty"`
}

// Copies bounds how many copies of a model there are.
type Copies struct {
	// Min is how many there are even when no request asks. The default is 0.
	Min int32 `json:"min,omitempty"`
	// Max is how many there are at most. The default is as many as there are endpoints.
	Max *int32 `json:"max,omitempty"`
}
