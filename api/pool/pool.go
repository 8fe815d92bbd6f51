// Package pool holds InferencePool of inference.networking.k8s.io/v1, wire-compatible with the
// Gateway API Inference Extension v1.6: a pool is the endpoints, ip:port, that serve the same base
// model. Types only.
// +kubebuilder:object:generate=true
// +groupName=inference.networking.k8s.io
// +versionName=v1
package pool

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion and Kind name the object in YAML.
const (
	GroupVersion = "inference.networking.k8s.io/v1"
	Kind         = "InferencePool"
)

// What spec.appProtocol of an InferencePool may be, and spec.endpointPickerRef.failureMode.
const (
	HTTP = "http"
	H2C  = "kubernetes.io/h2c"

	FailOpen  = "FailOpen"
	FailClose = "FailClose"
)

// SchemeGroupVersion is GroupVersion for clients.
var SchemeGroupVersion = schema.GroupVersion{Group: "inference.networking.k8s.io", Version: "v1"}

// InferencePool selects the pods whose ports are the endpoints of one pool.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=infpool
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=https://github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1173"
// +kubebuilder:metadata:annotations="inference.networking.k8s.io/bundle-version=v1.6.0"
// +kubebuilder:printcolumn:name=Selector,type=string,JSONPath=.spec.selector.matchLabels
// +kubebuilder:printcolumn:name=Ports,type=string,JSONPath=.spec.targetPorts
// +kubebuilder:printcolumn:name=Picker,type=string,JSONPath=.spec.endpointPickerRef.name
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type InferencePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitempty"`
}

// InferencePoolList is what an API server lists.
//
// +kubebuilder:object:root=true
type InferencePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []InferencePool `json:"items"`
}

// ActivePorts are the annotations of a pod that say which of a pool's target ports it serves on,
// such as "8000,8001"; the first that a pod has counts (Gateway API Inference Extension v1.5, and
// its leading picker's name for the same).
var ActivePorts = []string{"inference.networking.k8s.io/active-ports", "llm-d.ai/active-ports"}

// Spec is what people write.
type Spec struct {
	// Selector selects pods in the pool's own namespace. It has at least one label.
	Selector LabelSelector `json:"selector"`
	// TargetPorts are the ports, 1 to 8, on which every selected pod serves. Each port of each pod
	// is an endpoint of its own.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(p, self.exists_one(q, q.number == p.number))",message="name each port once"
	TargetPorts []Port `json:"targetPorts"`
	// AppProtocol is what a gateway speaks to the endpoints: "http", the default, or
	// "kubernetes.io/h2c", HTTP/2 without TLS.
	// +kubebuilder:validation:Enum=http;kubernetes.io/h2c
	// +kubebuilder:default=http
	AppProtocol string `json:"appProtocol,omitempty"`
	// EndpointPickerRef tells gateways which service picks for this pool. Without it, or where it
	// names a Service that selects pods of Headgate (app.kubernetes.io/name: headgate), the Envoys
	// of Headgate's Gateways ask the extproc beside them; they ask any other for requests of
	// HTTPRoutes. The Envoy of envoy.yaml ignores it, and so do LLMRoutes.
	EndpointPickerRef *EndpointPickerRef `json:"endpointPickerRef,omitempty"`
}

// LabelSelector matches the pods that have all of these labels.
type LabelSelector struct {
	// MatchLabels are 1 to 64 labels.
	//
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	MatchLabels map[string]string `json:"matchLabels"`
}

// Port is a TCP port, 1 to 65535.
type Port struct {
	// Number is the port's.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Number int32 `json:"number"`
}

// EndpointPickerRef names the service of an endpoint picker.
//
// +kubebuilder:validation:XValidation:rule="self.kind != 'Service' || has(self.port)",message="a Service needs the port that its endpoint picker serves on",reason=FieldValueRequired,fieldPath=".port"
type EndpointPickerRef struct {
	// Group is the core group, the default, where kind is Service.
	//
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Group *string `json:"group,omitempty"`
	// Kind is Service, the default; one of the type ExternalName will not do.
	//
	// +kubebuilder:default=Service
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`
	Kind string `json:"kind,omitempty"`
	// Name is the service's, in the pool's namespace.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Port is where the endpoint picker serves gRPC. A Service needs it.
	Port *Port `json:"port,omitempty"`
	// FailureMode says what a gateway does with requests while the endpoint picker does not answer:
	// FailOpen, send them to any endpoint; FailClose, the default, refuse them.
	// +kubebuilder:default=FailClose
	// +kubebuilder:validation:Enum=FailOpen;FailClose
	FailureMode string `json:"failureMode,omitempty"`
}

// Status is written by gateway controllers, never by Headgate's extproc.
type Status struct {
	// Parents are the gateways that use the pool, and what each says of it.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Parents []ParentStatus `json:"parents,omitempty"`
}

// ParentStatus is what one gateway says of the pool.
type ParentStatus struct {
	// ParentRef is the gateway.
	ParentRef ParentReference `json:"parentRef"`
	// ControllerName is who wrote this, DOMAIN/PATH.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$`
	ControllerName string `json:"controllerName,omitempty"`
	// Conditions are Accepted, ResolvedRefs and Exported.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ParentReference names a gateway.
type ParentReference struct {
	// Group is gateway.networking.k8s.io, if none is named.
	//
	// +kubebuilder:default=gateway.networking.k8s.io
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Group *string `json:"group,omitempty"`
	// Kind is Gateway, if none is named.
	//
	// +kubebuilder:default=Gateway
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`
	Kind string `json:"kind,omitempty"`
	// Namespace is the pool's, if none is named.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace,omitempty"`
	// Name is the gateway's.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}
