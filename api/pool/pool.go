// Package pool contains InferencePool of inference.networking.k8s.io/v1, wire-compatible with the
// Gateway API Inference Extension v1.6. A pool is a set of endpoints, IP:PORT, that serve the same
// base model.
// +kubebuilder:object:generate=true
// +groupName=inference.networking.k8s.io
// +versionName=v1
package pool

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion and Kind identify the object in YAML.
const (
	GroupVersion = "inference.networking.k8s.io/v1"
	Kind         = "InferencePool"
)

// The values of spec.appProtocol of an InferencePool, and of spec.endpointPickerRef.failureMode.
const (
	HTTP = "http"
	H2C  = "kubernetes.io/h2c"

	FailOpen  = "FailOpen"
	FailClose = "FailClose"
)

// SchemeGroupVersion is GroupVersion for clients.
var SchemeGroupVersion = schema.GroupVersion{Group: "inference.networking.k8s.io", Version: "v1"}

// InferencePool selects pods. Each target port of each pod is an endpoint of the pool.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=infpool
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=https://github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1173"
// +kubebuilder:metadata:annotations="inference.networking.k8s.io/bundle-version=v1.6.0"
// +kubebuilder:printcolumn:name=Port,type=integer,JSONPath=.spec.targetPorts[0].number
// +kubebuilder:printcolumn:name=Endpoints,type=string,JSONPath=`.status.parents[*].conditions[?(@.type=="Endpoints")].message`
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.parents[*].conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Picker,type=string,JSONPath=.spec.endpointPickerRef.name
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type InferencePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitempty"`
}

// InferencePoolList is a list of InferencePools.
// +kubebuilder:object:root=true
type InferencePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []InferencePool `json:"items"`
}

// ActivePorts are the pod annotations that list the target ports on which the pod serves, such as
// "8000,8001". The first annotation that a pod has is used. They come from the Gateway API
// Inference Extension v1.5 and from llm-d.
var ActivePorts = []string{"inference.networking.k8s.io/active-ports", "llm-d.ai/active-ports"}

// Spec is the pods of a pool and how gateways send requests to them.
type Spec struct {
	// Selector selects pods in the pool's namespace. It needs at least one label.
	Selector LabelSelector `json:"selector"`
	// TargetPorts are the 1 to 8 ports on which every selected pod serves. Each port of each pod is
	// an endpoint.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(p, self.exists_one(q, q.number == p.number))",message="name each port once"
	TargetPorts []Port `json:"targetPorts"`
	// AppProtocol is the protocol between gateways and endpoints: http, the default, or
	// kubernetes.io/h2c, which is HTTP/2 without TLS.
	// +kubebuilder:validation:Enum=http;kubernetes.io/h2c
	// +kubebuilder:default=http
	AppProtocol string `json:"appProtocol,omitempty"`
	// EndpointPickerRef names the endpoint picker that gateways call for this pool. If it is not
	// set, or names a Service that selects Headgate's pods (app.kubernetes.io/name: headgate), the
	// Envoys of Headgate's Gateways call the extproc in their own pods. They call any other picker
	// only for requests of HTTPRoutes. LLMRoutes and the Envoy of envoy.yaml ignore this field.
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
	// Number is the port number.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Number int32 `json:"number"`
}

// EndpointPickerRef names the Service of an endpoint picker.
// +kubebuilder:validation:XValidation:rule="self.kind != 'Service' || has(self.port)",message="a Service needs the port that its endpoint picker serves on",reason=FieldValueRequired,fieldPath=".port"
type EndpointPickerRef struct {
	// Group is the API group of kind. The default is the core group.
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Group *string `json:"group,omitempty"`
	// Kind is Service, the default. A Service of the type ExternalName does not work.
	// +kubebuilder:default=Service
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`
	Kind string `json:"kind,omitempty"`
	// Name is the name of the Service, in the pool's namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Port is the port on which the endpoint picker serves gRPC. A Service needs it.
	Port *Port `json:"port,omitempty"`
	// FailureMode says what a gateway does with requests if the endpoint picker does not answer.
	// FailOpen sends them to any endpoint. FailClose, the default, rejects them.
	// +kubebuilder:default=FailClose
	// +kubebuilder:validation:Enum=FailOpen;FailClose
	FailureMode string `json:"failureMode,omitempty"`
}

// Status is written by gateway controllers, and never by extproc.
type Status struct {
	// Parents are the gateways that use the pool, with the state that each reports.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Parents []ParentStatus `json:"parents,omitempty"`
}

// ParentStatus is the state of the pool at one gateway.
type ParentStatus struct {
	// ParentRef names the gateway.
	ParentRef ParentReference `json:"parentRef"`
	// ControllerName is the controller that wrote this entry, as DOMAIN/PATH.
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
	// Group is the API group of the gateway. The default is gateway.networking.k8s.io.
	// +kubebuilder:default=gateway.networking.k8s.io
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Group *string `json:"group,omitempty"`
	// Kind is the kind of the gateway. The default is Gateway.
	// +kubebuilder:default=Gateway
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`
	Kind string `json:"kind,omitempty"`
	// Namespace is the namespace of the gateway. The default is that of the pool.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace,omitempty"`
	// Name is the name of the gateway.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}
