package fleet_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Request statistics of a model are learned from successful requests. A new model uses those of its
// pool.
func TestRequestStatistics(t *testing.T) {
	f := fleet.New(fleet.Config{})
	pool := objects.Name{Namespace: "ns", Name: "pool"}
	is := func(pool objects.Name, model string) [2]float64 {
		h := f.RequestStats(objects.ModelKey{Pool: pool, ID: model})
		return [2]float64{h.BytesPerToken(), h.Output()}
	}
	o := outcome.Outcome{
		Pool: "ns/pool", Model: "sql", Endpoint: "10.0.0.1:8000", Status: 200, Bytes: 300, Prompt: engine.Known(100),
		Completion: engine.Known(50),
	}
	for _, not := range []func(*outcome.Outcome){
		func(o *outcome.Outcome) { o.Status = 400 },
		func(o *outcome.Outcome) { o.Failure = outcome.Cut },
		func(o *outcome.Outcome) { o.ByEnvoy = true },
	} {
		bad := o
		not(&bad)
		f.Observe(bad)
	}
	if got := is(pool, "sql"); got != [2]float64{4, 200} {
		t.Errorf("it learned %v from failed requests", got)
	}
	f.Observe(o)
	o.Model, o.Bytes, o.Completion = "chat", 500, engine.Known(150)
	f.Observe(o)
	for model, want := range map[string][2]float64{"sql": {3, 50}, "chat": {5, 150}, "new": {4, 100}} {
		if got := is(pool, model); got != want {
			t.Errorf("%s: %v bytes per token and tokens, want %v", model, got, want)
		}
	}
	if got := is(objects.Name{Namespace: "ns", Name: "other"}, "sql"); got != [2]float64{4, 200} {
		t.Errorf("in another pool it is %v", got)
	}
}

// An outcome has the name of a base model that the client used. All names of the model share one
// set of statistics.
func TestBaseModelHasOneSetOfStatistics(t *testing.T) {
	f, _ := started()
	base := view(f).BaseModel()
	pool := objects.Name{Namespace: "ns", Name: "pool"}
	o := outcome.Outcome{
		Pool: "ns/pool", Model: "alias", Endpoint: a, Status: 200, Bytes: 300, Prompt: engine.Known(100),
		Completion: engine.Known(50),
	}
	f.Observe(o)
	o.Model, o.Completion = "sql", engine.Known(150)
	f.Observe(o)
	if got := f.RequestStats(objects.ModelKey{Pool: pool, ID: base}).Output(); got != 50 {
		t.Errorf("requests for the base model have %g output tokens, want 50", got)
	}
}
