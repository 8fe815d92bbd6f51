package fleet

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/hash"
)

// Policies of other projects, from their code or documentation, with their defaults and the same
// scrapes. Each has the information that its project would have, and the requests in flight of
// other pickers, as extprocs share them. None knows the length of an output.

// tracker has what a picker knows of endpoints from scrapes and from its own requests.
type tracker struct {
	random *rand.Rand
	slots  int // adapter slots of each endpoint
	at     []known
}

// known is what a picker knows of one endpoint.
type known struct {
	waiting, running, kv float64
	active               []string // adapters that are active in the engine

	inFlight int                      // own requests in flight
	others   int                      // requests in flight there that other pickers last reported
	prefill  map[*Request]int         // uncached tokens of requests without a first token
	decode   map[*Request]int         // KV blocks of requests in flight
	caches   *lru.Cache[uint64, bool] // blocks of the prompts that were sent to the endpoint
}

func newSeen(f Fleet, seed uint64, cached int) (tracker, error) {
	s := tracker{
		random: rand.New(rand.NewPCG(seed, 3)), slots: f.Profile.Limits.GPUAdapters,
		at: make([]known, f.Endpoints),
	} //nolint:gosec // no secret
	for i := range s.at {
		s.at[i].prefill, s.at[i].decode = make(map[*Request]int), make(map[*Request]int)
		if cached == 0 {
			continue
		}
		var err error
		if s.at[i].caches, err = lru.New[uint64, bool](cached); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *tracker) Scraped(_ float64, endpoint int, load engine.Load) {
	k := &s.at[endpoint]
	k.waiting, k.running, k.kv, k.active = load.Waiting.Or(0), load.Running.Or(0), load.KVUsage.Or(0), load.Active
}

// load returns the known requests in flight at an endpoint.
func (k *known) load() int { return k.inFlight + k.others }

// Share implements [Syncer].
func (s *tracker) Share() InFlight {
	all := make(InFlight)
	for i := range s.at {
		all[At{Endpoint: i}] = int64(s.at[i].inFlight)
	}
	return all
}

// Receive implements [Syncer].
func (s *tracker) Receive(_ float64, others []InFlight) {
	for i := range s.at {
		s.at[i].others = 0
		for _, o := range others {
			s.at[i].others += int(o[At{Endpoint: i}])
		}
	}
}

// sent records that a request was sent to an endpoint, which must compute its uncached tokens.
func (s *tracker) sent(r *Request, endpoint, uncached int) int {
	k := &s.at[endpoint]
	k.inFlight++
	k.prefill[r], k.decode[r] = uncached, blocks(len(r.Prompt))
	return endpoint
}

// FirstToken implements [Streamer].
func (s *tracker) FirstToken(_ float64, r *Request, endpoint int) { delete(s.at[endpoint].prefill, r) }

func (s *tracker) Ended(_ float64, r *Request, endpoint int) {
	k := &s.at[endpoint]
	k.inFlight--
	delete(k.prefill, r)
	delete(k.decode, r)
}

// best returns the endpoint with the highest score; ties are broken at random.
func (s *tracker) best(score func(endpoint int) float64) int {
	best, highest, equals := 0, math.Inf(-1), 0
	for i := range s.at {
		switch is := score(i); {
		case is > highest:
			best, highest, equals = i, is, 1
		case is == highest:
			if equals++; s.random.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}

// blockTokens is the number of tokens in a KV block: vLLM's default.
const blockTokens = 16

func blocks(tokens int) int { return (tokens + blockTokens - 1) / blockTokens }

// hashes returns the hashes of all full blocks of a prompt, in order. Each hash covers the adapter
// and all tokens up to the end of its block.
func hashes(r *Request, size int) []uint64 {
	sum := hash.Of(r.Adapter)
	all := make([]uint64, 0, len(r.Prompt)/size)
	for i := 0; i+size <= len(r.Prompt); i += size {
		for _, token := range r.Prompt[i : i+size] {
			sum = (sum ^ uint64(token)) * hash.Gamma
			sum ^= sum >> 29
		}
		all = append(all, sum)
	}
	return all
}

// matched returns how many leading blocks of a prompt an endpoint probably has cached.
func (k *known) matched(all []uint64) (n int) {
	for n < len(all) && k.caches.Contains(all[n]) {
		n++
	}
	return n
}

// remember records the blocks of a prompt that is sent to an endpoint.
func (k *known) remember(all []uint64) {
	for _, b := range all {
		k.caches.Add(b, true)
	}
}

// leastOfTwo draws two random endpoints and picks the one with fewer of this picker's own requests
// in flight (Mitzenmacher 2001).
func leastOfTwo(f Fleet, seed uint64) (Picker, error) {
	s, err := newSeen(f, seed, 0)
	return &powerOfTwo{s}, err
}

type powerOfTwo struct{ tracker }

func (p *powerOfTwo) Pick(_ float64, r *Request) int {
	a := p.random.IntN(len(p.at))
	b := p.random.IntN(len(p.at))
	if p.at[b].load() < p.at[a].load() {
		a = b
	}
	return p.sent(r, a, len(r.Prompt))
}

// scored is the policy of the leading endpoint picker: the highest weighted sum of scores from 0 to
// 1 wins; ties are broken at random. Its prefix cache is approximate: it records blocks of 64
// tokens when it sends them, at most as many as an endpoint has KV blocks.
type scored struct {
	tracker
	queue, kv, prefix, lora float64 // weights of the scores
}

const (
	scoredBlock    = 64 // tokens in a block
	scoredInterval = 50 * time.Millisecond
	// bestLora is the weight of the adapter scorer with the best goodput. For 200 adapters, the
	// goodputs of weights 1 to 8 are equal within 1 %, and above that rate higher weights meet more
	// objectives. Weights of 16 and more have a quarter less goodput.
	bestLora = 8
)

// Scored is the policy of the leading picker with the given weights. Its defaults are 2, 2 and 3,
// without an adapter scorer.
func Scored(queue, kv, prefix, lora float64) Policy {
	return func(f Fleet, seed uint64) (Picker, error) {
		s, err := newSeen(f, seed, f.Profile.Limits.KVBlocks)
		return &scored{s, queue, kv, prefix, lora}, err
	}
}

func (p *scored) Pick(_ float64, r *Request) int {
	all := hashes(r, scoredBlock)
	least, most := math.Inf(1), math.Inf(-1)
	for i := range p.at {
		least, most = min(least, p.at[i].waiting), max(most, p.at[i].waiting)
	}
	to := p.best(func(i int) float64 {
		k := &p.at[i]
		return p.queue*queueScore(k.waiting, least, most) + p.kv*(1-k.kv) + p.prefix*share(k.matched(all), len(all)) +
			p.lora*k.loraScore(r.Adapter, p.slots)
	})
	p.at[to].remember(all)
	return p.sent(r, to, len(r.Prompt))
}

// queueScore is 1 for the shortest queue and 0 for the longest; 1 if all are equal.
func queueScore(waiting, least, most float64) float64 {
	if most == least {
		return 1
	}
	return (most - waiting) / (most - least)
}

func share(part, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}

// loraScore is 1 if the adapter is active, 0.8 if another adapter still fits, and 0 otherwise. (The
// original has 0.6 for a waiting adapter. vLLM does not report an adapter as waiting if its
// requests were never scheduled.)
func (k *known) loraScore(adapter string, slots int) float64 {
	switch {
	case slices.Contains(k.active, adapter):
		return 1
	case len(k.active) < slots:
		return 0.8
	}
	return 0
}

// indexed is a picker that knows exactly which KV blocks each endpoint has, as if it received KV
// cache events.
type indexed struct {
	tracker
	cached func(endpoint int, r *Request) (tokens int)
	cost   func(k *known, r *Request, uncached int) float64
}

// Index implements [Indexed].
func (p *indexed) Index(cached func(endpoint int, r *Request) (tokens int)) { p.cached = cached }

func (p *indexed) Pick(_ float64, r *Request) int {
	uncached := make([]int, len(p.at))
	to := p.best(func(i int) float64 {
		uncached[i] = len(r.Prompt) - p.cached(i, r)
		return -p.cost(&p.at[i], r, uncached[i])
	})
	return p.sent(r, to, uncached[to])
}

// dynamoCost is Dynamo's cost of an endpoint: the blocks to prefill plus the blocks to decode, both
// including this request. Blocks to prefill are the uncached ones of requests without a first
// token. The lowest cost wins.
func dynamoCost(k *known, r *Request, uncached int) float64 {
	prefill, decode := uncached, blocks(len(r.Prompt))
	for _, tokens := range k.prefill {
		prefill += tokens
	}
	for _, n := range k.decode {
		decode += n
	}
	return kvCost(float64(prefill)/blockTokens, float64(decode))
}

// kvCost adds blocks to prefill and blocks to decode with equal weights, Dynamo's default.
func kvCost(prefill, decode float64) float64 { return prefill + decode }

// lmetricCost is LMETRIC's cost (arXiv 2603.15202): the tokens to prefill times the number of
// requests, both including this request.
func lmetricCost(k *known, _ *Request, uncached int) float64 {
	for _, tokens := range k.prefill {
		uncached += tokens
	}
	return float64(uncached) * (max(float64(k.load()), k.running+k.waiting) + 1)
}

func indexedBy(cost func(k *known, r *Request, uncached int) float64) Policy {
	return func(f Fleet, seed uint64) (Picker, error) {
		s, err := newSeen(f, seed, 0)
		return &indexed{tracker: s, cost: cost}, err
	}
}

// cacheAware is the policy cache_aware of SGLang's gateway, from its code
// (sgl-model-gateway/src/policies/cache_aware.rs at 053b63f). It picks the endpoint that has cached
// most of the prompt. If requests in flight are imbalanced, or no endpoint has cached enough, it
// picks the first endpoint with the fewest requests. (The gateway's comments, but not its code,
// pick the smallest tree if no endpoint has cached enough.)
type cacheAware struct{ tracker }

// Defaults of SGLang's gateway.
const (
	cacheThreshold      = 0.3 // share of the prompt that must be cached
	balanceAbsThreshold = 64  // difference in requests in flight above which load is imbalanced
	balanceRelThreshold = 1.5
	treeBlocks          = 1 << 22 // blocks in max_tree_size of 67,108,864 tokens
)

func smg(f Fleet, seed uint64) (Picker, error) {
	s, err := newSeen(f, seed, treeBlocks)
	return &cacheAware{s}, err
}

func (p *cacheAware) Pick(_ float64, r *Request) int {
	all := hashes(r, blockTokens)
	least, most := math.MaxInt, 0
	for i := range p.at {
		least, most = min(least, p.at[i].load()), max(most, p.at[i].load())
	}
	to := p.best(func(i int) float64 { return float64(p.at[i].matched(all)) })
	if imbalanced(least, most) || share(p.at[to].matched(all), len(all)) <= cacheThreshold {
		to = slices.IndexFunc(p.at, func(k known) bool { return k.load() == least })
	}
	p.at[to].remember(all)
	return p.sent(r, to, len(r.Prompt))
}

func imbalanced(least, most int) bool {
	return most-least > balanceAbsThreshold && float64(most) > balanceRelThreshold*float64(least)
}

// multiplied is the policy lmetric of SGLang's gateway, from its code
// (sgl-model-gateway/src/policies/lmetric.rs at acaa759). It minimizes the uncached tokens of the
// prompt times the endpoint's requests, including this one. Ties go to the endpoint with the fewest
// requests, then to the first.
type multiplied struct{ tracker }

func byProduct(f Fleet, seed uint64) (Picker, error) {
	s, err := newSeen(f, seed, treeBlocks)
	return &multiplied{s}, err
}

func (p *multiplied) Pick(_ float64, r *Request) int {
	all := hashes(r, blockTokens)
	to, least := 0, [2]int{math.MaxInt, math.MaxInt}
	for i := range p.at {
		k := &p.at[i]
		uncached := len(r.Prompt) - blockTokens*k.matched(all)
		if is := [2]int{uncached * (k.load() + 1), k.load()}; slices.Compare(is[:], least[:]) < 0 {
			to, least = i, is
		}
	}
	p.at[to].remember(all)
	return p.sent(r, to, len(r.Prompt))
}

// rendezvous sends each request for an adapter to the endpoint with the highest hash among those
// whose load is at most 1.25 times the mean (Thaler, Ravishankar 1998; Mirrokni, Thorup,
// Zadimoghaddam 2018). The hash is that of the adapter; for the base model, that of the start of
// the prompt.
type rendezvous struct{ tracker }

const (
	loadFactor  = 1.25
	keyedTokens = 256
)

func byHash(f Fleet, seed uint64) (Picker, error) {
	s, err := newSeen(f, seed, 0)
	return &rendezvous{s}, err
}

func (p *rendezvous) Pick(_ float64, r *Request) int {
	total := 1
	for i := range p.at {
		total += p.at[i].load()
	}
	most := int(math.Ceil(loadFactor * float64(total) / float64(len(p.at))))
	key := []uint32{1} // the key must not be empty
	if r.Adapter == "" {
		key = append(key, r.Prompt[:min(len(r.Prompt), keyedTokens)]...)
	}
	sum := hashes(&Request{Adapter: r.Adapter, Prompt: key}, len(key))[0]
	to, highest := -1, uint64(0)
	for i := range p.at {
		h := (sum ^ uint64(i+1)) * hash.Gamma
		h = (h ^ h>>32) * 0xd6e8feb86659fd93
		if p.at[i].load() < most && (to < 0 || h > highest) {
			to, highest = i, h
		}
	}
	return p.sent(r, to, len(r.Prompt))
}
