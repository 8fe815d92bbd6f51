package prefix

import (
	"math"
	"math/bits"
	"slices"
	"sort"
)

const (
	// DefaultBytes is the memory of an Index unless somebody says otherwise. It is good for a
	// million blocks: the KV of 160 GPUs that hold 400,000 tokens each.
	DefaultBytes = 64 << 20
	// DefaultBlocks is how many blocks an endpoint is taken to keep as long as nobody knows: half a
	// million tokens, somewhat more than an 8B model leaves room for on a GPU of 80 GB.
	DefaultBlocks = 8192
	// blockBytes is what an Index needs for a block at an endpoint: a word, a place, two buckets of
	// blocks and one of places.
	blockBytes = 32 + 20 + 2*4 + 4
)

// Writer is told which blocks endpoints have. Endpoints are small numbers from 0 on.
type Writer interface {
	// Sent says that an endpoint has the leading blocks of a prompt, or will have them in a moment.
	Sent(endpoint int, blocks []uint64)
	// Forget says that an endpoint has no block any more.
	Forget(endpoint int)
	// Resize says how many blocks an endpoint keeps at most.
	Resize(endpoint, blocks int)
}

// Index remembers which endpoints were sent which blocks. Of each endpoint it keeps as many as that
// does, and those that were sent last; the end of a prompt goes before its beginning, as engines
// free their own blocks. So what it keeps is beginnings of prompts. When its memory is full, the
// endpoint with the most blocks gives up its oldest.
//
// All memory is taken at the first Sent, and none after that but for endpoints with higher numbers.
type Index struct {
	size   int // how many places there are
	words  words
	places places
	parts  []part // by endpoint
	parted int    // parts that have places

	familiar float64
}

// part is what an endpoint has: a list of places, from the one that was sent last to the oldest.
type part struct {
	newest, oldest uint32
	count, most    int
}

// New returns an Index of nothing, which takes so many bytes of memory at most.
func New(bytes int) *Index {
	return &Index{size: min(max(1, bytes/blockBytes), math.MaxInt32)}
}

// Cached returns how many leading blocks of a prompt each endpoint has, by its number. An endpoint
// whose number is behind the last has none. What it returns is in dst, where that is large enough.
//
// It looks at few of the blocks: who has one has all before it, so that all have the same endpoints
// up to the first that fewer have.
func (x *Index) Cached(blocks []uint64, dst []int32) []int32 {
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
	if _, beginning := Beginning(blocks); beginning > 0 {
		x.familiar += (float64(min(i, beginning))/float64(beginning) - x.familiar) / familiarity
	}
	return dst
}

const (
	// beginning is how many leading blocks are the beginning of a prompt: 2,048 tokens, as long as
	// what many prompts have in common.
	beginning = 32
	// leastBeginning is how many a prompt has at least for that. What is shorter is as soon
	// computed as found.
	leastBeginning = 4
	// familiarity is over how many prompts [Index.Familiar] is a mean.
	familiarity = 64
)

// Beginning is the hash of the beginning of a prompt and how many blocks that is; none of a short
// prompt.
func Beginning(all []uint64) (hash uint64, blocks int) {
	if len(all) < leastBeginning {
		return 0, 0
	}
	blocks = min(len(all), beginning)
	return all[blocks-1], blocks
}

// Familiar is how much of the beginnings of prompts some endpoint had, of those that Cached was
// asked for lately: 0 to 1.
func (x *Index) Familiar() float64 { return x.familiar }

// Sent is of [Writer].
func (x *Index) Sent(endpoint int, blocks []uint64) {
	p := x.part(endpoint)
	if x.words.at == nil {
		x.words, x.places = newWords(x.size), newPlaces(x.size)
	}
	blocks = blocks[:min(len(blocks), p.most, x.size)]
	for _, hash := range slices.Backward(blocks) { // the first last, so that it is the newest
		block := x.words.find(hash)
		at := x.places.find(block, endpoint)
		if at != 0 {
			x.unlink(p, at)
		} else {
			if x.makeRoom(endpoint) { // maybe by the last place of this very block
				block = x.words.find(hash)
			}
			block = x.words.add(block, hash, endpoint)
			at = x.places.add(block, endpoint)
		}
		x.link(p, at)
	}
}

// Forget is of [Writer]. It takes some 15 ns for each block that the endpoint has.
func (x *Index) Forget(endpoint int) { x.shrink(endpoint, 0) }

// Resize is of [Writer].
func (x *Index) Resize(endpoint, blocks int) {
	x.part(endpoint).most = max(0, blocks)
	x.shrink(endpoint, blocks)
}

// part is that of an endpoint.
func (x *Index) part(endpoint int) *part {
	for len(x.parts) <= endpoint {
		x.parts = append(x.parts, part{most: DefaultBlocks})
	}
	return &x.parts[endpoint]
}

// shrink has an endpoint give up its oldest places until it has so many.
func (x *Index) shrink(endpoint, count int) {
	for p := x.part(endpoint); p.count > max(0, count); {
		x.giveUp(endpoint)
	}
}

// makeRoom makes room for a place more at an endpoint, and says whether another had to go for it.
func (x *Index) makeRoom(endpoint int) bool {
	p := &x.parts[endpoint]
	switch {
	case p.count >= p.most:
		x.giveUp(endpoint)
	case !x.places.full():
		return false
	case p.count*x.parted >= x.size: // its share, or more
		x.giveUp(endpoint)
	default:
		largest := 0
		for i := range x.parts {
			if x.parts[i].count > x.parts[largest].count {
				largest = i
			}
		}
		x.giveUp(largest)
	}
	return true
}

// giveUp has an endpoint give up its oldest place.
func (x *Index) giveUp(endpoint int) {
	p := &x.parts[endpoint]
	at := p.oldest
	x.unlink(p, at)
	x.words.remove(x.places.at[at].block, endpoint)
	x.places.remove(at)
}

// link puts a place into the list of a part, as its newest.
func (x *Index) link(p *part, at uint32) {
	is := &x.places.at[at]
	is.newer, is.older = 0, p.newest
	if p.newest != 0 {
		x.places.at[p.newest].newer = at
	} else {
		p.oldest = at
		x.parted++
	}
	p.newest = at
	p.count++
}

// unlink takes a place out of the list of a part.
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
