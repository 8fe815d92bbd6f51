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
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// An error lists at most ten models. Building the list reads at most a few hundred names, however
// many models exist.
func TestModelListInAnErrorIsBounded(t *testing.T) {
	const many = 20_000
	routed := func(s *objects.Set) {
		for i := range many / 100 {
			r := aRoute(fmt.Sprintf("r%d", i), "sticky", "")
			for j := range 100 {
				r.Spec.ModelNames = append(r.Spec.ModelNames, fmt.Sprintf("routed-%03d-%02d", i, j))
			}
			s.Routes = append(s.Routes, r)
		}
	}
	listed := engine.Models{Base: []string{"qwen"}}
	news := endpointstate.PlacementUpdate{All: true, Registered: make(map[objects.ModelKey]bool)}
	for i := range many {
		listed.Adapters = append(listed.Adapters, fmt.Sprintf("listed-%d", i))
		news.Registered[objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "base"}, ID: fmt.Sprintf("registered-%d", i)}] = true
	}
	f := newFleetWith(fleet.Config{}, routed)
	f.SetModels("10.0.1.1:8000", listed)
	f.SetWorld(f.View().World)
	f.ApplyPlacement(news)
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
	})
	ask := func() string {
		x, now := server.Exchange(stream.Own, "", 0), time.Now()
		defer x.End(now)
		var text strings.Builder
		for _, line := range []string{"headers :method=POST :path=/v1/completions", `body {"prompt":"hi"}`} {
			out, err := x.Receive(message(t, line), now)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range out {
				text.Write(m.GetImmediateResponse().GetBody())
			}
		}
		return text.String()
	}
	text := ask()
	if names := strings.Count(text, "', '") + 1; names != 10 || !strings.Contains(text, "GET /v1/models, such as '") {
		t.Errorf("it names %d models: %s", names, text)
	}
	if allocs := testing.AllocsPerRun(10, func() { ask() }); allocs > 1000 {
		t.Errorf("it allocates %v times", allocs)
	}
}
