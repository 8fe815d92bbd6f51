package fleet_test

import (
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/objects"
)

// Service times are learned for each model of each pool, from successful requests without tokens.
func TestServiceTimesAreLearned(t *testing.T) {
	f := fleet.New(fleet.Config{})
	o := outcome.Outcome{
		Pool: "ns/pool", Model: "iris", Endpoint: "10.0.0.1:8000", Status: 200, Attempts: 1, Among: 2,
		Answered: 20 * time.Millisecond,
	}
	bad := o
	bad.Status, bad.Answered = 400, time.Microsecond
	slow := o
	slow.Model, slow.Answered = "bert", time.Second
	key := func(pool, model string) objects.ModelKey {
		return objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: pool}, ID: model}
	}
	for range 3 {
		f.Observe(o)
	}
	if got := f.ServiceTime(key("pool", "iris")); got != 0 {
		t.Errorf("after three requests the service time is %d ns", got)
	}
	for range 3 {
		f.Observe(o)
		f.Observe(bad)
		f.Observe(bad)
		f.Observe(slow)
		f.Observe(slow)
	}
	for k, want := range map[objects.ModelKey]time.Duration{
		key("pool", "iris"): 10 * time.Millisecond, key("pool", "bert"): 500 * time.Millisecond, key("pool", "new"): 0, key("pool", ""): 0,
		key("other", "iris"): 0,
	} {
		if got := time.Duration(f.ServiceTime(k)); got != want {
			t.Errorf("the service time of %v is %v, want %v", k, got, want)
		}
	}
}

// All names of a base model share one service time.
func TestBaseModelHasOneServiceTime(t *testing.T) {
	f, _ := started()
	base := view(f).BaseModel()
	pool := objects.Name{Namespace: "ns", Name: "pool"}
	o := outcome.Outcome{Pool: "ns/pool", Model: "alias", Endpoint: a, Status: 200, Among: 1, Answered: time.Second}
	for range 4 {
		f.Observe(o)
	}
	for _, name := range []string{"alias", base} {
		if got := time.Duration(f.ServiceTime(objects.ModelKey{Pool: pool, ID: name})); got != time.Second {
			t.Errorf("the service time of %s is %v, want 1 s", name, got)
		}
	}
}

// The requests end at the same moment.
func TestServiceTimesOfConcurrentRequests(t *testing.T) {
	f := fleet.New(fleet.Config{})
	o := outcome.Outcome{Pool: "ns/pool", Model: "iris", Endpoint: a, Status: 200, Among: 1, Answered: time.Second}
	k := objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "pool"}, ID: "iris"}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				f.Observe(o)
				if got := f.ServiceTime(k); got != 0 && got != int64(time.Second) {
					t.Errorf("the service time is %d ns", got)
				}
			}
		})
	}
	all.Wait()
}
