package endpointstate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var (
	earlier = time.Unix(1e9, 0)
	later   = earlier.Add(time.Second)
)

func TestSourcesOfACopysState(t *testing.T) {
	const no, yes = false, true
	for _, c := range []struct {
		governed bool
		word     CopyState
		gives    bool
		listed   bool
		looked   time.Time // start of the scrape: earlier or later than control's message
		want     standing
		missed   bool
	}{
		// Without control the list decides.
		{no, Gone, yes, yes, later, addressable, no},
		{no, Gone, yes, no, later, absent, no},
		{no, Gone, no, no, later, absent, no},
		{no, Unloading, yes, yes, later, addressable, no},
		{no, Loaded, yes, no, later, absent, no},
		// Control reports that a copy is loaded or unloaded before the list shows it.
		{yes, Loaded, yes, yes, later, addressable, no},
		{yes, Loaded, yes, yes, earlier, addressable, no},
		{yes, Loaded, yes, no, earlier, addressable, no},
		{yes, Loaded, no, no, later, addressable, no},
		{yes, Unloading, yes, yes, later, absent, no},
		{yes, Loading, yes, yes, later, absent, no},
		{yes, Gone, yes, yes, later, absent, no},
		{yes, Unloading, no, no, later, absent, no},
		// The list shows that the engine restarted before control reports it.
		{yes, Loaded, yes, no, later, vanished, no},
		// Without a list, a request is the first to find the adapter missing.
		{yes, Loaded, no, no, later, vanished, yes},
		{yes, Loaded, yes, yes, later, addressable, yes},
		{yes, Loading, no, no, later, absent, yes},
		{no, Loaded, no, no, later, absent, yes},
	} {
		b := facts{c.governed, c.word, earlier.Add(time.Millisecond), c.gives, c.listed, c.looked, c.missed}
		if got := b.standing(); got != c.want {
			t.Errorf("%+v gives %d, want %d", c, got, c.want)
		}
	}
}

// obvious is the oracle: it applies the rules of the design one by one.
func obvious(governed bool, says map[string]*reportedCopy, l listing) (there, gone []string) {
	every := map[string]bool{}
	for _, name := range l.Adapters {
		every[name] = true
	}
	for name := range says {
		every[name] = true
	}
	for name := range every {
		onList := false
		for _, listed := range l.Adapters {
			onList = onList || listed == name
		}
		if !governed {
			if onList {
				there = append(there, name)
			}
			continue
		}
		if says[name] == nil || says[name].state != Loaded {
			continue
		}
		hasList := l.known && !l.Unlisted
		if hasList && !onList && l.scrapedAt.Sub(says[name].reportedAt) > 0 || !hasList && says[name].foundMissing {
			gone = append(gone, name)
			continue
		}
		there = append(there, name)
	}
	slices.Sort(there)
	slices.Sort(gone)
	return there, gone
}

func TestAdaptersMatchTheNaiveVersion(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		l := listing{known: random.IntN(4) > 0, scrapedAt: earlier.Add(time.Duration(random.IntN(3)) * time.Second)}
		l.Unlisted = l.known && random.IntN(4) == 0
		says := map[string]*reportedCopy{}
		for i := range 8 {
			name := fmt.Sprint("m", i)
			if l.known && !l.Unlisted && random.IntN(2) == 0 {
				l.Adapters = append(l.Adapters, name)
			}
			if random.IntN(2) == 0 {
				says[name] = &reportedCopy{state: CopyState(random.IntN(4)), reportedAt: later, foundMissing: random.IntN(3) == 0}
			}
		}
		random.Shuffle(len(l.Adapters), func(i, j int) { l.Adapters[i], l.Adapters[j] = l.Adapters[j], l.Adapters[i] })
		governed := random.IntN(3) > 0
		there, gone := adapters(governed, says, l)
		wantThere, wantGone := obvious(governed, says, l)
		if !slices.Equal(there, wantThere) || !slices.Equal(gone, wantGone) {
			t.Fatalf("governed %v, list %+v, control %+v: %v and vanished %v, want %v and %v", governed, l, says, there, gone, wantThere,
				wantGone)
		}
	}
}
