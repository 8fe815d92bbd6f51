package v1alpha1

// ModelsLoad is a pod condition that control sets if the pod's readiness gates name it. A new pod
// gets no requests until it has loaded a few models that are loaded elsewhere in its pool. This
// stops a rollout to a version that cannot load models.
const ModelsLoad = "inference.x-k8s.io/models-load"

// Reasons of [ModelsLoad].
const (
	ModelsTried  = "Trying"    // control is loading the models
	ModelsLoaded = "Loaded"    // the models are loaded, or there were none
	LoadsFail    = "LoadsFail" // the models cannot be loaded
)
