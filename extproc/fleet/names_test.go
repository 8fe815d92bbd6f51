package fleet_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

// withVModel returns a World with the VModel "sql". If percent is not 0, the canary gets that
// percentage of the VModel's requests.
func withVModel(target, canary string, percent int32) *objects.World {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: thePool.Namespace, Name: thePool.Name}}
	v := v1alpha1.VModel{ObjectMeta: metav1.ObjectMeta{Namespace: thePool.Namespace, Name: "sql"}}
	v.Spec.PoolRef.Name, v.Spec.Target = thePool.Name, target
	if percent > 0 {
		v.Spec.Canary = &v1alpha1.Canary{Target: canary, Percent: percent}
	}
	return objects.Build(objects.Set{Pools: []pool.InferencePool{p}, VModels: []v1alpha1.VModel{v}})
}

// switched returns an update of control with these targets of VModels.
func switched(all map[objects.ModelKey]endpointstate.Switch) endpointstate.PlacementUpdate {
	return endpointstate.PlacementUpdate{VModels: all}
}

// A VModel's target from control takes precedence over the target in its object, which applies if
// control sends none. A registered name that is not a VModel is a model.
func TestTargetOfAVModel(t *testing.T) {
	w, empty := withVModel("sql-v1", "", 0), world()
	f := fleet.New(fleet.Config{})
	key, other := model("sql"), objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "other"}, ID: "sql"}
	registered := func(key objects.ModelKey, is bool) endpointstate.PlacementUpdate {
		return endpointstate.PlacementUpdate{Registered: map[objects.ModelKey]bool{key: is}}
	}
	for _, c := range []struct {
		when string
		news *endpointstate.PlacementUpdate // nil: control sends no update
		w    *objects.World
		key  objects.ModelKey
		want string
	}{
		{"control sent nothing", nil, w, key, "sql-v1"},
		{"no VModel there", nil, w, other, "sql"},
		{"an unknown name", nil, empty, key, "sql"},
		{"control moved it", new(switched(map[objects.ModelKey]endpointstate.Switch{key: {Active: "sql-v2"}})), w, key, "sql-v2"},
		{"control moved it elsewhere", nil, w, other, "sql"},
		{"its object is not there yet", nil, empty, key, "sql-v2"},
		{"control moved another", new(switched(map[objects.ModelKey]endpointstate.Switch{other: {Active: "x"}})), w, key, "sql-v2"},
		{"the name is registered, for it is a client's VModel", new(registered(key, true)), w, key, "sql-v2"},
		{
			"control withdraws the target, and a model has the name", new(switched(map[objects.ModelKey]endpointstate.Switch{key: {}})), w,
			key, "sql",
		},
		{"the model is not registered any more", new(registered(key, false)), w, key, "sql-v1"},
		{"a model of another pool is registered", new(registered(other, true)), w, key, "sql-v1"},
		{"control withdraws what it never sent", new(switched(map[objects.ModelKey]endpointstate.Switch{key: {}})), w, key, "sql-v1"},
		{"control moves it again", new(switched(map[objects.ModelKey]endpointstate.Switch{key: {Active: "sql-v3"}})), w, key, "sql-v3"},
		{"control sends its complete state without it", &endpointstate.PlacementUpdate{
			All:     true,
			VModels: map[objects.ModelKey]endpointstate.Switch{other: {Active: "y"}},
		}, w, key, "sql-v1"},
		{"control sends its complete state without it", nil, w, other, "y"},
	} {
		if c.news != nil {
			f.ApplyPlacement(*c.news)
		}
		if active, goes := f.Active(c.w, c.key), f.Resolve(c.w, c.key, 7); active != c.want || goes != c.want {
			t.Errorf("%s: active is %s, and requests go to %s, want %s", c.when, active, goes, c.want)
		}
	}
}

// shareOf returns how many of these hash buckets go to the canary.
func shareOf(f *fleet.Fleet, w *objects.World, lots []uint64) (n int) {
	for _, lot := range lots {
		if f.Resolve(w, model("sql"), lot) == "sql-v2" {
			n++
		}
	}
	return n
}

// A canary gets its percentage of the hash buckets, whether the VModel's object or control
// configures it, and whether bucket numbers are random or consecutive. The result for a bucket is
// stable, and a bucket of the canary remains the canary's when the percentage grows.
func TestCanaryGetsItsShare(t *testing.T) {
	const many = 100_000
	random, counting := make([]uint64, many), make([]uint64, many)
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // which lots are tried
	for i := range many {
		random[i], counting[i] = r.Uint64(), uint64(i)
	}
	for _, percent := range []int{1, 10, 50, 99} {
		byObject, byControl := fleet.New(fleet.Config{}), fleet.New(fleet.Config{})
		byControl.ApplyPlacement(switched(map[objects.ModelKey]endpointstate.Switch{model("sql"): {
			Active: "sql-v1", Canary: "sql-v2",
			Percent: percent,
		}}))
		for name, lots := range map[string][]uint64{"random": random, "counting": counting} {
			n := shareOf(byObject, withVModel("sql-v1", "sql-v2", int32(percent)), lots)
			if again := shareOf(byControl, withVModel("x", "", 0), lots); again != n {
				t.Errorf("%d %% of %s buckets: %d by its object and %d by control", percent, name, n, again)
			}
			if want := many * percent / 100; n < want-600 || n > want+600 { // four standard deviations at the largest variance
				t.Errorf("%d %% of %s buckets: %d of %d", percent, name, n, many)
			}
		}
		if active := byControl.Active(withVModel("x", "", 0), model("sql")); active != "sql-v1" {
			t.Errorf("with a canary, the active model is %s", active)
		}
	}
	f, before := fleet.New(fleet.Config{}), make(map[uint64]bool)
	for percent := int32(1); percent <= 99; percent++ {
		w := withVModel("sql-v1", "sql-v2", percent)
		for _, lot := range random[:1000] {
			goes := f.Resolve(w, model("sql"), lot) == "sql-v2"
			if before[lot] && !goes {
				t.Fatalf("bucket %d leaves the canary when it gets %d %%", lot, percent)
			}
			before[lot] = goes
		}
	}
}

// The buckets of a canary are the same in every process and release, so that sessions keep their
// model.
func TestBucketsOfACanary(t *testing.T) {
	f, w := fleet.New(fleet.Config{}), withVModel("sql-v1", "sql-v2", 10)
	var canary []uint64
	for lot := range uint64(60) {
		if f.Resolve(w, model("sql"), lot) == "sql-v2" {
			canary = append(canary, lot)
		}
	}
	if want := []uint64{0, 7, 14, 21, 39, 46, 57}; !slices.Equal(canary, want) {
		t.Errorf("it gets %v, want %v", canary, want)
	}
}

// Without a percentage, or without a canary, all requests go to the active model.
func TestNoCanaryShare(t *testing.T) {
	lots := make([]uint64, 10_000)
	for i := range lots {
		lots[i] = uint64(i)
	}
	for _, to := range []endpointstate.Switch{{Active: "sql-v1", Canary: "sql-v2"}, {Active: "sql-v1", Percent: 99}} {
		f := fleet.New(fleet.Config{})
		f.ApplyPlacement(switched(map[objects.ModelKey]endpointstate.Switch{model("sql"): to}))
		for _, lot := range lots {
			if goes := f.Resolve(world(), model("sql"), lot); goes != "sql-v1" {
				t.Fatalf("%+v: bucket %d goes to %q", to, lot, goes)
			}
		}
	}
}

// One update may contain both a loaded copy and the switch of a VModel to that model. No reader
// sees the switch without the copy.
func TestSwitchAndCopiesAreConsistent(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	var f *fleet.Fleet
	reading := func() {}
	f = fleet.New(fleet.Config{Now: func() time.Time { reading(); return c.at }})
	w := world("10.0.0.1", "10.0.0.2")
	f.SetWorld(w)
	f.ApplyPlacement(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a, b), Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("sql-v1",
			a): endpointstate.Loaded},
		VModels: map[objects.ModelKey]endpointstate.Switch{model("sql"): {Active: "sql-v1"}},
	})
	looked := 0
	reading = func() { // called in the middle of ApplyPlacement, as another goroutine might do
		looked++
		if to := f.Active(w, model("sql")); len(where(f, to)) == 0 {
			t.Errorf("requests go to %s, which has no copy", to)
		}
	}
	f.ApplyPlacement(endpointstate.PlacementUpdate{Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("sql-v2",
		b): endpointstate.Loaded}, VModels: map[objects.ModelKey]endpointstate.Switch{model("sql"): {Active: "sql-v2"}}})
	if to := f.Active(w, model("sql")); looked == 0 || to != "sql-v2" {
		t.Errorf("after %d reads requests go to %s", looked, to)
	}
	expectWhere(t, f, "then", "sql-v2", b)
}
