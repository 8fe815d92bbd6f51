package stream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// asked returns the engine's name of the model in a request's decision, and its first endpoint. If
// the request was not sent, it returns the reply, or what the request waits for.
func asked(t *testing.T, server *stream.Server, model, headers string) (of, at string) {
	t.Helper()
	x, now := server.Exchange(stream.Own, "", 0), time.Now()
	defer x.End(now)
	for _, line := range []string{"headers :method=POST :path=/v1/completions " + headers, fmt.Sprintf(`body {"model":%q}`, model)} {
		out, err := x.Receive(message(t, line), now)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range out {
			if r := m.GetImmediateResponse(); r != nil {
				return fmt.Sprintf("reply: %d", r.GetStatus().GetCode()), ""
			}
			pick := m.GetDynamicMetadata().GetFields()["gateway.pick"].GetStructValue().GetFields()
			of = pick["model"].GetStringValue()
			picks := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue()
			at, _, _ = strings.Cut(picks, ",")
		}
	}
	if waits := x.Waits(); waits != "" {
		return "waits for " + waits, ""
	}
	return of, at
}

// All requests of a session go to the same model and the same endpoint. Requests without a session
// are split one by one.
func TestSessionsStayWithACanary(t *testing.T) {
	server, _ := newServer(t, newFleetOfVModels(fleet.Config{}), nil)
	const many = 400
	shares := make(map[string]int)
	for i := range many {
		session := fmt.Sprintf("x-session=%d", i)
		of, at := asked(t, server, "tried", session)
		shares[of]++
		for range 3 {
			if again, there := asked(t, server, "tried", session); again != of || there != at {
				t.Fatalf("session %d went to %s at %s, and then to %s at %s", i, of, at, again, there)
			}
		}
	}
	alone := make(map[string]int)
	for range many {
		of, _ := asked(t, server, "tried", "")
		alone[of]++
	}
	for who, shares := range map[string]map[string]int{"sessions": shares, "requests without a session": alone} {
		if v1, v2 := shares["sticky-v1"], shares["sticky-v2"]; v1+v2 != many || v2 < 150 || v2 > 250 { // half, ± five standard deviations
			t.Errorf("for %s: %v", who, shares)
		}
	}
}

// After a VModel moves, the next request goes to its new target, whether the request uses the
// VModel's ID or a route.
func TestSwitchMovesTheNextRequest(t *testing.T) {
	f := newFleetOfVModels(fleet.Config{})
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
	})
	expect := func(when, want string) {
		t.Helper()
		for _, name := range []string{"sql", "analyst"} {
			if of, at := asked(t, server, name, ""); of != want || at != address {
				t.Errorf("%s %s goes to %s at %s, want %s", when, name, of, at, want)
			}
		}
	}
	expect("before control sends anything", "sql-v2")
	f.ApplyPlacement(news(t, f, []string{"loaded=sql-v2@" + address, "loaded=sql-v3@" + address}))
	expect("control does not mention it", "sql-v2")
	f.ApplyPlacement(news(t, f, []string{"moved=sql@sql-v3"}))
	expect("it was moved", "sql-v3")
	f.ApplyPlacement(news(t, f, []string{"moved=sql@sql-v2", "gone=sql-v3@" + address}))
	expect("it was moved back, and the other is gone", "sql-v2")
}

// If a VModel moves while a request is being decided, the request finds the copies of the new
// target.
func TestSwitchWhileARequestIsDecided(t *testing.T) {
	f := newFleetOfVModels(fleet.Config{})
	f.ApplyPlacement(news(t, f, []string{"loaded=sql-v2@" + address}))
	between := func() {}
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
		random := c.Random
		c.Random = func() uint64 { between(); return random() } // called during the decision
	})
	between = func() {
		f.ApplyPlacement(endpointstate.PlacementUpdate{
			Copies: map[endpointstate.CopyKey]endpointstate.CopyState{{
				ModelKey: objects.ModelKey{Pool: nobody.Pool, ID: "sql-v3"},
				Endpoint: address,
			}: endpointstate.Loaded},
			VModels: map[objects.ModelKey]endpointstate.Switch{{Pool: nobody.Pool, ID: "sql"}: {Active: "sql-v3"}},
		})
	}
	if of, at := asked(t, server, "sql", ""); of != "sql-v3" || at != address {
		t.Errorf("it goes to %s at %s", of, at)
	}
}
