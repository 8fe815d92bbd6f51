package fleet_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
)

// What became of requests for adapters tells how long loads take; what makes no sense tells nothing.
func TestOutcomesTellOfLoads(t *testing.T) {
	f, c := started()
	w, name := f.View().World, objects.Name{Namespace: "ns", Name: "pool"}
	w.Pools[name].Profile = &profile.Profile{
		Decode: profile.Decode{Base: 0.02}, Limits: profile.Limits{MaxSequences: 10, MaxBatchedTokens: 1000, KVBlocks: 100, BlockSize: 16, GPUAdapters: 1, HostAdapters: 2},
	}
	f.SetWorld(w)
	o := outcome.Outcome{
		Pool: "ns/pool", Model: "sql", Endpoint: a, Status: 200, Stream: true, Attempts: 1, Adapter: "storage",
		FirstBody: 400 * time.Millisecond, Expected: 150 * time.Millisecond, Loading: 50 * time.Millisecond,
	}
	for range 20 {
		f.Observe(o)
		for _, at := range []string{"nowhere", ""} {
			odd := o
			odd.Adapter, odd.FirstBody = at, time.Hour
			f.Observe(odd)
		}
	}
	c.advance(time.Second)
	f.SetWorld(w)
	if is := view(f).Endpoints[0].Profile.Load.Mean; is != 0.3 {
		t.Errorf("a load takes %g s, want 0.3", is)
	}
}
