package place

import (
	"math"
	"slices"
	"testing"
)

// mesh returns a ModelMesh fleet whose endpoints have room for eight models of mean size. Half the
// size of a model is reserved.
func mesh(t *testing.T, endpoints, models int) (*Fleet, *modelmesh) {
	t.Helper()
	w := World{
		Endpoints: endpoints, Models: models, Share: 8 * float64(endpoints) / float64(models), Rate: 1e-9,
		Load: 2, AtOnce: 1, Service: 0.05, Measured: 1e6,
	}
	f, err := newFleet(w, 1)
	if err != nil {
		t.Fatal(err)
	}
	m := &modelmesh{churnAge: mmChurnAge}
	f.policy, f.Requests, f.waits = m, nil, nil
	m.Start(f)
	return f, m
}

// ask sends a request for each model at a time.
func ask(f *Fleet, at float64, models ...int) {
	f.loop.Run(at)
	for _, model := range models {
		f.Requests = append(f.Requests, Request{at, int32(model)}) //nolint:gosec // there are few
		f.waits = append(f.waits, 0)
		f.request(len(f.Requests) - 1)
	}
}

// loaded returns the loaded models of an endpoint in order.
func loaded(f *Fleet, endpoint int) (models []int) {
	for _, c := range f.Nodes[endpoint].Copies {
		if c.State == Loaded {
			models = append(models, c.Model)
		}
	}
	slices.Sort(models)
	return models
}

// A full endpoint rejects loads while its oldest entry is younger than 100 s. Later it evicts that
// entry. An endpoint with free room accepts every load.
func TestMeshChurn(t *testing.T) {
	f, _ := mesh(t, 1, 8)
	ask(f, 1, 0, 1, 2, 3, 4, 5, 6)
	ask(f, 60, 7)
	if f.waits[7] != refused {
		t.Errorf("the request waited %g, want it to fail", f.waits[7])
	}
	ask(f, 90, 1, 2, 3, 4, 5, 6)
	ask(f, 102, 7)
	f.loop.Run(110)
	if is := loaded(f, 0); f.waits[14] != 2 || !slices.Equal(is, []int{1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("the request waited %g, and there are %d", f.waits[14], is)
	}
}

// A model goes to the endpoint with the fewest models. Only if all endpoints are full, it goes to a
// full one: the one with the oldest entry.
func TestMeshOrder(t *testing.T) {
	f, m := mesh(t, 3, 24)
	ask(f, 1, 0)
	f.loop.Run(10)
	candidate := func(full bool, oldest float64, count int) mmCandidate {
		return mmCandidate{full: full, oldest: oldest, count: count}
	}
	order := []mmCandidate{candidate(false, 9, 1), candidate(false, 5, 2), candidate(true, 1, 9), candidate(true, 2, 3)}
	for i := range order[1:] {
		if compareCandidates(order[i], order[i+1]) >= 0 || compareCandidates(order[i+1], order[i]) <= 0 {
			t.Errorf("%+v is not before %+v", order[i], order[i+1])
		}
	}
	for range 50 {
		if e := m.target(0, m.Now(), nil); f.At(0, e) != nil {
			t.Fatalf("endpoint %d has the model already", e)
		}
	}
}

// Loads for which requests wait start before others. Among these, the latest starts first.
func TestMeshQueue(t *testing.T) {
	f, m := mesh(t, 1, 8)
	f.loop.Run(1)
	for model := range 3 {
		m.ensure(model, 0, false)
	}
	ask(f, 1.5, 3)
	ask(f, 1.6, 4)
	ask(f, 1.7, 2)
	f.loop.Run(20)
	if f.waits[2] > f.waits[1] || f.waits[1] > f.waits[0] || math.Abs(float64(f.waits[0])-7.5) > 0.01 {
		t.Errorf("requests waited %g, want the last to wait least and the first 7.5", f.waits)
	}
}

// A model that is used again after 7 minutes gets a second copy while a tenth of the fleet is free.
// So does a model in constant use.
func TestMeshSecondCopy(t *testing.T) {
	f, _ := mesh(t, 2, 16)
	ask(f, 1, 0, 1, 2)
	for at := 10.0; at < 500; at += 30 {
		ask(f, at, 2)
	}
	if n := len(f.Copies[2]); n != 2 {
		t.Errorf("what is used all the time has %d copies, want 2", n)
	}
	f, _ = mesh(t, 2, 16)
	ask(f, 1, 0, 1)
	ask(f, 300, 1)
	ask(f, 500, 0)
	f.loop.Run(520)
	if zero, one := len(f.Copies[0]), len(f.Copies[1]); zero != 2 || one != 1 {
		t.Errorf("there are %d and %d copies, want 2 and 1", zero, one)
	}
}

// A model gets another copy if one copy gets 2,000 requests per minute.
func TestMeshScaleUp(t *testing.T) {
	for _, c := range []struct{ rpm, copies int }{{1900, 1}, {2100, 2}, {12_000, 3}} {
		f, _ := mesh(t, 6, 48)
		ask(f, 1, 0)
		for at := 10.01; at < 20; at += 60 / float64(c.rpm) {
			ask(f, at, 0)
		}
		f.loop.Run(22)
		if n := len(f.Copies[0]); n != c.copies {
			t.Errorf("at %d requests a minute there are %d copies, want %d", c.rpm, n, c.copies)
		}
	}
}

// In a full fleet, the second copy of a model is removed after it was unused for a tenth of the age
// of the oldest entry. The last copy is never removed.
func TestMeshScaleDown(t *testing.T) {
	f, m := mesh(t, 2, 14)
	m.churnAge = 0
	all := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	ask(f, 1, all...)
	f.loop.Run(100)
	m.ensure(0, m.Now(), false)
	f.loop.Run(110)
	ask(f, 111, all[1:]...)
	if n := len(f.Copies[0]); n != 2 {
		t.Fatalf("there are %d copies, want 2", n)
	}
	f.loop.Run(365)
	if n := len(f.Copies[0]); n != 1 {
		t.Errorf("after the janitor there are %d copies, want 1", n)
	}
	f.loop.Run(725)
	if n := len(f.Copies[0]); n != 1 {
		t.Errorf("of one copy there are %d left", n)
	}
}

// Models without a copy are loaded after two minutes. They fill half of the free capacity beyond an
// eighth.
func TestMeshReaper(t *testing.T) {
	f, _ := mesh(t, 2, 16)
	f.loop.Run(119)
	before := len(loaded(f, 0)) + len(loaded(f, 1))
	f.loop.Run(200)
	// Of the room for 8 models, half a model is reserved for unloads. An eighth of the remaining
	// 7.5 is left free, and half of the rest is 3.28, at each of two endpoints.
	if after := len(loaded(f, 0)) + len(loaded(f, 1)); before != 0 || after != 6 {
		t.Errorf("%d are loaded before it and %d after it, want 0 and 6", before, after)
	}
}
