package stream_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// The metrics show who waits and who was refused. The access log gets the band, the wait and its
// reason.
func TestWaitsAreVisible(t *testing.T) {
	var m *metrics.Meter
	f, held, client := window(t, 1, func(c *stream.Config) { m = c.Meter })
	m.SetWorld(f.View().World)
	m.ReportHeld(stream.HeldIn(held))
	ctx, end := context.WithCancel(t.Context())
	if _, first := askFor(ctx, t, client, "llama"); !goes(t, first) {
		t.Fatal(first)
	}
	next, asked := askFor(t.Context(), t, client, "gpt-4")
	if asked.GetOverrideMessageTimeout() == nil {
		t.Fatalf("the second request does not wait: %v", asked)
	}
	awaitHeld(t, held, flow.Held{Pool: objects.Name{Namespace: "ns", Name: "base"}, Band: 1, Reason: flow.Room, Requests: 1})
	waiting := `headgate_band_held_requests{band="1",pool="ns/base",reason="room"} 1`
	if got := series(m, "headgate_band_held_requests"); !slices.Equal(got, []string{waiting}) {
		t.Errorf("%q wait, want %s", got, waiting)
	}
	if got := series(m, "headgate_queued_requests"); !slices.Equal(got, []string{"headgate_queued_requests 0"}) {
		t.Errorf("a request that waits for room counts as waiting for its model: %q", got)
	}
	end()
	answer, err := next.Recv()
	if err != nil || !goes(t, answer) {
		t.Fatal(answer, err)
	}
	pick := answer.GetDynamicMetadata().GetFields()[wire.PickNamespace].GetStructValue().GetFields()
	if pick[wire.PickBand].GetNumberValue() != 1 || pick[wire.PickWaitFor].GetStringValue() != "room" ||
		pick[wire.PickHold].GetNumberValue() <= 0 {
		t.Errorf("the access log gets %v", pick)
	}
	awaitQueued(t, held, 0)
	for name, want := range map[string]string{
		"headgate_band_held_requests":           "",
		"headgate_band_held_time_seconds_count": `headgate_band_held_time_seconds_count{band="1",pool="ns/base",reason="room"} 1`,
		"headgate_band_refused_total":           "",
	} {
		if got := strings.Join(series(m, name), "\n"); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// A request waits for its turn while the room of all endpoints belongs to another process.
func TestWaitForAnotherProcessIsATurn(t *testing.T) {
	_, held, client := window(t, 1, nil)
	held.Turns = flow.NewTurns()
	held.Turns.Begin()
	others := turns.Others{Requests: 1, Share: 1, After: 1}
	held.Turns.Hear([]flow.Others{{Pool: objects.Name{Namespace: "ns", Name: "base"}, Others: others}}, time.Second)
	s, asked := askFor(t.Context(), t, client, "llama")
	if asked.GetOverrideMessageTimeout() == nil {
		t.Fatalf("the request does not wait: %v", asked)
	}
	answer, err := s.Recv() // the other process leaves the room
	if err != nil || !goes(t, answer) {
		t.Fatal(answer, err)
	}
	pick := answer.GetDynamicMetadata().GetFields()[wire.PickNamespace].GetStructValue().GetFields()
	if got := pick[wire.PickWaitFor].GetStringValue(); got != "turn" {
		t.Errorf("it waited for %q", got)
	}
}

// awaitHeld waits until these requests wait, whenever they arrived.
func awaitHeld(t *testing.T, held *flow.Flow, want flow.Held) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(5 * time.Second); ; {
		all := held.Held()
		for i := range all {
			all[i].Since = time.Time{}
		}
		if slices.Equal(all, []flow.Held{want}) {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%+v wait, want %+v", all, want)
		}
	}
}
