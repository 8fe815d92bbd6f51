package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GatewaySettingsKind is the kind of [GatewaySettings].
const GatewaySettingsKind = "GatewaySettings"

// GatewaySettings says how the Envoys of Gateways run. A Gateway names one of its own namespace in
// spec.infrastructure.parametersRef, a GatewayClass one of any namespace in spec.parametersRef.
// What a Gateway's leaves out is as its class's says, and what that leaves out as is said below.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=gatewaysettings,singular=gatewaysettings,categories=headgate
// +kubebuilder:printcolumn:name=Replicas,type=integer,JSONPath=.spec.replicas
// +kubebuilder:printcolumn:name=Service,type=string,JSONPath=.spec.service.type
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type GatewaySettings struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec GatewaySettingsSpec `json:"spec"`
}

// GatewaySettingsList is what an API server lists.
//
// +kubebuilder:object:root=true
type GatewaySettingsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GatewaySettings `json:"items"`
}

// GatewaySettingsSpec is what people write.
type GatewaySettingsSpec struct {
	// Managed says whether control makes the Deployment, the Service and the disruption budget of a
	// Gateway. The default is true. With false the Envoys are yours: control bootstrap prints what
	// each starts with.
	Managed *bool `json:"managed,omitempty"`
	// Replicas is how many Envoys a Gateway has, each with its extproc. Without it there are two at
	// first, and then as many as whoever scales the Deployment says, such as a
	// HorizontalPodAutoscaler. At least 1.
	// +kubebuilder:validation:Minimum=1
	Replicas *int32 `json:"replicas,omitempty"`
	// Service is the one by which clients reach the Envoys.
	Service *GatewayService `json:"service,omitempty"`
	// Resources are what the containers ask for, and may use.
	Resources *GatewayResources `json:"resources,omitempty"`
	// Timeouts bound what may take long.
	Timeouts *GatewayTimeouts `json:"timeouts,omitempty"`
	// Payloads has the Envoys show extproc copies of requests and answers, which hold what users
	// send and get. It counts in the settings of a GatewayClass alone: who writes a Gateway must
	// not choose where pods of Headgate's namespace send what.
	Payloads *GatewayPayloads `json:"payloads,omitempty"`
}

// GatewayService is the Service of a Gateway.
type GatewayService struct {
	// Type is LoadBalancer, ClusterIP or NodePort. The default is LoadBalancer. The address of a
	// Gateway is the load balancer's, and with the other types the ClusterIP.
	// +kubebuilder:validation:Enum=LoadBalancer;ClusterIP;NodePort
	Type *string `json:"type,omitempty"`
}

// GatewayResources are those of the containers of a Gateway's pod. Each takes the place of all that
// Headgate asks for by itself.
type GatewayResources struct {
	Envoy   *corev1.ResourceRequirements `json:"envoy,omitempty"`
	Extproc *corev1.ResourceRequirements `json:"extproc,omitempty"`
}

// GatewayPayloads says where copies of requests and answers go.
type GatewayPayloads struct {
	// Processors are the URLs of sinks, each as extproc --payload-processor has it:
	// http(s)://host[:port]/path[?model][#method], or logger://. The extprocs of managed Gateways
	// get them; others are started with flags of yours.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=2048
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^(https?|logger)://[^\\\\s]+$')",message="write the URL of a sink, such as https://sink.example/payloads, or logger://*"
	Processors []string `json:"processors,omitempty"`
}

// GatewayTimeouts are above 0.
type GatewayTimeouts struct {
	// Idle bounds how long nothing may come of an answer that has not ended: the request's wait,
	// its prefill, and the whole of an answer that is not streamed. The default is 600s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 600s"
	Idle *metav1.Duration `json:"idle,omitempty"`
}
