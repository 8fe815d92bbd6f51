package statuswriter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

// PutGate queues the pod condition that reports whether models load in the pod. Writing it requires
// patch of pods/status, which manifests/base does not grant. Grant it when you add the readiness
// gate to pods.
func (r *Writer) PutGate(g store.Gate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gates[g.Pod] = g
	r.mark(subject{kind: objects.PodKind, name: g.Pod})
}

// writeGate writes the condition of a pod. It is no error if the pod was deleted or replaced.
func (r *Writer) writeGate(ctx context.Context, name objects.Name) error {
	r.mu.Lock()
	g, due := r.gates[name]
	r.mu.Unlock()
	if !due {
		return nil
	}
	is := metav1.ConditionFalse
	if g.Open {
		is = metav1.ConditionTrue
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": g.UID},
		"status": map[string]any{"conditions": []map[string]any{{ // the API server merges conditions by type
			"type": v1alpha1.ModelsLoad, "status": is, "reason": g.Reason, "message": g.Message,
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
		}}},
	})
	if err != nil {
		return err
	}
	pod := named(&metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: objects.PodKind}}, name)
	err = r.client.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, patch))
	switch {
	case apierrors.IsNotFound(err), isAnother(err):
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: grant control patch of pods/status in its namespace, together with the readiness gate %s", err,
			v1alpha1.ModelsLoad)
	case err != nil:
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gates[name] == g {
		delete(r.gates, name)
	}
	return nil
}

// isAnother reports whether a patch with a UID failed because the object now has another UID.
func isAnother(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsInvalid(err) && status.ErrStatus.Details != nil &&
		slices.ContainsFunc(status.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// PutDrain does nothing: drains are not stored in the API server. A command that drains an endpoint
// asks the next leader again.
func (r *Writer) PutDrain(store.Drain) error { return nil }

// DeleteDrain does nothing, like PutDrain.
func (r *Writer) DeleteDrain(string) {}

// Drains returns nothing, since PutDrain stores nothing.
func (r *Writer) Drains() ([]store.Drain, error) { return nil, nil }
