package conditions

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Model is what the conditions of a Model depend on.
type Model struct {
	Pool objects.Name
	// Exists says that the pool exists. Endpoints are the pool's.
	Exists    bool
	Endpoints Tally
	// Loaded is the number of copies that serve requests, and Min the least number that should.
	Loaded, Min int
	// Failed is why the model gets no copy, for people; empty if it may get one.
	Failed string
	// Taken says which other object has its id; empty if none has.
	Taken string
}

// OfModel returns the conditions Accepted and Ready of a Model.
func OfModel(m Model) []metav1.Condition {
	const of = v1alpha1.ConditionReady
	var ready metav1.Condition
	switch {
	case !m.Exists:
		ready = not(of, v1alpha1.ReasonPoolNotFound, fmt.Sprintf("the InferencePool %s does not exist: nothing can load it", m.Pool))
	case m.Endpoints.Answers() == metav1.ConditionFalse:
		ready = not(of, m.Endpoints.reason(), fmt.Sprintf("InferencePool %s: %s", m.Pool.Name, m.Endpoints.words()))
	case m.Loaded == 0 && m.Failed != "":
		ready = not(of, v1alpha1.ReasonCannotLoad, m.Failed)
	case m.Loaded == 0 && m.Min > 0:
		ready = not(of, v1alpha1.ReasonLoading, fmt.Sprintf("0 of at least %d copies are loaded", m.Min))
	case m.Loaded < m.Min:
		ready = is(of, v1alpha1.ReasonLoading, fmt.Sprintf("%d of at least %d copies are loaded", m.Loaded, m.Min))
	case m.Loaded > 0:
		ready = is(of, v1alpha1.ReasonLoaded, count(m.Loaded, "copy answers", "copies answer"))
	default:
		ready = is(of, v1alpha1.ReasonLoadable, "control loads it when a request names it")
	}
	return []metav1.Condition{acceptedID(m.Taken), ready}
}

// acceptedID is the condition Accepted of a Model or VModel. Taken says which other object has its
// id; empty if none has.
func acceptedID(taken string) metav1.Condition {
	if taken != "" {
		return not(v1alpha1.ConditionAccepted, v1alpha1.ReasonModelNameTaken, taken)
	}
	return is(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")
}

// OfDuplicates returns the part of [Of] for the Models and VModels whose id belongs to an older
// object. Placement computes the statuses of the others, with [OfModel] and [OfVModel].
func OfDuplicates(w *objects.World) (all []*Status) {
	add := func(kind string, name objects.Name, uid string, generation int64, taken string) {
		all = append(all, &Status{
			Object: objects.Object{Kind: kind, Name: name}, UID: uid, Generation: generation, Own: true,
			Conditions: unaccepted(v1alpha1.ReasonModelNameTaken, taken),
		})
	}
	for _, e := range w.Doubles {
		add(v1alpha1.ModelKind, e.Object, e.UID, e.Generation, e.Taken)
	}
	for _, v := range w.VModels {
		if !w.HasItsID(v) {
			add(v1alpha1.VModelKind, v.Object, v.UID, v.Generation, v.Taken)
		}
	}
	return all
}

// VModel is what the conditions of a VModel depend on.
type VModel struct {
	Pool objects.Name
	// Exists says that the pool exists.
	Exists bool
	// Target is the model of the specification, Active the one that requests go to.
	Target, Active string
	// Canary is that of the specification, and ActiveCanary the one that gets Percent of a hundred
	// requests; both may be empty.
	Canary, ActiveCanary string
	Percent              int
	// Unknown is a target or canary that nothing in the pool has; empty if all are known.
	Unknown string
	// Loaded is the number of loaded copies of the target, and Needed the number at which requests
	// go to it.
	Loaded, Needed int
	// Failed is why the target, or else the canary, gets no copy; empty if it may get one.
	Failed string
	// NameTaken says that a model has the VModel's name. Taken says which other object has its id;
	// empty if none has.
	NameTaken bool
	Taken     string
	// Behind are the extprocs that may still send requests to an earlier target.
	Behind []string
}

// OfVModel returns the conditions Accepted and Ready of a VModel.
func OfVModel(v VModel) []metav1.Condition {
	return []metav1.Condition{acceptedID(v.Taken), v.ready()}
}

func (v VModel) ready() metav1.Condition {
	const of = v1alpha1.ConditionReady
	goes := "requests go to " + v.Active
	if v.ActiveCanary != "" {
		goes += fmt.Sprintf(", %d %% of them to %s", v.Percent, v.ActiveCanary)
	}
	switch {
	case !v.Exists:
		return not(of, v1alpha1.ReasonPoolNotFound, fmt.Sprintf("the InferencePool %s does not exist: nothing can load its models", v.Pool))
	case v.NameTaken:
		return not(of, v1alpha1.ReasonModelNameTaken, "a model has this name, and requests go to that model")
	case v.Unknown != "":
		return not(of, v1alpha1.ReasonTargetNotFound, fmt.Sprintf("%s: no Model, LLMRoute or engine of InferencePool %s has %s", goes,
			v.Pool.Name, v.Unknown))
	case v.Active != v.Target && v.Failed != "":
		return not(of, v1alpha1.ReasonTransitionFailed, fmt.Sprintf("%s: %s cannot be loaded: %s", goes, v.Target, v.Failed))
	case v.Active != v.Target:
		return not(of, v1alpha1.ReasonTransitioning, fmt.Sprintf("%s until %s has its copies: %d of %d are loaded", goes, v.Target, v.Loaded,
			v.Needed))
	case v.Canary != v.ActiveCanary && v.Failed != "":
		return not(of, v1alpha1.ReasonTransitionFailed, fmt.Sprintf("%s: the canary %s cannot be loaded: %s", goes, v.Canary, v.Failed))
	case v.Canary != v.ActiveCanary:
		return not(of, v1alpha1.ReasonTransitioning, fmt.Sprintf("%s until the canary %s is loaded", goes, v.Canary))
	case len(v.Behind) > 0:
		return not(of, v1alpha1.ReasonTransitioning, fmt.Sprintf("%s; these extprocs may still send them to an earlier target: %s", goes,
			strings.Join(v.Behind, ", ")))
	}
	return is(of, v1alpha1.ReasonDefined, goes)
}
