package v1alpha1

// Ports are where else endpoints listen, at the same host, than at their addresses. A copy of a
// model, a count and a lease belong to the endpoint, whichever of its ports a request goes to.
// Headgate's own Envoys send requests there; another gateway has the endpoint's address.
type Ports struct {
	// GRPC is the port that takes gRPC calls.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	GRPC *int32 `json:"grpc,omitempty"`
	// HTTP is the port that takes all other requests, and that lists models.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	HTTP *int32 `json:"http,omitempty"`
	// Metrics is the port of the page of metrics.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Metrics *int32 `json:"metrics,omitempty"`
}
