package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EndpointListKind is the kind of [EndpointList].
const EndpointListKind = "EndpointList"

// EndpointList lists endpoints that are not pods of the cluster, such as servers on other machines,
// local containers or a Service's DNS name. InferencePools in its namespace select it by its
// labels, as they select pods. A pool's targetPorts do not apply, since each address has its own
// port.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=epl,categories=headgate
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Engine,type=string,JSONPath=.spec.engine
// +kubebuilder:printcolumn:name=Endpoints,type=string,JSONPath=.status.endpoints
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Message,type=string,JSONPath=`.status.conditions[?(@.status=="False")].message`,priority=1
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type EndpointList struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec EndpointListSpec `json:"spec"`
	// Status is written by control.
	Status EndpointListStatus `json:"status,omitempty"`
}

// EndpointListStatus is the state of an EndpointList's endpoints as control observes them.
type EndpointListStatus struct {
	// ObservedGeneration is the generation of the object that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Endpoints is how many of the endpoints answer, as in "3/4". It is empty if no InferencePool
	// selects the EndpointList.
	Endpoints string `json:"endpoints,omitempty"`
	// Conditions are Accepted, Ready and Endpoints. Accepted is true if an InferencePool selects
	// the EndpointList. Ready is true if an endpoint answers, and Endpoints if all do.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EndpointListList is a list of EndpointLists.
// +kubebuilder:object:root=true
type EndpointListList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EndpointList `json:"items"`
}

// EndpointListSpec is the addresses and the kind of their engines.
// +kubebuilder:validation:XValidation:rule="has(self.addresses) && size(self.addresses) > 0",message="name at least one address, such as 10.0.0.7:8000",reason=FieldValueRequired,fieldPath=".addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.management) || !has(self.engine) || self.engine in ['modelruntime', 'torchserve', 'vllm', 'sglang']",message="only engines of the kinds modelruntime, torchserve, vllm and sglang have a management address",fieldPath=".management"
type EndpointListSpec struct {
	// Addresses lists 1 to 512 endpoints as host:port. A host is an IP address, with brackets if it
	// is IPv6, or a DNS name. Headgate resolves DNS names repeatedly, and each resolved address is
	// an endpoint. Link-local, multicast, broadcast and unspecified addresses are rejected. In a
	// cluster, loopback addresses are rejected as well, because they would reach Headgate's own
	// pods.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=512
	// +kubebuilder:validation:items:MaxLength=264
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?[.])*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?[.]?:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$') && !self.matches('(^|[.])[0-9]+[.]?:[0-9]+$') || self.matches('^[0-9.]+:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$') && isIP(self.split(':')[0]) || self.matches('^[[][0-9A-Fa-f:.]+[]]:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$') && isIP(self.substring(1, self.lastIndexOf(']'))) && ip(self.substring(1, self.lastIndexOf(']'))).family() == 6",message="want host:port without scheme and path, such as 10.0.0.7:8000, [fd00::7]:8000 or engine-1.internal:8000"
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[0-9.]+:[0-9]+$') && isIP(self.split(':')[0]) ? ip(self.split(':')[0]).isGlobalUnicast() : self.matches('^[[][0-9A-Fa-f:.]+[]]:[0-9]+$') && isIP(self.substring(1, self.lastIndexOf(']'))) ? ip(self.substring(1, self.lastIndexOf(']'))).isGlobalUnicast() : true",message="an engine's address must not be loopback, link-local, multicast, broadcast or unspecified"
	Addresses []string `json:"addresses"`
	// Engine is the kind of the engines, such as vllm or sglang. The default is the value of the
	// label llm-d.ai/engine-type. Without the label, Headgate detects the kind from what the
	// engines serve.
	// +kubebuilder:validation:Enum=vllm;nim;sglang;trtllm-serve;triton-tensorrt-llm;triton;tgi;llama.cpp;lmdeploy;mlserver;torchserve;tfserving;modelruntime
	Engine string `json:"engine,omitempty"`
	// Management is the address of the management API, for the engine kinds modelruntime,
	// torchserve, vllm and sglang. port:NUMBER is a port at the host of each address. unix:PATH is
	// a socket, for a modelruntime with one address in a folder of objects. The default for
	// torchserve is port:8081. For vllm and sglang it is the port of an agent, which fetches
	// adapters; without it, control calls the engine itself.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.matches('^port:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="want port:NUMBER, such as port:8085; a socket is for an EndpointList in a folder"
	Management string `json:"management,omitempty"`
	// Ports are further ports of the endpoints, at the same hosts. A port that is not set is as in
	// the pool's PoolSettings, else the port of the address.
	Ports *Ports `json:"ports,omitempty"`
}
