package v1alpha1

import "time"

// PreStop is an annotation of pods whose containers wait for control in their preStop hooks, and
// PreStopMigrate is its value. While such a pod is being deleted, it keeps serving until its models
// are loaded elsewhere. A duration may follow, as in "migrate 60s": the longest time from the
// deletion until the pod stops serving. Containers of pods without the annotation get SIGTERM as
// soon as the pod is deleted, and Headgate sends them no further requests.
const (
	PreStop        = "inference.x-k8s.io/prestop"
	PreStopMigrate = "migrate"
)

// PreStopMargin is the time between the return of the preStop hooks and the kill of the pod, so
// that the engine has time to end.
const PreStopMargin = 5 * time.Second
