package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VModelKind is the kind of [VModel].
const VModelKind = "VModel"

// VModel is a name for a model that can be moved to another one. Requests and LLMRoutes name it as
// they do a model. Headgate's controller moves it when the target has as many loaded copies as the
// model before it; where the target cannot be loaded requests stay where they are. Without a
// controller they go to the target at once.
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=headgate
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=ID,type=string,JSONPath=.spec.id
// +kubebuilder:printcolumn:name=Pool,type=string,JSONPath=.spec.poolRef.name
// +kubebuilder:printcolumn:name=Target,type=string,JSONPath=.spec.target
// +kubebuilder:printcolumn:name=Active,type=string,JSONPath=.status.active
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=State,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name=Message,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:validation:XValidation:rule="(has(self.spec.id) ? self.spec.id : self.metadata.name) == (has(oldSelf.spec.id) ? oldSelf.spec.id : oldSelf.metadata.name)",message="the id of a VModel may not change: delete the VModel and make one of another name and id",reason=FieldValueForbidden,fieldPath=".spec.id"
type VModel struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VModelSpec `json:"spec"`
	// Status is written by control.
	Status VModelStatus `json:"status,omitempty"`
}

// VModelList is what an API server lists.
//
// +kubebuilder:object:root=true
type VModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VModel `json:"items"`
}

// VModelSpec is what people write.
//
// +kubebuilder:validation:XValidation:rule="self.poolRef.name == oldSelf.poolRef.name",message="the pool of a VModel may not change: delete the VModel and make one of another name and id",reason=FieldValueForbidden,fieldPath=".poolRef"
type VModelSpec struct {
	// ID is the name in requests, any UTF-8 of at most 512 bytes. The default is the object's name.
	// Where a Model of the pool has the id it keeps it.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(^|/)[.]{0,2}(/|$)|^~|[\\x5c]')`,message="no model can have this name, which is empty or a path: write one such as sql-v2 or org/sql-v2"
	ID string `json:"id,omitempty"`
	// PoolRef names the InferencePool of its models, in the same namespace.
	//
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name the InferencePool of its models, in the same namespace",reason=FieldValueRequired,fieldPath=".name"
	PoolRef PoolReference `json:"poolRef"`
	// Target is the id of the model that requests are to go to.
	//
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(^|/)[.]{0,2}(/|$)|^~|[\\x5c]')`,message="no model can have this name, which is empty or a path: write one such as sql-v2 or org/sql-v2"
	Target string `json:"target"`
	// Canary is another model that gets a share of the requests while it is loaded.
	Canary *Canary `json:"canary,omitempty"`
	// Owner is who may change it by ModelMesh's API. Without one, who says no owner there.
	//
	// +kubebuilder:validation:MaxLength=512
	Owner string `json:"owner,omitempty"`
}

// Canary is a model that is tried with a share of the requests. Those of one session stay together,
// where the pool's PoolSettings say what names a session.
type Canary struct {
	// Target is the id of the model.
	//
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(^|/)[.]{0,2}(/|$)|^~|[\\x5c]')`,message="no model can have this name, which is empty or a path: write one such as sql-v2 or org/sql-v2"
	Target string `json:"target"`
	// Percent is how many of a hundred requests go there.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	Percent int32 `json:"percent"`
}

// VModelStatus is what control says of a VModel, and what it remembers of it: who leads next reads
// it here.
type VModelStatus struct {
	// ObservedGeneration is that of the object that the rest is said of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Accepted and Ready.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Active is the id of the model that requests go to.
	Active string `json:"active,omitempty"`
	// Previous is the id of the model that they went to before, and that keeps its copies until
	// PreviousUntil.
	Previous      string            `json:"previous,omitempty"`
	PreviousUntil *metav1.MicroTime `json:"previousUntil,omitempty"`
}

// The reasons of the condition Ready of a VModel beside [ReasonPoolNotFound] and
// [ReasonModelNameTaken].
const (
	// ReasonDefined is that of a VModel whose requests go where its object says.
	ReasonDefined = "Defined"
	// ReasonTransitioning is that of one whose target, or canary, does not have its copies yet.
	ReasonTransitioning = "Transitioning"
	// ReasonTransitionFailed is that of one whose target, or canary, cannot be loaded for now: the
	// message says why.
	ReasonTransitionFailed = "TransitionFailed"
)
