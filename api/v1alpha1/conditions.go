package v1alpha1

// The condition types of objects with endpoints, besides [ConditionAccepted], and their reasons.
// PoolSettings and EndpointLists have them, InferencePools at each Gateway, and LLMRoutes and
// Models have the reasons of Ready.
const (
	// ConditionEndpoints is true if all endpoints answer, and not only with errors. Its message is
	// the number of these endpoints and the number of all endpoints, as in "3/4".
	ConditionEndpoints = "Endpoints"

	// ReasonEndpointsAnswer means that at least one endpoint answers.
	ReasonEndpointsAnswer = "EndpointsAnswer"
	// ReasonNoEndpoints means that no endpoint answers.
	ReasonNoEndpoints = "NoEndpoints"
	// ReasonEndpointsAwaited means that the pool has no ready endpoint, and that requests wait for
	// one: its PoolSettings has timeouts.empty. That is normal while an autoscaler has scaled the
	// pool to zero.
	ReasonEndpointsAwaited = "EndpointsAwaited"
	// ReasonEndpointsFailing means that endpoints answer, but have answered only with errors for 15
	// s.
	ReasonEndpointsFailing = "EndpointsFailing"
	// ReasonNoPicker means that no extproc is connected to control. Envoys then reject requests,
	// unless an extproc runs but cannot connect to control.
	ReasonNoPicker = "NoPicker"
	// ReasonNoEnvoy means that control serves no Gateways, and that no Envoy uses an extproc.
	ReasonNoEnvoy = "NoEnvoy"
	// ReasonNotObserved means that it is unknown whether endpoints answer.
	ReasonNotObserved = "NotObserved"
	// ReasonAllServing means that all endpoints serve.
	ReasonAllServing = "AllServing"
	// ReasonSomeSuspect means that all endpoints answer, and that some are suspect: extproc prefers
	// others, because they have failed a request, are full or answer slowly.
	ReasonSomeSuspect = "SomeSuspect"
	// ReasonSomeOut means that some endpoints answer, and others do not.
	ReasonSomeOut = "SomeOut"
	// ReasonSomeFailing means that all endpoints answer, and that some answer only with errors.
	ReasonSomeFailing = "SomeFailing"
	// ReasonConflicted means that an older PoolSettings names the same pool, and is in force.
	ReasonConflicted = "Conflicted"
	// ReasonNotSelected means that no InferencePool selects an EndpointList.
	ReasonNotSelected = "NotSelected"
)
