package place

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// TestRetryingIsNotReady checks that a model whose loads fail with a transient error is not ready
// while it has no copy, and that its condition gives the reason.
func TestRetryingIsNotReady(t *testing.T) {
	p := &Placer{world: &objects.World{}}
	pool := objects.Name{Namespace: "n", Name: "p"}
	p.world.Pools = map[objects.Name]*objects.Pool{pool: {}}
	st := decide.Status{Retrying: true, Failures: []decide.Failure{{Endpoint: "e1", Message: "busy", Why: decide.LoadRetried}}}
	st.Pool = pool
	got := p.modelStatus(st).Conditions[1]
	if got.Status != "False" || !strings.Contains(got.Message, "transient error") || !strings.Contains(got.Message, "busy") {
		t.Errorf("a model whose load is retried is %+v", got)
	}
}
