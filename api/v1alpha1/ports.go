package v1alpha1

// Ports are further ports at the host of an endpoint. Copies of models and requests in flight count
// for the endpoint, whichever of its ports a request uses. Headgate's own Envoys use these ports;
// other gateways use the endpoint's address.
type Ports struct {
	// GRPC is the port for gRPC calls. The default is the endpoint's port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	GRPC *int32 `json:"grpc,omitempty"`
	// HTTP is the port for all other requests and for the list of models. The default is the
	// endpoint's port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	HTTP *int32 `json:"http,omitempty"`
	// Metrics is the port for metrics. The default is the port that serves HTTP.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Metrics *int32 `json:"metrics,omitempty"`
}
