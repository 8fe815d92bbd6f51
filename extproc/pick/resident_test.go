package pick_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// holds simulates the adapters of an engine by the engine's rules. It has two lists, each with the
// most recently used adapter first.
type holds struct {
	slots, host []int
	room, of    int
	busy        map[int]int
}

// comes adds an adapter to a list that has room for this many. If the list is full, it replaces the
// least recently used adapter that has no requests.
func (h *holds) comes(list []int, adapter, room int) (now []int, left int) {
	if i := slices.Index(list, adapter); i >= 0 {
		return slices.Insert(slices.Delete(list, i, i+1), 0, adapter), -1
	}
	if len(list) == room {
		i := len(list) - 1
		for ; i >= 0 && h.busy[list[i]] > 0; i-- {
		}
		if i < 0 {
			return list, -1
		}
		left = list[i]
		return slices.Insert(slices.Delete(list, i, i+1), 0, adapter), left
	}
	return slices.Insert(list, 0, adapter), -1
}

func (h *holds) use(adapter int) {
	var left int
	h.host, left = h.comes(h.host, adapter, h.of)
	if i := slices.Index(h.slots, left); i >= 0 {
		h.slots = slices.Delete(h.slots, i, i+1)
	}
	h.slots, _ = h.comes(h.slots, adapter, h.room)
}

func (h *holds) place(adapter int) pick.Place {
	switch {
	case slices.Contains(h.slots, adapter):
		return pick.InSlot
	case slices.Contains(h.host, adapter):
		return pick.InHost
	}
	return pick.InStorage
}

// Requests for ten adapters begin and end in random order. Resident agrees with the engine's own
// lists.
func TestResidentMatchesAnEngine(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		slots := 1 + random.IntN(4)
		h := holds{room: slots, of: slots + random.IntN(4), busy: map[int]int{}}
		r := pick.NewResident(h.room, h.of)
		counts := make([]pick.Count, 10)
		for now := range int64(500) {
			adapter := random.IntN(len(counts))
			c := &counts[adapter]
			switch {
			case random.IntN(2) == 0 && h.busy[adapter] > 0:
				h.busy[adapter]--
				c.Add(-1)
			case h.place(adapter) == pick.InSlot ||
				len(slices.DeleteFunc(slices.Clone(h.slots), func(a int) bool { return h.busy[a] == 0 })) < slots:
				h.use(adapter)
				h.busy[adapter]++
				c.Add(1)
				c.Last.Store(now)
				r.Use(c)
			}
			for i := range counts {
				if got := counts[i].Place(); got != h.place(i) {
					t.Fatalf("seed %d, at %d (%d of %d): adapter %d is at %d, want %d; slots %v host %v busy %v", seed, now, adapter, h.of,
						i, got, h.place(i), h.slots, h.host, h.busy)
				}
			}
		}
	}
}

// If every slot has an adapter with requests, another adapter waits in host memory. Its next
// request finds a slot that has become free.
func TestAdapterWaitsForASlot(t *testing.T) {
	r := pick.NewResident(1, 2)
	var a, b pick.Count
	a.Add(1)
	r.Use(&a)
	b.Add(1)
	if r.Use(&b); a.Place() != pick.InSlot || b.Place() != pick.InHost {
		t.Errorf("the adapters are at %d and %d", a.Place(), b.Place())
	}
	a.Add(-1)
	if r.Use(&b); a.Place() != pick.InHost || b.Place() != pick.InSlot {
		t.Errorf("then the adapters are at %d and %d", a.Place(), b.Place())
	}
}

// A Resident without places contains no adapters, and does not panic.
func TestResidentWithoutPlaces(t *testing.T) {
	var none *pick.Resident
	var c pick.Count
	none.Use(&c)
	none.Drop(&c)
	pick.NewResident(0, 0).Use(&c)
	var zero pick.Resident
	zero.Use(&c)
	zero.Drop(&c)
	if c.Place() != pick.InStorage || none.Blocks(0) != 0 || zero.Blocks(0) != 0 {
		t.Errorf("the adapter is at %d", c.Place())
	}
}

func TestResidentResized(t *testing.T) {
	var counts [4]pick.Count
	r := pick.NewResident(2, 4)
	for i := range counts {
		counts[i].Last.Store(int64(i))
		r.Use(&counts[i])
	}
	where := func() (all []pick.Place) {
		for i := range counts {
			all = append(all, counts[i].Place())
		}
		return all
	}
	for i, step := range []struct {
		slots, host int
		want        []pick.Place
	}{
		{2, 4, []pick.Place{pick.InHost, pick.InHost, pick.InSlot, pick.InSlot}},
		{3, 4, []pick.Place{pick.InHost, pick.InHost, pick.InSlot, pick.InSlot}},
		{1, 3, []pick.Place{pick.InStorage, pick.InHost, pick.InHost, pick.InSlot}},
		{2, 2, []pick.Place{pick.InStorage, pick.InStorage, pick.InHost, pick.InSlot}},
	} {
		r.Resize(step.slots, step.host)
		if got := where(); !slices.Equal(got, step.want) {
			t.Errorf("step %d: the adapters are at %v, want %v", i, got, step.want)
		}
	}
	if r.Drop(&counts[3]); counts[3].Place() != pick.InStorage {
		t.Errorf("a dropped adapter is at %d", counts[3].Place())
	}
}

// The numbers of slots and of places in host memory can change independently. Host memory always
// has room for the adapters in slots, whatever size is reported.
func TestSlotsAndHostMemoryChangeIndependently(t *testing.T) {
	var counts [4]pick.Count
	r := pick.NewResident(2, 0)
	for i, step := range []struct {
		slots, host int
		want        [4]pick.Place // place of each adapter after all were used once, in order
	}{
		{2, 0, [4]pick.Place{pick.InStorage, pick.InStorage, pick.InSlot, pick.InSlot}},
		{2, 3, [4]pick.Place{pick.InStorage, pick.InHost, pick.InSlot, pick.InSlot}},
		{3, 3, [4]pick.Place{pick.InStorage, pick.InSlot, pick.InSlot, pick.InSlot}},
		{3, 4, [4]pick.Place{pick.InHost, pick.InSlot, pick.InSlot, pick.InSlot}},
		{1, 0, [4]pick.Place{pick.InStorage, pick.InStorage, pick.InStorage, pick.InSlot}},
	} {
		r.Resize(step.slots, step.host)
		for n := range counts {
			counts[n].Last.Store(int64(10*i + n))
			r.Use(&counts[n])
		}
		for n := range counts {
			if got := counts[n].Place(); got != step.want[n] {
				t.Errorf("%d slots, and host memory for %d: adapter %d is at %d, want %d", step.slots, step.host, n, got, step.want[n])
			}
		}
	}
}

// Expected values are those of Erlang's B formula for four slots: 0.0154 at a load of 1, 0.0952 at
// 2, 0.2061 at 3, 0.3107 at 4.
func TestBlocks(t *testing.T) {
	r := pick.NewResident(4, 4)
	for active, want := range []float64{0.0154, 0.0952 - 0.0154, 0.2061 - 0.0952, 0.3107 - 0.2061, 0} {
		if got := r.Blocks(active); math.Abs(got-want) > 1e-4 {
			t.Errorf("with %d active: %g, want %g", active, got, want)
		}
	}
}

// With concurrent requests, slots and host memory never contain more adapters than they have room
// for.
func TestResidentUnderRaces(t *testing.T) {
	r := pick.NewResident(3, 6)
	counts := make([]pick.Count, 12)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), 2))
			for range 2000 {
				c := &counts[random.IntN(len(counts))]
				c.Last.Store(random.Int64())
				r.Use(c)
			}
		})
	}
	all.Wait()
	in := make(map[pick.Place]int)
	for i := range counts {
		in[counts[i].Place()]++
	}
	if in[pick.InSlot] != 3 || in[pick.InHost] != 3 {
		t.Errorf("with three slots, and host memory for three more, %d and %d are used", in[pick.InSlot], in[pick.InHost])
	}
	for i := range counts {
		r.Drop(&counts[i])
	}
	for i := range counts[:3] {
		r.Use(&counts[i])
	}
	for i := range counts {
		if got, want := counts[i].Place() == pick.InSlot, i < 3; got != want {
			t.Errorf("adapter %d in a slot: %v", i, got)
		}
	}
}
