package placementserver_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// What an extproc reports of endpoints and of itself reaches the placer, with absolute times.
func TestStatesOfEndpointsReachThePlacer(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x := w.connect("x")
		if is := w.placer.extproc; is.Process != "x" {
			t.Errorf("an extproc that reports no state is %+v", is)
		}
		x.send(&placement.Report{
			States: []*placement.EndpointState{
				{Endpoint: "a", State: placement.EndpointState_SERVING, ForMs: 3000},
				{Endpoint: "b", State: placement.EndpointState_SUSPECT, Reason: "queue_full"},
				{Endpoint: "c", State: placement.EndpointState_OUT, Reason: "connection_refused"},
				{Endpoint: "d"},
			},
			DataPlane: &placement.DataPlane{Standalone: true, Pool: "ns/p"},
		})
		w.after(0)
		now := time.Now()
		want := map[string]conditions.Endpoint{
			"a": {State: conditions.Serving, Since: now.Add(-3 * time.Second)},
			"b": {State: conditions.Suspect, Since: now, Reason: "queue_full"},
			"c": {State: conditions.Out, Since: now, Reason: "connection_refused"},
			"d": {},
		}
		if diff := cmp.Diff(want, w.placer.endpoints); diff != "" {
			t.Errorf("the states (-want +got):\n%s", diff)
		}
		if got, want := w.placer.extproc, (conditions.Extproc{
			Process: "x", Standalone: true, Pool: objects.Name{Namespace: "ns", Name: "p"},
		}); got != want {
			t.Errorf("the extproc is %+v, want %+v", got, want)
		}
	})
}
