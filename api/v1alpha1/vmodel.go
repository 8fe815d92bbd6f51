package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VModelKind is the kind of [VModel].
const VModelKind = "VModel"

// VModel is an alias of a model, which can be moved to another model. Requests and LLMRoutes name
// it like a model. control moves it once the new target has as many loaded copies as the old one.
// If the target cannot be loaded, requests stay with the old model. Without control, requests go to
// the target at once.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmdl,categories=headgate
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=ID,type=string,JSONPath=.spec.id
// +kubebuilder:printcolumn:name=Pool,type=string,JSONPath=.spec.poolRef.name
// +kubebuilder:printcolumn:name=Target,type=string,JSONPath=.spec.target
// +kubebuilder:printcolumn:name=Active,type=string,JSONPath=.status.active
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=State,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name=Message,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:validation:XValidation:rule="(has(self.spec.id) ? self.spec.id : self.metadata.name) == (has(oldSelf.spec.id) ? oldSelf.spec.id : oldSelf.metadata.name)",message="the id of a VModel may not change: delete the VModel and create one with another name and id",reason=FieldValueForbidden,fieldPath=".spec.id"
type VModel struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VModelSpec `json:"spec"`
	// Status is written by control.
	Status VModelStatus `json:"status,omitempty"`
}

// VModelList is a list of VModels.
// +kubebuilder:object:root=true
type VModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VModel `json:"items"`
}

// VModelSpec is the name, the pool and the targets of a VModel.
// +kubebuilder:validation:XValidation:rule="self.poolRef.name == oldSelf.poolRef.name",message="the pool of a VModel may not change: delete the VModel and create one with another name and id",reason=FieldValueForbidden,fieldPath=".poolRef"
type VModelSpec struct {
	// ID is the name in requests: UTF-8 of at most 512 bytes. The default is the name of the
	// object. A Model of the pool with the same id takes precedence.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(^|/)[.]{0,2}(/|$)|^~|[\\x5c]')`,message="no model can have this name, which is empty or a path: write one such as sql-v2 or org/sql-v2"
	ID string `json:"id,omitempty"`
	// PoolRef names the InferencePool of its models, in the same namespace.
	//
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) > 0",message="name the InferencePool of its models, in the same namespace",reason=FieldValueRequired,fieldPath=".name"
	PoolRef PoolReference `json:"poolRef"`
	// Target is the id of the model that serves the requests.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(^|/)[.]{0,2}(/|$)|^~|[\\x5c]')`,message="no model can have this name, which is empty or a path: write one such as sql-v2 or org/sql-v2"
	Target string `json:"target"`
	// Canary is another model that serves a share of the requests while it is loaded.
	Canary *Canary `json:"canary,omitempty"`
	// Owner is the owner that calls of ModelMesh's API must name to change the VModel. If it is
	// empty, they must name none.
	// +kubebuilder:validation:MaxLength=512
	Owner string `json:"owner,omitempty"`
}

// Canary is a model that serves a share of the requests. All requests of a session go to the same
// model, if sessionAffinity of the pool's PoolSettings identifies sessions.
type Canary struct {
	// Target is the id of the canary's model.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`bytes(self).size() <= 512 && !self.matches('[\\p{Cc}\uFFFD]')`,message="no model can have this name: write at most 512 bytes of UTF-8 without control characters"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(^|/)[.]{0,2}(/|$)|^~|[\\x5c]')`,message="no model can have this name, which is empty or a path: write one such as sql-v2 or org/sql-v2"
	Target string `json:"target"`
	// Percent is the share of requests for the canary, 1 to 99 percent.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	Percent int32 `json:"percent"`
}

// VModelStatus is the state of a VModel as control observes it. A new leader of the control
// replicas continues from it.
type VModelStatus struct {
	// ObservedGeneration is the generation of the object that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Accepted and Ready.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Active is the id of the model that serves the requests now.
	Active string `json:"active,omitempty"`
	// Previous is the id of the model that served the requests before. It keeps its copies until
	// PreviousUntil.
	Previous      string            `json:"previous,omitempty"`
	PreviousUntil *metav1.MicroTime `json:"previousUntil,omitempty"`
}

// The reasons of the Ready condition of a VModel, besides [ReasonPoolNotFound] and
// [ReasonModelNameTaken].
const (
	// ReasonDefined means that requests go to the target of the spec.
	ReasonDefined = "Defined"
	// ReasonTransitioning means that the target or the canary does not have enough loaded copies
	// yet.
	ReasonTransitioning = "Transitioning"
	// ReasonTransitionFailed means that the target or the canary cannot be loaded for now. The
	// message says why.
	ReasonTransitionFailed = "TransitionFailed"
	// ReasonTargetNotFound means that no Model, LLMRoute or engine of the pool has the target.
	ReasonTargetNotFound = "TargetNotFound"
)
