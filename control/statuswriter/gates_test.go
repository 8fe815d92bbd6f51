package statuswriter_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

const podWithGate = `apiVersion: v1
kind: Pod
metadata: {name: new, annotations: {try: "%d"}}
spec:
  containers: [{name: engine, image: engine}]
  readinessGates: [{conditionType: inference.x-k8s.io/models-load}]
`

// pod reads the pod named "new". It returns the UID, and the conditions as "Type Status Reason:
// message".
func (c cluster) pod() (uid string, conditions []string) {
	c.Helper()
	client, err := rest.HTTPClientFor(c.Admin())
	if err != nil {
		c.Fatal(err)
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.Admin().Host+"/api/v1/namespaces/default/pods/new", nil)
	if err != nil {
		c.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		c.Fatal(err)
	}
	defer response.Body.Close()
	var pod struct {
		Metadata metav1.ObjectMeta
		Status   struct{ Conditions []metav1.Condition }
	}
	if err := json.NewDecoder(response.Body).Decode(&pod); err != nil {
		c.Fatal(err)
	}
	for _, is := range pod.Status.Conditions {
		conditions = append(conditions, fmt.Sprintf("%s %s %s: %s", is.Type, is.Status, is.Reason, is.Message))
		if is.LastTransitionTime.IsZero() {
			c.Errorf("%s has no time of its last change", is.Type)
		}
	}
	return string(pod.Metadata.UID), conditions
}

// A pod's condition reports whether models load in the pod, and conditions of other controllers
// stay. A pod that replaced it does not get its condition. Without the permission, control retries.
func TestPodConditionReportsLoads(t *testing.T) {
	c := newCluster(t)
	c.Apply(fmt.Sprintf(podWithGate, 1))
	uid, _ := c.pod()
	r := c.open(c.typed(writer(c)), always)
	pod := objects.Name{Namespace: "default", Name: "new"}
	r.PutGate(store.Gate{Pod: pod, UID: uid, Reason: "Trying", Message: "a moment"})
	const says = "inference.x-k8s.io/models-load "
	c.Await("it is refused", func() bool { return slices.Contains(c.Calls("writer"), "patch pods/status new") })
	c.Allowed("writer", strings.Replace(writerRules, "\n", "\n- {apiGroups: [\"\"], resources: [pods/status], verbs: [patch]}\n", 1))
	await := func(want string) {
		t.Helper()
		c.Await("the pod says "+want, func() bool {
			_, all := c.pod()
			return strings.Count(strings.Join(all, "\n"), says) == 1 && strings.Contains(strings.Join(all, "\n"), says+want)
		})
	}
	await("False Trying: a moment")
	r.PutGate(store.Gate{Pod: pod, UID: uid, Open: true, Reason: "Loaded", Message: "fine"})
	await("True Loaded: fine")

	// These conditions are for a pod with another UID, and for a deleted pod.
	r.PutGate(store.Gate{Pod: pod, UID: "another", Reason: "LoadsFail"})
	r.PutGate(store.Gate{Pod: objects.Name{Namespace: "default", Name: "gone"}, UID: "gone", Reason: "LoadsFail"})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	await("True Loaded: fine")
}
