package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EndpointListKind is the kind of [EndpointList].
const EndpointListKind = "EndpointList"

// EndpointList is endpoints that are no pods of a cluster: servers on other machines, containers beside, a Service's
// name. The InferencePools of its namespace select it by its labels, as they select pods. Its addresses have ports of
// their own, so that a pool's targetPorts do not apply.
type EndpointList struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec EndpointListSpec `json:"spec"`
}

// EndpointListSpec is what people write.
type EndpointListSpec struct {
	// Addresses are host:port, at least one. A host is an IP address, IPv6 in brackets, or a DNS name; a name is looked
	// up again and again, and each address that it has is an endpoint.
	Addresses []string `json:"addresses"`
	// Engine is the kind of the engines, such as vllm or sglang. Without it, the label llm-d.ai/engine-type says it,
	// else what they serve.
	Engine string `json:"engine,omitempty"`
	// Management is where engines of the kind modelruntime are managed: port:NUMBER at each address's own host, or
	// unix:PATH, which is for a list of one address.
	Management string `json:"management,omitempty"`
}
