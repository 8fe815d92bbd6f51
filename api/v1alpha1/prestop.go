package v1alpha1

import "time"

// PreStop is the annotation of a pod whose containers wait for control in their preStop hooks, and
// PreStopMigrate what it says then: while such a pod is being deleted it migrates, which is that it
// serves on and its models get copies elsewhere first. A duration may follow after a space, such as
// "migrate 60s", by which that is over after the pod was deleted. A pod without the annotation is
// left at once, for its containers are told to end (SIGTERM) as soon as it is deleted.
const (
	PreStop        = "inference.x-k8s.io/prestop"
	PreStopMigrate = "migrate"
)

// PreStopMargin is how long before a pod is killed its hooks have returned at the latest, so that
// its engine has time to end.
const PreStopMargin = 5 * time.Second
