package v1alpha1

// ModelsLoad is the condition of a pod that control sets where the pod's readiness gates name it: a
// new pod gets no requests until a few of the models that are loaded elsewhere in its pool are
// loaded there, too, so that a roll to a version at which loads fail stands still.
const ModelsLoad = "inference.x-k8s.io/models-load"

// Reasons of [ModelsLoad].
const (
	ModelsTried  = "Trying"    // they are being loaded
	ModelsLoaded = "Loaded"    // they are, or there were none to load
	LoadsFail    = "LoadsFail" // they cannot be
)
