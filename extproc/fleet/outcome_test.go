package fleet_test

import (
	"math"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
)

// A streamed response yields the ratio of actual to predicted time to first token, whichever policy
// picked the endpoint. A request yields none if another endpoint than the picked one served it.
func TestOutcomesComparePredictions(t *testing.T) {
	o := outcome.Outcome{
		Pool: "ns/pool", Endpoint: a, Status: 200, Stream: true, Attempts: 1, FirstBody: 500 * time.Millisecond,
		Expected: 250 * time.Millisecond,
	}
	if ratio, tells := o.Predicted(); !tells || ratio != 2 {
		t.Errorf("the ratio is %g, %v", ratio, tells)
	}
	for _, change := range []func(*outcome.Outcome){
		func(o *outcome.Outcome) { o.Stream = false }, func(o *outcome.Outcome) { o.FirstBody = 0 }, func(o *outcome.Outcome) {
			o.Expected = 0
		},
		func(o *outcome.Outcome) { o.Status = 400 }, func(o *outcome.Outcome) { o.Attempts = 2 }, func(o *outcome.Outcome) {
			o.Elsewhere = []string{a}
		},
		func(o *outcome.Outcome) { o.Missing = []string{a} }, func(o *outcome.Outcome) { o.QueueTime = time.Second },
	} {
		odd := o
		if change(&odd); func() bool { _, tells := odd.Predicted(); return tells }() {
			t.Errorf("this gives a ratio: %+v", odd)
		}
	}
}

// The outcome of a request for an adapter yields a load time. If no load was needed, it yields the
// frontend overhead. Implausible times yield nothing.
func TestOutcomesGiveLoadTimes(t *testing.T) {
	f, c := started()
	w, name := f.View().World, objects.Name{Namespace: "ns", Name: "pool"}
	w.Pools[name].Profile = &profile.Profile{
		Decode: profile.Decode{Base: 0.02}, Limits: profile.Limits{
			MaxSequences: 10, MaxBatchedTokens: 1000, KVBlocks: 100, BlockSize: 16,
			GPUAdapters: 1, HostAdapters: 2,
		},
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
	if is := view(f).Endpoints[0].Profile.AdapterLoad.Mean; is != 0.3 {
		t.Errorf("a load takes %g s, want 0.3", is)
	}
	o.Adapter, o.FirstBody = "none", 120*time.Millisecond
	for range 20 {
		f.Observe(o)
	}
	c.advance(time.Second)
	f.SetWorld(w)
	if is := view(f).Endpoints[0].Profile; math.Abs(is.FrontendOverhead-0.02) > 1e-9 || math.Abs(is.AdapterLoad.Mean-0.28) > 1e-9 {
		t.Errorf("the frontend overhead is %g s, and a load takes %g s, want 0.02 and 0.28", is.FrontendOverhead, is.AdapterLoad.Mean)
	}
}
