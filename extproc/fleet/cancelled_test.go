package fleet_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
)

// A client cancels a long prompt while the engine still computes it. The endpoint has room for
// others at once, although another request keeps it from being idle.
func TestCancelledPromptMakesRoom(t *testing.T) {
	f, c := started()
	w := world("10.0.0.1")
	w.Pools[objects.Name{Namespace: "ns", Name: "pool"}].Profile = &profile.Profile{
		Prefill: profile.Prefill{PerToken: 0.0001}, Decode: profile.Decode{Base: 0.01, PerSequence: 0.0001},
		Limits: profile.Limits{MaxSequences: 256, MaxBatchedTokens: 2048, KVBlocks: 100_000, BlockSize: 16},
	}
	f.SetWorld(w)
	see(f, a, engine.Load{})
	begin := func(tokens int) (*fleet.InFlight, error) {
		f.Publish()
		picks, err := pick.Pick(pick.Policy{Rule: pick.Latency}, f.View().Snapshot, pick.Request{
			Pool: "ns/pool", Model: "llama", Base: true, Random: 1,
			Demand: pick.Demand{Prompt: tokens, Output: 100, Now: fleet.Steady(c.now()).UnixNano()},
			Gate:   pick.Gate{On: true, Queue: pick.DefaultGateQueue, PerToken: pick.DefaultGatePerToken},
		}, make([]pick.Decision, 1))
		if err != nil {
			return nil, err
		}
		return f.Begin(picks[0]), nil
	}
	short, err := begin(100)
	if err != nil {
		t.Fatal(err)
	}
	c.advance(100 * time.Millisecond)
	long, err := begin(200_000) // 20 s
	if err != nil {
		t.Fatal(err)
	}
	c.advance(500 * time.Millisecond)
	see(f, a, engine.Load{})
	if _, err := begin(100); !errors.Is(err, pick.ErrNoRoom) {
		t.Errorf("while the engine computes a long prompt: %v, want no room", err)
	}
	long.End()
	last, err := begin(100)
	if err != nil {
		t.Errorf("after the long prompt was cancelled: %v", err)
	}
	for _, r := range []*fleet.InFlight{short, last} {
		r.End()
	}
	if b := view(f).Endpoints[0].Backlog; b.Queue.Load() != 0 || b.Tokens.Load() != 0 {
		t.Errorf("at the end the queue ends at %d, with %d tokens", b.Queue.Load(), b.Tokens.Load())
	}
}
