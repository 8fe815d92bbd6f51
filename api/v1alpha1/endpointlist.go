package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EndpointListKind is the kind of [EndpointList].
const EndpointListKind = "EndpointList"

// EndpointList is endpoints that are no pods of a cluster: servers on other machines, containers
// beside, a Service's name. The InferencePools of its namespace select it by its labels, as they
// select pods. Its addresses have ports of their own, so that a pool's targetPorts do not apply.
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=headgate
// +kubebuilder:printcolumn:name=Addresses,type=string,JSONPath=.spec.addresses
// +kubebuilder:printcolumn:name=Engine,type=string,JSONPath=.spec.engine
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type EndpointList struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec EndpointListSpec `json:"spec"`
}

// EndpointListList is what an API server lists.
//
// +kubebuilder:object:root=true
type EndpointListList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EndpointList `json:"items"`
}

// EndpointListSpec is what people write.
//
// +kubebuilder:validation:XValidation:rule="has(self.addresses) && size(self.addresses) > 0",message="name at least one address, such as 10.0.0.7:8000",reason=FieldValueRequired,fieldPath=".addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.management) || !has(self.engine) || self.engine in ['modelruntime', 'torchserve']",message="only engines of the kinds modelruntime and torchserve are managed at an address of their own",fieldPath=".management"
type EndpointListSpec struct {
	// Addresses are host:port, at least one. A host is an IP address, IPv6 in brackets, or a DNS
	// name; a name is looked up again and again, and each address that it has is an endpoint.
	// Link-local, multicast, broadcast and unspecified addresses are not, nor are loopback
	// addresses in a cluster, where they are those of Headgate's own pods.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=512
	// +kubebuilder:validation:items:MaxLength=264
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?[.])*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?[.]?:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$') && !self.matches('(^|[.])[0-9]+[.]?:[0-9]+$') || self.matches('^[0-9.]+:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$') && isIP(self.split(':')[0]) || self.matches('^[[][0-9A-Fa-f:.]+[]]:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$') && isIP(self.substring(1, self.lastIndexOf(']'))) && ip(self.substring(1, self.lastIndexOf(']'))).family() == 6",message="want host:port without scheme and path, such as 10.0.0.7:8000, [fd00::7]:8000 or engine-1.internal:8000"
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[0-9.]+:[0-9]+$') && isIP(self.split(':')[0]) ? ip(self.split(':')[0]).isGlobalUnicast() : self.matches('^[[][0-9A-Fa-f:.]+[]]:[0-9]+$') && isIP(self.substring(1, self.lastIndexOf(']'))) ? ip(self.substring(1, self.lastIndexOf(']'))).isGlobalUnicast() : true",message="no engine is reached at a loopback, link-local, multicast, broadcast or unspecified address"
	Addresses []string `json:"addresses"`
	// Engine is the kind of the engines, such as vllm or sglang. Without it, the label
	// llm-d.ai/engine-type says it, else what they serve.
	// +kubebuilder:validation:Enum=vllm;nim;sglang;trtllm-serve;triton-tensorrt-llm;triton;tgi;llama.cpp;lmdeploy;mlserver;torchserve;tfserving;modelruntime
	Engine string `json:"engine,omitempty"`
	// Management is where engines of the kinds modelruntime and torchserve are managed: port:NUMBER
	// at each address's own host, or, for the former in a folder, unix:PATH, which is for a list of
	// one address. Without it a torchserve is managed at port 8081.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.matches('^port:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="want port:NUMBER, such as port:8085; a socket is for an EndpointList in a folder"
	Management string `json:"management,omitempty"`
	// Ports are where else the endpoints listen, at the same hosts. What is left out is as the
	// pool's PoolSettings has it, else the address's own port.
	Ports *Ports `json:"ports,omitempty"`
}
