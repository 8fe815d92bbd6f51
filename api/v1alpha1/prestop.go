package v1alpha1

import "time"

// PreStop is the annotation of a pod whose containers wait in their preStop hooks for control; PreStopMigrate is what it says then. While
// such a pod is being deleted it migrates: it serves on, and its models get copies elsewhere first. A pod without the annotation is left
// at once, for its containers are told to end (SIGTERM) as soon as it is deleted.
const (
	PreStop        = "inference.x-k8s.io/prestop"
	PreStopMigrate = "migrate"
)

// PreStopMargin is how long before a pod is killed its hook has returned, so that its engine has time to end.
const PreStopMargin = 5 * time.Second
