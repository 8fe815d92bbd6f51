package prefix

import (
	"math"
	"math/bits"
	"slices"
	"sort"
)

const (
	// DefaultBytes is the default memory of an Index. It is sufficient for a million blocks: the KV
	// of 160 GPUs with 400,000 tokens each.
	DefaultBytes = 64 << 20
	// DefaultBlocks is the assumed cache size of an endpoint until the real size is known: half a
	// million tokens, which is slightly more than fits on an 80 GB GPU beside an 8B model.
	DefaultBlocks = 8192
	// blockBytes is the memory that an Index needs for a block at an endpoint: one word, one place,
	// two buckets for blocks and one bucket for places.
	blockBytes = 32 + 20 + 2*4 + 4
)

// Writer records which blocks endpoints have. Endpoints are identified by small numbers from 0.
type Writer interface {
	// Sent records that an endpoint has, or will soon have, the leading blocks of a prompt.
	Sent(endpoint int, blocks []uint64)
	// Forget records that an endpoint no longer has any blocks.
	Forget(endpoint int)
	// Resize sets the maximum number of blocks that an endpoint keeps.
	Resize(endpoint, blocks int)
}

// Index records which blocks were sent to which endpoints. For each endpoint it keeps the most
// recently sent blocks, as many as the endpoint's cache can contain. Like an engine, it drops the
// end of a prompt before its beginning, so that prefixes remain. When the memory of the Index is
// full, the endpoint with the most blocks loses its oldest blocks.
//
// The Index allocates its memory at the first Sent, and later only for endpoints with higher
// numbers.
type Index struct {
	size   int // maximum number of places
	words  words
	places places
	parts  []part // list of places by endpoint
	parted int    // number of parts that have places

	familiar float64
}

// part is one endpoint's list of places, from the most recently sent to the oldest.
type part struct {
	newest, oldest uint32
	count, most    int
}

// New returns an empty Index that uses at most this number of bytes of memory.
func New(bytes int) *Index {
	return &Index{size: min(max(1, bytes/blockBytes), math.MaxInt32)}
}

// Cached returns, by endpoint number, how many leading blocks of a prompt each endpoint has.
// Endpoints beyond the result's length have none. It stores the result in dst if that is large
// enough.
//
// It needs to find only a few of the blocks: an endpoint with one block also has all earlier
// blocks, so the set of endpoints changes only where the number of endpoints drops. A binary search
// finds these blocks.
func (x *Index) Cached(blocks []uint64, dst []int32) []int32 {
	dst, i := x.find(blocks, dst)
	if _, beginning := Beginning(blocks); beginning > 0 {
		x.familiar += (float64(min(i, beginning))/float64(beginning) - x.familiar) / familiarity
	}
	return dst
}

// Peek is like Cached, but does not count for [Index.Familiar].
func (x *Index) Peek(blocks []uint64, dst []int32) []int32 {
	dst, _ = x.find(blocks, dst)
	return dst
}

// find returns the result of Cached, and how many leading blocks any endpoint has.
func (x *Index) find(blocks []uint64, dst []int32) (cached []int32, most int) {
	dst = slices.Grow(dst[:0], len(x.parts))[:len(x.parts)]
	clear(dst)
	i := 0
	for i < len(blocks) {
		block := x.words.find(blocks[i])
		n := x.words.endpoints(block)
		if n == 0 {
			break
		}
		i++
		i += sort.Search(len(blocks)-i, func(k int) bool { return x.words.endpoints(x.words.find(blocks[i+k])) < n })
		for at := block; at != 0; at = x.words.at[at].more {
			w := &x.words.at[at]
			for set := w.set; set != 0; set &= set - 1 {
				dst[int(w.group)*64+bits.TrailingZeros64(set)] = int32(i) //nolint:gosec // few
			}
		}
	}
	return dst, i
}

const (
	// beginning is the number of leading blocks that are a prompt's beginning: 2,048 tokens, a
	// common length of shared prefixes.
	beginning = 32
	// leastBeginning is the minimum number of blocks of a beginning. A shorter prompt is computed
	// as fast as it is found in a cache.
	leastBeginning = 4
	// familiarity is the number of prompts over which [Index.Familiar] averages.
	familiarity = 64
)

// Beginning returns the hash of a prompt's beginning and the number of blocks in it; both are zero
// for a short prompt.
func Beginning(all []uint64) (hash uint64, blocks int) {
	if len(all) < leastBeginning {
		return 0, 0
	}
	blocks = min(len(all), beginning)
	return all[blocks-1], blocks
}

// Familiar returns the share of prompts' beginnings that any endpoint had, averaged over recent
// calls of Cached: 0 to 1.
func (x *Index) Familiar() float64 { return x.familiar }

// Sent implements [Writer].
//
// The blocks that the endpoint has are mostly neighbors in its list, in the order of the prompt. So
// most of them are found without a search, and stay where they are.
func (x *Index) Sent(endpoint int, blocks []uint64) {
	p := x.part(endpoint)
	if x.words.at == nil {
		x.words, x.places = newWords(x.size), newPlaces(x.size)
	}
	before := uint32(0) // place of the prompt's previous block
	next := p.newest    // place that the next block probably has
	fetched := 0        // number of leading blocks for which fetch was called
	blocks = blocks[:min(len(blocks), p.most, x.size)]
	for i, hash := range blocks {
		at, block := next, uint32(0)
		if at == 0 || x.words.at[x.places.at[at].block].hash != hash {
			if i >= fetched {
				fetched = min(i+ahead, len(blocks))
				x.fetch(p, blocks[i:fetched])
			}
			block = x.words.find(hash)
			at = x.places.find(block, endpoint)
		}
		if at != 0 {
			next = x.places.at[at].older
			if at != before && x.places.at[at].newer != before {
				x.unlink(p, at)
				x.link(p, at, before)
			}
			before = at
			continue
		}
		if victim, full := x.victim(endpoint); full {
			if victim == endpoint && p.oldest == before {
				return // there is room for only the beginning of the prompt
			}
			x.giveUp(victim)
			block = x.words.find(hash) // the victim's place may have been the last one of the same block
		}
		block = x.words.add(block, hash, endpoint)
		at = x.places.add(block, endpoint)
		x.link(p, at, before)
		before, next = at, x.places.at[at].older
	}
}

// ahead is the maximum number of blocks for which fetch reads: about as many reads as a processor
// has in flight.
const ahead = 32

// fetch reads the memory that Sent needs to search and add these blocks, and to evict as many of
// the endpoint. This memory is spread over the tables, and mostly in no cache. Its reads do not
// depend on each other, so the processor waits for all of them at once. The result has no meaning;
// without it, the compiler would remove the reads.
//
//go:noinline
func (x *Index) fetch(p *part, blocks []uint64) (sum uint32) {
	var heads [ahead]uint32
	for i, hash := range blocks {
		heads[i] = *bucket(hash, x.words.buckets)
	}
	for _, head := range heads[:len(blocks)] {
		sum += x.words.at[head].next
	}
	if p.count+len(blocks) <= p.most && !x.places.full() {
		return sum
	}
	at := p.oldest
	for i := range blocks {
		old := &x.places.at[at]
		heads[i] = *bucket(x.words.at[old.block].hash, x.words.buckets)
		sum += *x.places.bucket(old.block, old.endpoint)
		at = old.newer
	}
	for _, head := range heads[:len(blocks)] {
		sum += x.words.at[head].next
	}
	return sum
}

// Forget implements [Writer]. It takes about 15 ns for each block of the endpoint.
func (x *Index) Forget(endpoint int) { x.shrink(endpoint, 0) }

// Resize implements [Writer].
func (x *Index) Resize(endpoint, blocks int) {
	x.part(endpoint).most = max(0, blocks)
	x.shrink(endpoint, blocks)
}

// part returns the part of an endpoint, and creates the part if necessary.
func (x *Index) part(endpoint int) *part {
	for len(x.parts) <= endpoint {
		x.parts = append(x.parts, part{most: DefaultBlocks})
	}
	return &x.parts[endpoint]
}

// shrink removes an endpoint's oldest places until count places remain.
func (x *Index) shrink(endpoint, count int) {
	for p := x.part(endpoint); p.count > max(0, count); {
		x.giveUp(endpoint)
	}
}

// victim returns the endpoint that must lose a place before an endpoint can get one more. Full is
// false if there is room.
func (x *Index) victim(endpoint int) (victim int, full bool) {
	p := &x.parts[endpoint]
	switch {
	case p.count >= p.most:
		return endpoint, true
	case !x.places.full():
		return 0, false
	case p.count*x.parted >= x.size: // the endpoint has its share of places or more
		return endpoint, true
	}
	for i := range x.parts {
		if x.parts[i].count > x.parts[victim].count {
			victim = i
		}
	}
	return victim, true
}

// giveUp removes an endpoint's oldest place.
func (x *Index) giveUp(endpoint int) {
	p := &x.parts[endpoint]
	at := p.oldest
	x.unlink(p, at)
	x.words.remove(x.places.at[at].block, endpoint)
	x.places.remove(at)
}

// link adds a place to a part's list, after the place newer; 0 means as the newest.
func (x *Index) link(p *part, at, newer uint32) {
	older := p.newest
	if newer != 0 {
		older = x.places.at[newer].older
	}
	is := &x.places.at[at]
	is.newer, is.older = newer, older
	if newer != 0 {
		x.places.at[newer].older = at
	} else {
		p.newest = at
	}
	if older != 0 {
		x.places.at[older].newer = at
	} else {
		p.oldest = at
	}
	if p.count++; p.count == 1 {
		x.parted++
	}
}

// unlink removes a place from a part's list.
func (x *Index) unlink(p *part, at uint32) {
	is := &x.places.at[at]
	if is.newer != 0 {
		x.places.at[is.newer].older = is.older
	} else {
		p.newest = is.older
	}
	if is.older != 0 {
		x.places.at[is.older].newer = is.newer
	} else {
		p.oldest = is.newer
	}
	if p.count--; p.count == 0 {
		x.parted--
	}
}
