package fleet

import (
	"iter"
	"slices"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/internal/objects"
)

// foreseeing is one extproc whose policy asks for prompts, and what was foreseen to be cached of each request where it went.
type foreseeing struct {
	*headgate
	foreseen []int
}

func (f *foreseeing) Pick(now float64, r *Request) int {
	to, cached := f.headgate.Pick(now, r), 0
	for _, e := range f.view.Snapshot.Pools[objects.EndpointsPool.String()].Endpoints {
		if f.numbers[e.Address] == to && e.Number < len(f.cached) {
			cached = int(f.cached[e.Number]) * prefix.BlockTokens
		}
	}
	f.foreseen = append(f.foreseen, cached)
	return to
}

// foreseen runs requests through one extproc, and returns what engines found cached of each, and what was foreseen.
func foreseen(t *testing.T, f Fleet, requests iter.Seq[Request]) (cached, foreseen []int) {
	t.Helper()
	p := &foreseeing{}
	o := outcome(t, f, 1, requests, func(f Fleet, seed uint64) (Picker, error) {
		made, err := Headgate(pick.RoundRobin)(f, seed)
		if err != nil {
			return nil, err
		}
		p.headgate = made.(*headgate)
		p.prefixes = prefix.New(prefix.DefaultBytes)
		return p, nil
	})
	for _, is := range o.Results {
		cached = append(cached, is.Cached)
	}
	return cached, p.foreseen
}

// What extproc knows of caches by what it sent is what engines find cached, to less than a block: also where caches are much too small
// for all prompts, so that engines drop what was used least recently.
func TestWhatExtprocKnowsOfCachesIsSo(t *testing.T) {
	for _, blocks := range []int{2000, 100_000} {
		f := four()
		f.Profile.Limits.KVBlocks = blocks
		cached, foreseen := foreseen(t, f, Prefixes(200, 1024, Lengths{{200, 20}, {300, 5}}).Requests(1, 1, 2000))
		right, some := 0, 0
		for i := range cached {
			if cached[i] > 0 {
				some++
			}
			if over := cached[i] - foreseen[i]; over > -prefix.BlockTokens && over < prefix.BlockTokens {
				right++
			}
		}
		if right < 1900 || some < 900 {
			t.Errorf("caches of %d blocks: of 2000 requests, %d of which had anything cached, it was foreseen of %d how much", blocks, some, right)
		}
	}
}

// Adapters share no cache.
func TestPromptsOfAdapters(t *testing.T) {
	f := four()
	f.Endpoints, f.Adapters = 1, []string{"a"}
	tokens := prompt(nil, 1, 256)
	_, got := foreseen(t, f, slices.Values([]Request{
		{At: 1, Prompt: tokens, Output: 1},
		{At: 2, Prompt: tokens, Output: 1},
		{At: 3, Prompt: tokens, Output: 1, Adapter: "a"},
		{At: 4, Prompt: tokens, Output: 1, Adapter: "a"},
	}))
	if want := []int{0, 256, 0, 256}; !slices.Equal(got, want) {
		t.Errorf("%v are foreseen, want %v", got, want)
	}
}
