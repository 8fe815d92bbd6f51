package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GatewaySettingsKind is the kind of [GatewaySettings].
const GatewaySettingsKind = "GatewaySettings"

// GatewaySettings configures the Envoys of Gateways. A Gateway names one of its namespace in
// spec.infrastructure.parametersRef; a GatewayClass names one of any namespace in
// spec.parametersRef. The Gateway's settings override those of its class, field by field. Fields
// that neither sets have the defaults below.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=gatewaysettings,singular=gatewaysettings,shortName=gwset,categories=headgate
// +kubebuilder:printcolumn:name=Replicas,type=integer,JSONPath=.spec.replicas
// +kubebuilder:printcolumn:name=Service,type=string,JSONPath=.spec.service.type
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type GatewaySettings struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec GatewaySettingsSpec `json:"spec"`
}

// GatewaySettingsList is a list of GatewaySettings.
// +kubebuilder:object:root=true
type GatewaySettingsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GatewaySettings `json:"items"`
}

// GatewaySettingsSpec is the settings of a Gateway's Envoys.
type GatewaySettingsSpec struct {
	// Managed says whether control creates the Deployment, the Service and the PodDisruptionBudget
	// of a Gateway. The default is true. If it is false, you run the Envoys: `control bootstrap`
	// prints the configuration that each must start with.
	Managed *bool `json:"managed,omitempty"`
	// Replicas is the number of Envoys of a Gateway, each with its own extproc, at least 1. By
	// default control creates the Deployment with 2 and leaves the number to others afterwards,
	// such as a HorizontalPodAutoscaler.
	// +kubebuilder:validation:Minimum=1
	Replicas *int32 `json:"replicas,omitempty"`
	// Service configures the Service through which clients reach the Envoys.
	Service *GatewayService `json:"service,omitempty"`
	// Resources are the resource requests and limits of the containers.
	Resources *GatewayResources `json:"resources,omitempty"`
	// Timeouts are the timeouts of requests.
	Timeouts *GatewayTimeouts `json:"timeouts,omitempty"`
	// Payloads makes the Envoys send extproc copies of requests and answers, which contain user
	// data. It is read only in the settings of a GatewayClass, so that the author of a Gateway
	// cannot make Headgate's pods send data elsewhere.
	Payloads *GatewayPayloads `json:"payloads,omitempty"`
}

// GatewayService is the Service of a Gateway.
type GatewayService struct {
	// Type is LoadBalancer, ClusterIP or NodePort. The default is LoadBalancer. The address in the
	// Gateway's status is that of the load balancer, or the ClusterIP for the other types.
	// +kubebuilder:validation:Enum=LoadBalancer;ClusterIP;NodePort
	Type *string `json:"type,omitempty"`
}

// GatewayResources are the resources of the containers in a Gateway's pods. If set, they replace
// all default requests and limits of that container.
type GatewayResources struct {
	Envoy   *corev1.ResourceRequirements `json:"envoy,omitempty"`
	Extproc *corev1.ResourceRequirements `json:"extproc,omitempty"`
}

// GatewayPayloads lists the destinations for copies of requests and answers.
type GatewayPayloads struct {
	// Processors are up to 16 URLs of sinks, in the form of extproc --payload-processor:
	// http(s)://host[:port]/path[?model][#method], or logger://. They apply to the extprocs of
	// managed Gateways. Other extprocs need the flag.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=2048
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^(https?|logger)://[^\\\\s]+$')",message="write the URL of a sink, such as https://sink.example/payloads, or logger://*"
	Processors []string `json:"processors,omitempty"`
}

// GatewayTimeouts are the timeouts of requests through a Gateway, all above 0.
type GatewayTimeouts struct {
	// Idle is the longest time without data from the engine before Envoy ends a request. It covers
	// queueing, prefill and the whole of an answer that is not streamed. The default is 600s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]*[.]?[0-9]+(ns|us|ms|s|m|h))+$') && duration(self) > duration('0s')",message="it must be above 0, such as 600s"
	Idle *metav1.Duration `json:"idle,omitempty"`
}
