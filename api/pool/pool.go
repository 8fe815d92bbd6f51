// Package pool holds InferencePool of inference.networking.k8s.io/v1, wire-compatible with the Gateway API Inference
// Extension v1.6: a pool is the endpoints, ip:port, that serve the same base model. Types only.
package pool

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GroupVersion and Kind name the object in YAML.
const (
	GroupVersion = "inference.networking.k8s.io/v1"
	Kind         = "InferencePool"
)

// InferencePool selects the pods whose ports are the endpoints of one pool.
type InferencePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitempty"`
}

// ActivePorts are the annotations of a pod that say which of a pool's target ports it serves on, such as "8000,8001"; the
// first that a pod has counts (Gateway API Inference Extension v1.5, and its leading picker's name for the same).
var ActivePorts = []string{"inference.networking.k8s.io/active-ports", "llm-d.ai/active-ports"}

// Spec is what people write.
type Spec struct {
	// Selector selects pods in the pool's own namespace. It has at least one label.
	Selector LabelSelector `json:"selector"`
	// TargetPorts are the ports, 1 to 8, on which every selected pod serves. Each port of each pod is an endpoint of
	// its own.
	TargetPorts []Port `json:"targetPorts"`
	// AppProtocol is "http" (the default) or "kubernetes.io/h2c".
	AppProtocol string `json:"appProtocol,omitempty"`
	// EndpointPickerRef tells other gateways which service picks for this pool. Headgate's own data plane ignores it.
	EndpointPickerRef *EndpointPickerRef `json:"endpointPickerRef,omitempty"`
}

// LabelSelector matches the pods that have all of these labels.
type LabelSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// Port is a TCP port, 1 to 65535.
type Port struct {
	Number int32 `json:"number"`
}

// EndpointPickerRef names the service of an endpoint picker.
type EndpointPickerRef struct {
	Group       *string `json:"group,omitempty"`
	Kind        string  `json:"kind,omitempty"`
	Name        string  `json:"name"`
	Port        *Port   `json:"port,omitempty"`
	FailureMode string  `json:"failureMode,omitempty"`
}

// Status is written by gateway controllers, never by Headgate's extproc.
type Status struct {
	Parents []ParentStatus `json:"parents,omitempty"`
}

// ParentStatus is what one gateway says of the pool.
type ParentStatus struct {
	ParentRef      ParentReference    `json:"parentRef"`
	ControllerName string             `json:"controllerName,omitempty"`
	Conditions     []metav1.Condition `json:"conditions,omitempty"`
}

// ParentReference names a gateway.
type ParentReference struct {
	Group     *string `json:"group,omitempty"`
	Kind      string  `json:"kind,omitempty"`
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name"`
}
