// Package v1alpha1 contains the API types of inference.x-k8s.io/v1alpha1, the kinds that users of
// Headgate write.
//
// The kubebuilder markers on the types make an API server reject the same objects as package
// objects does. A test compares the two.
// +kubebuilder:object:generate=true
// +groupName=inference.x-k8s.io
package v1alpha1

import "k8s.io/apimachinery/pkg/runtime/schema"

// GroupVersion names the kinds of this package in YAML.
const GroupVersion = "inference.x-k8s.io/v1alpha1"

// SchemeGroupVersion is GroupVersion for clients.
var SchemeGroupVersion = schema.GroupVersion{Group: "inference.x-k8s.io", Version: "v1alpha1"}
