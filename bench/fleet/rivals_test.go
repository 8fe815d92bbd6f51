package fleet

import (
	"math"
	"slices"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/race"
)

// The example in the documentation of Dynamo's router: three workers with 8, 5 and 2 blocks to
// prefill and 10, 5 and 9 to decode have costs 18, 10 and 11, and the second one wins.
func TestDynamosExample(t *testing.T) {
	for i, worker := range []struct{ prefill, decode, cost float64 }{{8, 10, 18}, {5, 5, 10}, {2, 9, 11}} {
		if got := kvCost(worker.prefill, worker.decode); got != worker.cost {
			t.Errorf("worker %d costs %g, want %g", i+1, got, worker.cost)
		}
	}
	p := &indexed{tracker: three(t), cost: dynamoCost, cached: func(int, *Request) int { return 0 }}
	for i, worker := range []struct{ prefill, decode int }{{7, 9}, {4, 4}, {1, 8}} { // the request itself adds one block to each number
		p.at[i].prefill[&Request{}], p.at[i].decode[&Request{}] = worker.prefill*blockTokens, worker.decode
	}
	r := &Request{Prompt: make([]uint32, blockTokens)}
	for i, want := range []float64{18, 10, 11} {
		if got := dynamoCost(&p.at[i], r, blockTokens); got != want {
			t.Errorf("worker %d costs %g, want %g", i+1, got, want)
		}
	}
	if to := p.Pick(0, r); to != 1 {
		t.Errorf("worker %d is taken, want 2", to+1)
	}
	// Blocks that are cached or belong to ended requests cost nothing.
	p.cached = func(i int, _ *Request) int { return []int{0, 0, blockTokens}[i] }
	if to := p.Pick(0, &Request{Prompt: make([]uint32, blockTokens)}); to != 2 {
		t.Errorf("worker %d is taken, want 3, which has the prompt: 10 to the second's 12", to+1)
	}
	before := dynamoCost(&p.at[1], r, blockTokens)
	p.FirstToken(0, r, 1)
	if got := dynamoCost(&p.at[1], r, blockTokens); got != before-1 {
		t.Errorf("the second costs %g once a prompt is computed, want %g", got, before-1)
	}
	p.Ended(0, r, 1)
	if got := dynamoCost(&p.at[1], r, blockTokens); got != 10 {
		t.Errorf("the second costs %g after a request has ended, want 10", got)
	}
}

func three(t *testing.T) tracker {
	t.Helper()
	s, err := newSeen(Fleet{Profile: llm.DefaultProfile(), Endpoints: 3}, 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The scores of the leading picker. Queues are scaled between the shortest and the longest. An
// adapter scores 1 if it is active, 0.8 if there is room for it, and 0 otherwise.
func TestScores(t *testing.T) {
	for _, test := range []struct{ waiting, least, most, want float64 }{{2, 2, 10, 1}, {10, 2, 10, 0}, {4, 2, 10, 0.75}, {3, 3, 3, 1}} {
		if got := queueScore(test.waiting, test.least, test.most); got != test.want {
			t.Errorf("%+v: the score is %g", test, got)
		}
	}
	for _, test := range []struct {
		active []string
		want   float64
	}{{[]string{"a", "b"}, 1}, {[]string{"b"}, 0.8}, {[]string{"b", "c"}, 0}, {nil, 0.8}} {
		k := known{active: test.active}
		if got := k.loraScore("a", 2); got != test.want {
			t.Errorf("active are %v: the score is %g, want %g", test.active, got, test.want)
		}
	}
	prompt := make([]uint32, 4*scoredBlock)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	s := three(t)
	p := &scored{tracker: s, queue: 2, kv: 2, prefix: 3}
	p.at[0].waiting, p.at[1].waiting, p.at[2].waiting = 0, 1, 2
	p.at[0].kv, p.at[1].kv, p.at[2].kv = 0.5, 0.5, 0.5
	p.at[1].remember(hashes(&Request{Prompt: prompt}, scoredBlock)[:1]) // 1 + 1 + 0.75 against 2 + 1
	if to := p.Pick(0, &Request{Prompt: prompt}); to != 0 {
		t.Errorf("endpoint %d is taken: a quarter of the prompt outweighs half of the queues", to)
	}
	p = &scored{tracker: three(t), queue: 2, kv: 2, prefix: 3}
	p.at[0].waiting, p.at[1].waiting, p.at[2].waiting = 0, 1, 2
	p.at[1].remember(hashes(&Request{Prompt: prompt}, scoredBlock)[:2]) // 1 + 2 + 1.5 against 2 + 2
	if to := p.Pick(0, &Request{Prompt: prompt}); to != 1 {
		t.Errorf("endpoint %d is taken, want the one that has half of the prompt", to)
	}
	if to := p.Pick(0, &Request{Adapter: "a", Prompt: prompt}); to != 0 {
		t.Errorf("endpoint %d is taken, though what it has is of another adapter", to)
	}
}

// SGLang's gateway balances if requests in flight differ by more than 64 and by more than a factor
// of 1.5. Otherwise it picks an endpoint that has cached more than 30 % of the prompt. If there is
// none, it picks the endpoint with the fewest requests.
func TestCacheAware(t *testing.T) {
	for _, test := range []struct {
		least, most int
		want        bool
	}{{0, 64, false}, {0, 65, true}, {200, 290, false}, {100, 165, true}} {
		if got := imbalanced(test.least, test.most); got != test.want {
			t.Errorf("%d to %d: imbalanced is %v", test.least, test.most, got)
		}
	}
	prompt := make([]uint32, 10*blockTokens)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	all := hashes(&Request{Prompt: prompt}, blockTokens)
	for has, want := range map[int]int{4: 1, 3: 2} {
		p := &cacheAware{three(t)}
		p.at[0].inFlight, p.at[1].inFlight, p.at[2].others = 2, 3, 1
		p.at[1].remember(all[:has])
		p.at[2].remember([]uint64{1, 2, 3, 4, 5, 6, 7, 8})
		if to := p.Pick(0, &Request{Prompt: prompt}); to != want {
			t.Errorf("with %d of 10 blocks at the second, endpoint %d is taken, want %d", has, to, want)
		}
	}
	p := &cacheAware{three(t)}
	p.at[0].inFlight, p.at[1].inFlight = 100, 30
	p.at[0].remember(all)
	if to := p.Pick(0, &Request{Prompt: prompt}); to != 2 {
		t.Errorf("endpoint %d is taken, want the one with nothing to do", to)
	}
}

// LMETRIC multiplies the tokens to prefill by the size of the batch.
func TestLMETRIC(t *testing.T) {
	k := &known{prefill: map[*Request]int{{}: 300}, inFlight: 3}
	if got := lmetricCost(k, nil, 200); got != 500*4 {
		t.Errorf("it costs %g, want 2000", got)
	}
	k.running, k.waiting = 4, 2
	if got := lmetricCost(k, nil, 200); got != 500*7 {
		t.Errorf("it costs %g, want 3500: a look has tracker more", got)
	}
}

// SGLang's gateway multiplies the uncached tokens of a prompt by the number of requests at the
// endpoint.
func TestMultiplied(t *testing.T) {
	prompt := make([]uint32, 10*blockTokens)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	for _, c := range []struct {
		sent     int // leading blocks of the prompt that the second endpoint already got
		inFlight [3]int
		others   int // requests of other pickers at the first endpoint
		want     int
		because  string
	}{
		{0, [3]int{}, 0, 0, "all are alike"},
		{0, [3]int{1, 1, 0}, 0, 2, "the third has nothing to do"},
		{5, [3]int{1, 2, 1}, 0, 1, "80 tokens by 3 are less than 160 by 2"},
		{5, [3]int{0, 1, 1}, 0, 0, "80 by 2 are as much as 160 by 1, and fewer requests are at the first"},
		{5, [3]int{0, 1, 1}, 1, 1, "others have a request at the first"},
		{10, [3]int{0, 9, 0}, 0, 1, "nothing is to be computed"},
	} {
		p := &multiplied{three(t)}
		p.at[1].remember(hashes(&Request{Prompt: prompt}, blockTokens)[:c.sent])
		for i, n := range c.inFlight {
			p.at[i].inFlight = n
		}
		p.Receive(0, []InFlight{{At{Endpoint: 0}: int64(c.others)}})
		if to := p.Pick(0, &Request{Prompt: prompt}); to != c.want {
			t.Errorf("endpoint %d is taken, want %d: %s", to, c.want, c.because)
		}
	}
}

// Requests for an adapter go to one endpoint until it has 1.25 times the mean load.
func TestRendezvous(t *testing.T) {
	p := &rendezvous{three(t)}
	first := p.Pick(0, &Request{Adapter: "a"})
	used := map[int]int{first: 1}
	for range 29 {
		used[p.Pick(0, &Request{Adapter: "a"})]++
	}
	if len(used) != 3 || used[first] != int(math.Ceil(1.25*30/3)) {
		t.Errorf("30 requests for one adapter are at %v, want 13 at %d", used, first)
	}
	spread := make(map[int]bool)
	p = &rendezvous{three(t)}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		to := p.Pick(0, &Request{Adapter: name})
		p.Ended(0, nil, to)
		spread[to] = true
	}
	if len(spread) != 3 {
		t.Errorf("eight adapters are at %v", spread)
	}
}

// The less loaded of two random endpoints wins; ties are broken at random.
func TestTwoRandomChoices(t *testing.T) {
	p := &powerOfTwo{three(t)}
	p.at[0].inFlight, p.at[1].inFlight, p.at[2].inFlight = 100, 50, 0
	var taken [3]int
	for range 300 {
		to := p.Pick(0, &Request{})
		p.Ended(0, nil, to)
		taken[to]++
	}
	if taken[0] > 60 || taken[2] < 130 || taken[1] < 60 { // expected shares: 1/9, 5/9 and 3/9
		t.Errorf("they are taken %v times", taken)
	}
	s := three(t)
	taken = [3]int{}
	for range 300 {
		taken[s.best(func(i int) float64 { return float64(min(i, 1)) })]++
	}
	if taken[0] != 0 || taken[1] < 110 || taken[2] < 110 {
		t.Errorf("equals are taken %v times", taken)
	}
}

// A picker sends a prompt to the endpoint to which it sent a prompt with the same prefix.
func TestPromptsAreRemembered(t *testing.T) {
	prompt := make([]uint32, 4*scoredBlock)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	for name, p := range map[string]Picker{
		"scored": &scored{three(t), 2, 2, 3, 0}, "cacheAware": &cacheAware{three(t)},
		"sglang-lmetric": &multiplied{three(t)},
	} {
		first := p.Pick(0, &Request{Prompt: prompt})
		for range 10 {
			if to := p.Pick(0, &Request{Prompt: prompt}); to != first {
				t.Errorf("%s sends a prompt to %d, and again to %d", name, first, to)
			}
		}
	}
}

// Under the oracle no more requests miss their objectives than under other policies.
func TestOracle(t *testing.T) {
	race.Skip(t)
	f := Fleet{Profile: llm.DefaultProfile(), Endpoints: 3, Pickers: 1, ScrapeInterval: 0.2}
	f.Profile.Limits.KVBlocks = 2000
	w := Adapters(12, Lengths{{Prompt: 800, Output: 40}, {Prompt: 200, Output: 150}, {Prompt: 2000, Output: 20}})
	f.Adapters = w.Adapters
	kept := func(p Policy) float64 {
		return FiguresOf(outcome(t, f, 1, w.Requests(1, 3, 300), p), f.Profile, DefaultObjectives).Kept
	}
	best := kept(newOracle)
	for name, p := range map[string]Policy{
		"proposal": Headgate(pick.Proposal), "leastRequest": Headgate(pick.LeastRequest),
		"scored": Scored(2, 2, 3, bestLora), "lmetric": indexedBy(lmetricCost),
	} {
		is := kept(p)
		t.Logf("%s keeps %.3f, the oracle %.3f", name, is, best)
		if is > best {
			t.Errorf("%s keeps %.3f of the objectives, the oracle %.3f", name, is, best)
		}
	}
	if best < 0.9 {
		t.Errorf("the oracle keeps %.3f", best)
	}
}

// The oracle sends a long prompt to a slower endpoint if the prompt delays no other request there.
func TestOracleAvoidsDelayingOthers(t *testing.T) {
	f := Fleet{Endpoints: 2, Pickers: 1, Speeds: []float64{1, 0.6}, Profile: profile.Profile{
		Prefill: profile.Prefill{PerToken: 0.001}, Decode: profile.Decode{Base: 0.02},
		Limits: profile.Limits{MaxSequences: 8, MaxBatchedTokens: 4096, KVBlocks: 1000, BlockSize: 16},
	}}
	for output, want := range map[int]int{8: 1, 200: 0} { // a delay of 1 s adds 140 ms per token to a short output, 5 ms to a long one
		o := outcome(t, f, 1, slices.Values([]Request{
			{At: 0, Prompt: make([]uint32, 10), Output: output},
			{At: 0.05, Prompt: make([]uint32, 1000), Output: 2},
		}), newOracle)
		if o.Results[0].Endpoint != 0 || o.Results[1].Endpoint != want {
			t.Errorf("beside an answer of %d tokens a long prompt goes to %d, want %d", output, o.Results[1].Endpoint, want)
		}
	}
}
