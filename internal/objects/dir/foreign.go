package dir

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// foreignGroups are API groups without any of Headgate's kinds, whose objects people often write
// into the same files.
var foreignGroups = []string{
	"admissionregistration.k8s.io", "apiextensions.k8s.io", "apps", "autoscaling", "batch", "cert-manager.io", "gateway.envoyproxy.io",
	"keda.sh",
	"leaderworkerset.x-k8s.io", "monitoring.coreos.com", "networking.istio.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io",
	"scheduling.k8s.io", "storage.k8s.io",
}

// foreignKinds are other kinds in groups that also have kinds of Headgate's.
var foreignKinds = map[string][]string{
	"": {
		"ConfigMap", "Endpoints", "LimitRange", "Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim", "ReplicationController",
		"ResourceQuota",
		"Secret", "Service", "ServiceAccount",
	},
	"inference.networking.k8s.io":   {"InferenceModelRewrite", "InferenceObjective", "InferencePoolImport"},
	"inference.networking.x-k8s.io": {"InferenceModel", "InferenceModelRewrite", "InferenceObjective", "InferencePoolImport"},
}

// isForeign reports whether a kind is known not to be Headgate's. An unknown kind may be one of
// ours, misspelled.
func isForeign(k schema.GroupVersionKind) bool {
	return k.Version != "" && k.Kind != "" && (slices.Contains(foreignGroups, k.Group) || slices.Contains(foreignKinds[k.Group], k.Kind))
}
