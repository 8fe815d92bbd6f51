package dir

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// foreignGroups are API groups of which no kind is Headgate's: what people deploy beside its objects, in one file with them.
var foreignGroups = []string{
	"admissionregistration.k8s.io", "apiextensions.k8s.io", "apps", "autoscaling", "batch", "cert-manager.io", "gateway.envoyproxy.io", "keda.sh",
	"leaderworkerset.x-k8s.io", "monitoring.coreos.com", "networking.istio.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io",
	"scheduling.k8s.io", "storage.k8s.io",
}

// foreignKinds are those of groups of which other kinds are Headgate's.
var foreignKinds = map[string][]string{
	"": {
		"ConfigMap", "Endpoints", "LimitRange", "Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim", "ReplicationController", "ResourceQuota",
		"Secret", "Service", "ServiceAccount",
	},
	"inference.networking.k8s.io":   {"InferenceModelRewrite", "InferenceObjective", "InferencePoolImport"},
	"inference.networking.x-k8s.io": {"InferenceModel", "InferenceModelRewrite", "InferenceObjective", "InferencePoolImport"},
}

// isForeign says whether a kind is known to be none of Headgate's. A kind that is not known may be one of ours, misspelt.
func isForeign(k schema.GroupVersionKind) bool {
	return k.Version != "" && k.Kind != "" && (slices.Contains(foreignGroups, k.Group) || slices.Contains(foreignKinds[k.Group], k.Kind))
}
