package conditions

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// State is whether an endpoint answers.
type State uint8

// The states, from unknown to the best.
const (
	Unknown State = iota
	// Out endpoints get no requests: they do not answer, are not ready or are stopping.
	Out
	// Failing endpoints answer, but for some time all requests there have failed.
	Failing
	// Suspect endpoints answer, but get requests only if no endpoint that serves can take them:
	// they have just failed a request, are full, or have not answered scrapes for a second.
	Suspect
	Serving
)

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"unknown", "out", "failing", "suspect", "serving"}[s]
}

// Endpoint is the observed state of an endpoint.
type Endpoint struct {
	State State
	// Since is when the endpoint entered the state with this reason; zero if unknown.
	Since time.Time
	// Reason is why the endpoint does not serve: a word of extproc's, such as connection_refused,
	// or a text for people. It is empty if the endpoint serves, or if nothing is known.
	Reason string
}

// Explain returns the reason for people.
func (e Endpoint) Explain() string {
	if e.State == Failing {
		return "its requests fail (see the log of its engine)"
	}
	return cmp.Or(explanations[e.Reason], e.Reason)
}

// notReady is the reason of an endpoint whose pod is not ready.
const notReady = "not_ready"

// requestsFail is the reason of a suspect endpoint whose last request failed.
const requestsFail = "requests_fail"

// failingAfter is how long all requests at an endpoint must fail before it is [Failing], and how
// long it must serve before it is not. So a single bad or good request does not change the
// conditions of many objects.
const failingAfter = 15 * time.Second

// Turn returns the state of an endpoint for conditions, from its reported state and the result of
// the previous call. It replaces Suspect or Serving by Failing. If next is not zero, the result
// changes at that time, even without a new report.
func Turn(before, is Endpoint, now time.Time) (_ Endpoint, next time.Time) {
	fails := is.State == Suspect && is.Reason == requestsFail
	settled := !now.Before(is.Since.Add(failingAfter))
	switch failing := before.State == Failing; {
	case fails && (failing || settled):
		return Endpoint{State: Failing, Since: is.Since, Reason: requestsFail}, time.Time{}
	case is.State >= Suspect && failing && !settled:
		return Endpoint{State: Failing, Since: before.Since, Reason: requestsFail}, is.Since.Add(failingAfter)
	case fails:
		return is, is.Since.Add(failingAfter)
	}
	return is, time.Time{}
}

// explanations are the reasons that extprocs report (package endpointstate), for people.
var explanations = map[string]string{
	notReady:             "its pod is not ready",
	"terminating":        "its pod is being deleted, or it is drained",
	"engine_stopping":    "its engine is stopping",
	"engine_asleep":      "its engine is asleep",
	"connection_refused": "it refuses connections",
	"never_answered":     "it has never answered a scrape",
	"scrapes_unanswered": "it does not answer scrapes",
	"node_silent":        "its node does not report",
	"connection_reset":   "the connection of a request was reset",
	requestsFail:         "a request failed",
	"queue_full":         "it rejected a request, since its queue is full",
}

// Observed is what is known of endpoints and data planes at a moment. The zero Observed knows
// nothing.
type Observed struct {
	// Reports are the states that extprocs report, by endpoint ("ip:port").
	Reports map[string]Endpoint
	// Scrapes are the states that control, or another reader of conditions, found itself. They
	// count for endpoints without a report.
	Scrapes map[string]Endpoint
	// Extprocs are the connected extprocs.
	Extprocs []Extproc
	// Failures are the models that cannot be loaded for now, with the reasons for people.
	Failures map[objects.ModelKey]string
}

// Extproc is a connected extproc: which requests reach it apart from those of Headgate's Gateways.
type Extproc struct {
	Process string
	// Standalone says that an Envoy with envoy.yaml uses it, which serves all objects.
	Standalone bool
	// Picker says that it is the endpoint picker of other gateways. Pool is its --pool-name, if
	// any: the pool of requests that name no other.
	Picker bool
	Pool   objects.Name
}

// noPicker is the message of the reason NoPicker.
const noPicker = "no extproc is connected to control: start extproc; if it runs, its log names the error: check its flag " +
	"--control, its token and its certificate"

// idle returns why no data plane outside Gateways serves requests. The reason is empty if one does,
// or if an extproc is the endpoint picker of other gateways.
func (o *Observed) idle() (reason, words string) {
	if len(o.Extprocs) == 0 {
		return v1alpha1.ReasonNoPicker, noPicker
	}
	for _, x := range o.Extprocs {
		if x.Standalone || x.Picker {
			return "", ""
		}
	}
	return v1alpha1.ReasonNoEnvoy, "an extproc is connected to control, but no Envoy uses it: start Envoy with envoy.yaml"
}

// Best returns the better of two states of an endpoint: a request is served if one extproc reaches
// the endpoint. Of two equal ones it returns the older, so that it does not change with the order.
func Best(a, b Endpoint) Endpoint {
	switch {
	case a.State > b.State, a.State == b.State && a.Since.Before(b.Since):
		return a
	}
	return b
}

// Of returns the state of a declared endpoint: what extprocs report, else what control scraped,
// else what the pod's readiness says. A listed endpoint has no readiness.
func (o *Observed) Of(e *objects.Endpoint) Endpoint {
	if is := o.Reports[e.Address]; is.State != Unknown {
		return is
	}
	if !e.Ready {
		return Endpoint{State: Out, Reason: notReady}
	}
	if is := o.Scrapes[e.Address]; is.State != Unknown {
		return is
	}
	if e.Listed || e.Pod == (objects.Name{}) {
		return Endpoint{}
	}
	return Endpoint{State: Serving}
}

// Tally counts the endpoints of an object by state. Answering endpoints serve or are suspect. The
// zero Tally knows nothing.
type Tally struct {
	Counted                                     bool // whether the endpoints were counted
	Total, Answering, Suspect, Failing, Unknown int
	starting                                    int      // number of endpoints whose pods are not ready
	held                                        bool     // whether requests wait for the first endpoint
	faults                                      []string // why endpoints do not serve
}

// maxFaults is the number of endpoints that a message names.
const maxFaults = 3

func (t *Tally) add(address string, is Endpoint) {
	t.Total++
	switch is.State {
	case Unknown:
		t.Unknown++
	case Suspect:
		t.Suspect++
		t.Answering++
	case Serving:
		t.Answering++
	case Failing:
		t.Failing++
	case Out:
		if is.Reason == notReady {
			t.starting++
		}
	}
	if is.Reason != "" && len(t.faults) <= maxFaults {
		t.faults = append(t.faults, address+": "+is.Explain())
	}
}

// String returns how many endpoints answer, as in "3/4".
func (t *Tally) String() string { return fmt.Sprintf("%d/%d", t.Answering, t.Total) }

// Answers reports whether any endpoint answers, and not only with errors. It is Unknown if no
// endpoint is known to do so, and the state of some is unknown.
func (t *Tally) Answers() metav1.ConditionStatus {
	switch {
	case t.Answering > 0:
		return metav1.ConditionTrue
	case t.Unknown > 0, !t.Counted:
		return metav1.ConditionUnknown
	}
	return metav1.ConditionFalse
}

// awaited reports whether requests wait for the first endpoint. If endpoints are out for another
// reason than that they are not ready, something is wrong with them.
func (t *Tally) awaited() bool { return t.held && t.Counted && t.starting == t.Total }

// words describes the endpoints.
func (t *Tally) words() string {
	var words string
	switch {
	case t.awaited():
		return "it has no ready endpoint: requests wait for one (timeouts.empty)"
	case t.Total == 0:
		return "it has no endpoints"
	case t.Answers() == metav1.ConditionUnknown:
		return "neither an extproc nor control has reported on " + count(t.Unknown, "endpoint", "endpoints")
	case t.Answering == 0 && t.Failing > 0:
		words = fmt.Sprintf("requests fail at %d of %s", t.Failing, count(t.Total, "endpoint", "endpoints"))
	default:
		words = fmt.Sprintf("%d of %s", t.Answering, count(t.Total, "endpoint answers", "endpoints answer"))
	}
	if len(t.faults) > 0 {
		words += ": " + strings.Join(t.faults[:min(len(t.faults), maxFaults)], "; ")
		if len(t.faults) > maxFaults {
			words += "; and others"
		}
	}
	return words
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// answer returns the conditions Ready and Endpoints of an object with endpoints.
func (w *writer) answer(t *Tally) []metav1.Condition {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: t.Answers(), Message: Message(t.words())}
	ready.Reason = t.reason()
	all := t.condition(ready)
	if good(ready) && len(w.Extprocs) == 0 {
		ready = not(v1alpha1.ConditionReady, v1alpha1.ReasonNoPicker, noPicker)
	}
	return []metav1.Condition{ready, all}
}

// condition returns the condition Endpoints of an object, from its condition Ready.
func (t *Tally) condition(ready metav1.Condition) metav1.Condition {
	all := metav1.Condition{Type: v1alpha1.ConditionEndpoints, Status: metav1.ConditionTrue, Message: t.String()}
	switch {
	case ready.Status != metav1.ConditionTrue:
		all.Status, all.Reason = ready.Status, ready.Reason
	case t.Answering+t.Failing < t.Total:
		all.Status, all.Reason = metav1.ConditionFalse, v1alpha1.ReasonSomeOut
	case t.Failing > 0:
		all.Status, all.Reason = metav1.ConditionFalse, v1alpha1.ReasonSomeFailing
	case t.Suspect > 0:
		all.Reason = v1alpha1.ReasonSomeSuspect
	default:
		all.Reason = v1alpha1.ReasonAllServing
	}
	return all
}

// reason returns the reason of the condition Ready.
func (t *Tally) reason() string {
	switch answers := t.Answers(); {
	case answers == metav1.ConditionTrue:
		return v1alpha1.ReasonEndpointsAnswer
	case answers == metav1.ConditionUnknown:
		return v1alpha1.ReasonNotObserved
	case t.Failing > 0:
		return v1alpha1.ReasonEndpointsFailing
	case t.awaited():
		return v1alpha1.ReasonEndpointsAwaited
	}
	return v1alpha1.ReasonNoEndpoints
}

// TallyOf counts the endpoints of a pool; a pool that does not exist has none.
func (o *Observed) TallyOf(p *objects.Pool) Tally {
	t := Tally{Counted: true}
	if p != nil {
		t.held = len(o.Extprocs) > 0 && p.HoldsWhileEmpty()
		for i := range p.Endpoints {
			t.add(p.Endpoints[i].Address, o.Of(&p.Endpoints[i]))
		}
	}
	return t
}

// tally counts the endpoints of a pool once.
func (w *writer) tally(pool objects.Name) *Tally {
	t := w.tallies[pool]
	if t == nil {
		is := w.TallyOf(w.World.Pools[pool])
		t = &is
		w.tallies[pool] = t
	}
	return t
}

// pool returns how many endpoints of a pool answer, and its conditions Ready and Endpoints.
func (w *writer) pool(name objects.Name) (string, []metav1.Condition) {
	t := w.tally(name)
	return t.String(), w.answer(t)
}

// own adds a status with conditions of an object's own.
func (w *writer) own(kind string, name objects.Name, uid string, generation int64) *Status {
	s := &Status{Object: objects.Object{Kind: kind, Name: name}, UID: uid, Generation: generation, Own: true}
	w.all = append(w.all, s)
	return s
}

// settings adds the status of every PoolSettings.
func (w *writer) settings() {
	for _, use := range w.World.Settings {
		s := w.own(v1alpha1.PoolSettingsKind, use.Name, use.UID, use.Generation)
		switch use.InForce {
		case objects.Name{}:
			s.Conditions = unaccepted(v1alpha1.ReasonPoolNotFound,
				fmt.Sprintf("spec.poolRef names InferencePool %s, which does not exist", use.Pool))
		case use.Name:
			s.Conditions = []metav1.Condition{is(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")}
			var more []metav1.Condition
			s.Endpoints, more = w.pool(use.Pool)
			s.Conditions = append(s.Conditions, more...)
		default:
			s.Conditions = unaccepted(v1alpha1.ReasonConflicted, fmt.Sprintf(
				"InferencePool %s uses PoolSettings %s, which is older or first by name: delete one of the two", use.Pool, use.InForce))
		}
	}
}

// lists adds the status of every EndpointList.
func (w *writer) lists() {
	endpoints := make(map[objects.Name]map[string]*objects.Endpoint)
	for _, p := range w.World.Pools {
		for i := range p.Endpoints {
			e := &p.Endpoints[i]
			if !e.Listed {
				continue
			}
			if endpoints[e.Pod] == nil {
				endpoints[e.Pod] = make(map[string]*objects.Endpoint)
			}
			endpoints[e.Pod][e.Address] = e
		}
	}
	for _, use := range w.World.Lists {
		s := w.own(v1alpha1.EndpointListKind, use.Name, use.UID, use.Generation)
		if !use.Selected {
			s.Conditions = unaccepted(v1alpha1.ReasonNotSelected,
				"no InferencePool of its namespace selects its labels: nothing uses it")
			continue
		}
		t := Tally{Counted: true}
		for _, e := range slices.SortedFunc(maps.Values(endpoints[use.Name]), func(a, b *objects.Endpoint) int {
			return cmp.Compare(a.Address, b.Address)
		}) {
			t.add(e.Address, w.Of(e))
		}
		s.Endpoints = t.String()
		s.Conditions = append([]metav1.Condition{is(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")}, w.answer(&t)...)
	}
}

// unaccepted returns the conditions of an object that is not accepted.
func unaccepted(reason, words string) []metav1.Condition {
	return []metav1.Condition{
		not(v1alpha1.ConditionAccepted, reason, words), not(v1alpha1.ConditionReady, reason, "it is not accepted: "+words),
	}
}
