package fleet

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/internal/engine"
)

// Other projects' policies, by their code or documentation, with their defaults, on the same scrapes. Each knows what its project would know, and
// the requests that other pickers have in flight, as extprocs share them. None knows how long an answer will be.

// seen is what a picker knows of endpoints: by looks, and of the requests that it has sent itself.
type seen struct {
	random *rand.Rand
	slots  int // of adapters, at each endpoint
	at     []known
}

// known is what is known of one endpoint.
type known struct {
	waiting, running, kv float64
	active               []string // adapters

	flying  int                      // requests that were sent from here and have not ended
	others  int                      // requests that other pickers last reported there
	prefill map[*Request]int         // tokens that are to be computed of those that have no first token yet
	decode  map[*Request]int         // blocks of KV that those hold which have not ended
	caches  *lru.Cache[uint64, bool] // blocks of prompts that were sent there
}

func newSeen(f Fleet, seed uint64, cached int) (seen, error) {
	s := seen{random: rand.New(rand.NewPCG(seed, 3)), slots: f.Profile.Limits.GPUAdapters, at: make([]known, f.Endpoints)} //nolint:gosec // no secret
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

func (s *seen) Saw(_ float64, endpoint int, load engine.Load) {
	k := &s.at[endpoint]
	k.waiting, k.running, k.kv, k.active = load.Waiting.Or(0), load.Running.Or(0), load.KVUsage.Or(0), load.Active
}

// load returns how many requests are known to be in flight at an endpoint.
func (k *known) load() int { return k.flying + k.others }

// Tell is a method of [Teller].
func (s *seen) Tell() InFlight {
	all := make(InFlight)
	for i := range s.at {
		all[At{Endpoint: i}] = int64(s.at[i].flying)
	}
	return all
}

// Hear is a method of [Teller].
func (s *seen) Hear(_ float64, others []InFlight) {
	for i := range s.at {
		s.at[i].others = 0
		for _, o := range others {
			s.at[i].others += int(o[At{Endpoint: i}])
		}
	}
}

// sent notes that a request goes to an endpoint, where so many of its tokens are to be computed.
func (s *seen) sent(r *Request, endpoint, uncached int) int {
	k := &s.at[endpoint]
	k.flying++
	k.prefill[r], k.decode[r] = uncached, blocks(len(r.Prompt))
	return endpoint
}

// FirstToken is told that the first token of an answer is out.
func (s *seen) FirstToken(_ float64, r *Request, endpoint int) { delete(s.at[endpoint].prefill, r) }

func (s *seen) Ended(_ float64, r *Request, endpoint int) {
	k := &s.at[endpoint]
	k.flying--
	delete(k.prefill, r)
	delete(k.decode, r)
}

// best returns the endpoint of the highest score, one of several by lot.
func (s *seen) best(score func(endpoint int) float64) int {
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

// blockTokens is the tokens of a block of KV cache, vLLM's default.
const blockTokens = 16

func blocks(tokens int) int { return (tokens + blockTokens - 1) / blockTokens }

// hashes are those of the leading full blocks of a prompt, each of all before it and the adapter.
func hashes(r *Request, size int) []uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(r.Adapter))
	sum := h.Sum64()
	all := make([]uint64, 0, len(r.Prompt)/size)
	for i := 0; i+size <= len(r.Prompt); i += size {
		for _, token := range r.Prompt[i : i+size] {
			sum = (sum ^ uint64(token)) * 0x9e3779b97f4a7c15
			sum ^= sum >> 29
		}
		all = append(all, sum)
	}
	return all
}

// matched is how many leading blocks were sent to an endpoint before, and are remembered.
func (k *known) matched(all []uint64) (n int) {
	for n < len(all) && k.caches.Contains(all[n]) {
		n++
	}
	return n
}

// remember remembers blocks that are sent to an endpoint.
func (k *known) remember(all []uint64) {
	for _, b := range all {
		k.caches.Add(b, true)
	}
}

// leastOfTwo takes two endpoints by lot, and of them the one with fewer requests in flight from here (Mitzenmacher 2001).
func leastOfTwo(f Fleet, seed uint64) (Picker, error) {
	s, err := newSeen(f, seed, 0)
	return &powerOfTwo{s}, err
}

type powerOfTwo struct{ seen }

func (p *powerOfTwo) Pick(_ float64, r *Request) int {
	a := p.random.IntN(len(p.at))
	b := p.random.IntN(len(p.at))
	if p.at[b].load() < p.at[a].load() {
		a = b
	}
	return p.sent(r, a, len(r.Prompt))
}

// scored is the leading endpoint picker: weighted scores of 0 to 1, the highest sum wins, equals by lot. Its prefix cache is approximate:
// blocks of 64 tokens, as many as an endpoint has blocks of KV, remembered when they are sent.
type scored struct {
	seen
	queue, kv, prefix, lora float64 // weights
}

const (
	scoredBlock = 64 // tokens
	scoredLooks = 50 * time.Millisecond
	// bestLora is the weight of its scorer for adapters with which its goodput is the highest: of 200 adapters that of 1 to 8 is equal within a
	// hundredth, and above it keeps more objectives the higher the weight; of 16 and more it is a quarter less.
	bestLora = 8
)

// Scored is the leading picker with weights; its default is 2, 2, 3 and no scorer for adapters.
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
		return p.queue*queueScore(k.waiting, least, most) + p.kv*(1-k.kv) + p.prefix*share(k.matched(all), len(all)) + p.lora*k.loraScore(r.Adapter, p.slots)
	})
	p.at[to].remember(all)
	return p.sent(r, to, len(r.Prompt))
}

// queueScore is 1 for the shortest queue and 0 for the longest; 1 for all where they are equal.
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

// loraScore is 1 where the adapter is active, 0.8 where there is room for another, and 0 else. (It is 0.6 where the adapter waits, which
// vLLM does not tell of requests that were never scheduled.)
func (k *known) loraScore(adapter string, slots int) float64 {
	switch {
	case slices.Contains(k.active, adapter):
		return 1
	case len(k.active) < slots:
		return 0.8
	}
	return 0
}

// indexed is a picker that knows exactly which blocks of KV each endpoint has, as engines tell by events.
type indexed struct {
	seen
	cached func(endpoint int, r *Request) (tokens int)
	cost   func(k *known, r *Request, uncached int) float64
}

// Index is told how many leading tokens of a prompt an endpoint has.
func (p *indexed) Index(cached func(endpoint int, r *Request) (tokens int)) { p.cached = cached }

func (p *indexed) Pick(_ float64, r *Request) int {
	uncached := make([]int, len(p.at))
	to := p.best(func(i int) float64 {
		uncached[i] = len(r.Prompt) - p.cached(i, r)
		return -p.cost(&p.at[i], r, uncached[i])
	})
	return p.sent(r, to, uncached[to])
}

// dynamoCost is Dynamo's: the blocks to prefill, those of requests without a first token and the request's own that are not cached there,
// and the blocks that are decoded, with the request's own. The least costs wins.
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

// kvCost is the cost of so many blocks, with Dynamo's defaults: both weigh the same.
func kvCost(prefill, decode float64) float64 { return prefill + decode }

// lmetricCost is LMETRIC's (arXiv 2603.15202): the tokens to prefill before and of the request, times the requests there with it.
func lmetricCost(k *known, _ *Request, uncached int) float64 {
	for _, tokens := range k.prefill {
		uncached += tokens
	}
	return float64(uncached) * (max(float64(k.load()), k.running+k.waiting) + 1)
}

func indexedBy(cost func(k *known, r *Request, uncached int) float64) Policy {
	return func(f Fleet, seed uint64) (Picker, error) {
		s, err := newSeen(f, seed, 0)
		return &indexed{seen: s, cost: cost}, err
	}
}

// cacheAware is the policy cache_aware of SGLang's gateway, as its code has it (sgl-model-gateway/src/policies/cache_aware.rs at 053b63f). If
// requests in flight are imbalanced, or no endpoint has cached enough of the prompt, it picks the first endpoint with the fewest requests; else the
// one that has cached most. (Only its comments say that it picks the smallest tree if none has cached enough.)
type cacheAware struct{ seen }

// The gateway's defaults.
const (
	cacheThreshold      = 0.3 // share of the prompt
	balanceAbsThreshold = 64  // requests
	balanceRelThreshold = 1.5
	treeBlocks          = 1 << 22 // max_tree_size 67,108,864 tokens
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

// multiplied is the policy lmetric of SGLang's gateway, as its code has it (sgl-model-gateway/src/policies/lmetric.rs at acaa759). It minimizes the
// uncached tokens of the prompt times the requests there, including this one. Ties go to the endpoint with the fewest requests, then to the first.
type multiplied struct{ seen }

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

// rendezvous sends all requests for an adapter to the endpoint of its highest hash that has no more than its share of the load and a
// quarter more (Thaler, Ravishankar 1998; Mirrokni, Thorup, Zadimoghaddam 2018); those for the base model by the beginning of their prompts.
type rendezvous struct{ seen }

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
	key := []uint32{1} // so that there is one
	if r.Adapter == "" {
		key = append(key, r.Prompt[:min(len(r.Prompt), keyedTokens)]...)
	}
	sum := hashes(&Request{Adapter: r.Adapter, Prompt: key}, len(key))[0]
	to, highest := -1, uint64(0)
	for i := range p.at {
		h := (sum ^ uint64(i+1)) * 0x9e3779b97f4a7c15
		h = (h ^ h>>32) * 0xd6e8feb86659fd93
		if p.at[i].load() < most && (to < 0 || h > highest) {
			to, highest = i, h
		}
	}
	return p.sent(r, to, len(r.Prompt))
}
