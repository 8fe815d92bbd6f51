package statuswriter

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/control/events"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

const (
	// eventsFrom is the reporting controller of Events.
	eventsFrom = "headgate.dev/control"
	// eventAction is the action of Events, a required field.
	eventAction = "SetCondition"
	// eventKind is the kind of Events in Writer.resting and Writer.logged.
	eventKind = "Event"
)

// ReportChanges makes the Writer write a Kubernetes Event when it makes a condition worse and when
// the condition recovers. The instance is the name of this control's pod. Call it before the Writer
// gets statuses. It needs create and patch of events in the namespaces of objects, and in the
// namespace default for GatewayClasses.
func (r *Writer) ReportChanges(instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events, r.instance = events.New(), instance
}

// observe records that the status of an object was written. Before and after are the object or its
// status. The caller holds mu.
func (r *Writer) observe(of objects.Object, uid types.UID, before, after any) {
	if r.events != nil {
		r.events.Observe(time.Now(), of, string(uid), events.ConditionsOf(before), events.ConditionsOf(after))
	}
}

// forgetEvents releases what the Events of a deleted object need. The caller holds mu.
func (r *Writer) forgetEvents(of objects.Object) {
	if r.events != nil {
		r.events.Forget(of)
	}
}

// writeEvent writes the next Event; false if none may be written now.
func (r *Writer) writeEvent() bool {
	r.mu.Lock()
	now := time.Now()
	if r.events == nil || !r.leads() || now.Before(r.resting[eventKind]) {
		r.mu.Unlock()
		return false
	}
	e, due := r.events.Next(now)
	r.mu.Unlock()
	if !due {
		return false
	}
	ctx, cancel := context.WithTimeout(r.writes, statusTimeout)
	defer cancel()
	r.noteEvent(e, r.putEvent(ctx, e))
	return true
}

// putEvent creates an Event, or increases the count of the one that was written before.
func (r *Writer) putEvent(ctx context.Context, e events.Event) error {
	o := r.eventOf(e)
	if e.Again {
		patch, err := json.Marshal(map[string]any{"series": o.Series})
		if err != nil {
			return err
		}
		err = r.client.Patch(ctx, named(&eventsv1.Event{}, nameOf(o)), client.RawPatch(types.MergePatchType, patch))
		if !apierrors.IsNotFound(err) { // API servers delete Events after a while
			return err
		}
	}
	err := r.client.Create(ctx, o)
	if apierrors.IsAlreadyExists(err) { // the answer to an earlier try was lost
		return nil
	}
	return err
}

// eventOf converts an Event to the type of the API.
func (r *Writer) eventOf(e events.Event) *eventsv1.Event {
	kind := r.kinds[e.Object.Kind].GroupVersionKind
	o := &eventsv1.Event{
		EventTime: metav1.NewMicroTime(e.First), ReportingController: eventsFrom, ReportingInstance: r.instance, Action: eventAction,
		Reason: e.Reason, Type: e.Type, Note: e.Note,
		Regarding: corev1.ObjectReference{
			APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: e.Object.Name.Namespace, Name: e.Object.Name.Name,
			UID: types.UID(e.UID),
		},
	}
	o.Namespace, o.Name = e.Object.Name.Namespace, e.Name
	if o.Namespace == "" {
		o.Namespace = metav1.NamespaceDefault // API servers require it for objects without a namespace
	}
	if e.Count > 1 {
		o.Series = &eventsv1.EventSeries{Count: e.Count, LastObservedTime: metav1.NewMicroTime(e.Last)}
	}
	return o
}

// noteEvent processes the result of writing an Event. It drops an Event that the API server
// rejects, for example because the namespace is being deleted. After any other error, Events wait
// for the next retry.
func (r *Writer) noteEvent(e events.Event, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := subject{kind: eventKind}
	rejected := apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err)
	if err == nil || rejected {
		r.events.Written(e)
	} else {
		r.resting[eventKind] = time.Now().Add(retryInterval - writeInterval)
	}
	switch {
	case err == nil:
		delete(r.logged, kind)
	case r.logged[kind] != "", apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
	default:
		r.logged[kind] = err.Error()
		r.log.Warn("cannot write an Event; conditions in the status of objects are not affected", "object", e.Object, "reason", e.Reason,
			"err", fmt.Sprint(err, kube.HintFor(err)))
	}
}
