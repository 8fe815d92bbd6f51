// Package v1alpha1 holds the kinds of inference.x-k8s.io/v1alpha1 that people write for Headgate.
// Types only.
//
// What the markers on them have an API server refuse is what package objects refuses: a test there
// holds the two together.
// +kubebuilder:object:generate=true
// +groupName=inference.x-k8s.io
package v1alpha1

import "k8s.io/apimachinery/pkg/runtime/schema"

// GroupVersion names the kinds of this package in YAML.
const GroupVersion = "inference.x-k8s.io/v1alpha1"

// SchemeGroupVersion is GroupVersion for clients.
var SchemeGroupVersion = schema.GroupVersion{Group: "inference.x-k8s.io", Version: "v1alpha1"}
