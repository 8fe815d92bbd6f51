package place

import (
	"slices"
	"testing"
)

// Slots are distributed in proportion to load, and the remaining ones go to the largest remainders.
// Each model in use gets at least one slot, and at most one per endpoint.
func TestDynamoReplicas(t *testing.T) {
	for _, c := range []struct {
		load             []float64
		slots, endpoints int
		want             []int
	}{
		{[]float64{50, 30, 20, 0}, 10, 8, []int{5, 3, 2, 0}},
		// 6 + 3 + 2 = 11; the quotas are 5.45, 2.73 and 1.82, and the two largest remainders are
		// rounded up
		{[]float64{5.6, 3.3, 2.1}, 10, 8, []int{5, 3, 2}},
		{[]float64{90, 9, 1}, 10, 4, []int{4, 1, 1}},        // slots that no model can use stay free
		{[]float64{9, 1, 5, 3}, 2, 4, []int{1, 0, 1, 0}},    // more models than slots
		{[]float64{0.4, 10, 0, 0}, 4, 4, []int{0, 4, 0, 0}}, // 0.4 is rounded to no load
	} {
		if is := replicas(c.load, c.slots, c.endpoints); !slices.Equal(is, c.want) {
			t.Errorf("of loads %v are made %v, want %v", c.load, is, c.want)
		}
	}
}

// A model is loaded on the first endpoint by its hash, or on the next one with free slots, and
// stays there.
func TestDynamoPins(t *testing.T) {
	w := World{Endpoints: 3, Models: 12, Share: 0.5, Rate: 1e-9, Load: 2, AtOnce: 2, Service: 0.05, Measured: 1e6}
	f, err := newFleet(w, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := Dynamo().(*dynamo)
	f.policy, f.Requests, f.waits = d, nil, nil
	d.Start(f)
	ask(f, 1, 0)
	f.loop.Run(10)
	home := d.first(0)
	if is := loaded(f, home); !slices.Equal(is, []int{0}) {
		t.Fatalf("at the endpoint of model 0 there are %d", is)
	}
	full := []int{2, 2, 2}
	full[home] = 0
	for model := 1; model < w.Models; model++ {
		if set := d.assign(model, 1, slices.Clone(full)); len(set) != 1 || set[0] == home {
			t.Errorf("model %d goes to %d, and %d is full", model, set, home)
		}
	}
	if set := d.assign(0, 2, full); !slices.Contains(set, home) || len(set) != 2 {
		t.Errorf("model 0 has %d, want where it is, %d, and another", set, home)
	}
	if set := d.assign(5, 1, []int{0, 0, 0}); !slices.Equal(set, []int{d.first(5)}) {
		t.Errorf("where all is full model 5 goes to %d, want %d", set, d.first(5))
	}
}
