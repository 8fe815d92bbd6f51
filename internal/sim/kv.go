package sim

import (
	"math/bits"
	"slices"
)

// reservedBlocks is what vLLM keeps of num_gpu_blocks for itself: one block that stands for "none".
const reservedBlocks = 1

// none is the end of a list of blocks.
const none = int32(-1)

// blockCache is the KV cache: blocks of size tokens, counted by the sequences that use them. A block that nobody uses
// keeps what it holds and is found by its hash until it is taken for something else. Free blocks are taken in the
// order in which they became free, those never used before all others, as in vLLM's block pool.
type blockCache struct {
	size, capacity int
	// blocks are those used at least once; the others need no memory.
	blocks []block
	// Free blocks among blocks: a list through prev and next, oldest first.
	oldest, newest int32
	listed         int
	// buckets lead by hash to chains of blocks, the latest first; nil until a block has one.
	buckets []int32
}

// block is one block of KV cache.
type block struct {
	uses       int32
	prev, next int32 // in the list of free blocks, while uses is 0
	chain      int32 // the next in its bucket, where hashed
	hashed     bool
	hash       uint64 // of all tokens up to the block's end, where hashed
}

func newBlockCache(capacity, size int) blockCache {
	return blockCache{size: size, capacity: capacity, oldest: none, newest: none}
}

// free is the number of blocks that nobody uses.
func (c *blockCache) free() int { return c.capacity - len(c.blocks) + c.listed }

// usage is the share of blocks in use, 0..1.
func (c *blockCache) usage() float64 { return 1 - float64(c.free())/float64(c.capacity) }

// admit takes the blocks for the first part, of at most budget tokens, of a sequence that has none. Leading blocks
// that are cached are shared and count as computed; at least one token is left to compute. It returns the size of the
// part, and false where the blocks of the whole sequence are not to be had: admitting a prompt of which only the first
// part fits would preempt others later (vLLM's scheduler_reserve_full_isl, on by default).
func (c *blockCache) admit(s *sequence, budget int) (n int, ok bool) {
	total := s.tokens()
	s.blocks = c.find(s, (total-1)/c.size)
	cached := len(s.blocks)
	idle := 0
	for _, b := range s.blocks {
		if c.blocks[b].uses == 0 {
			idle++
		}
	}
	if c.blocksFor(total)-cached+idle > c.free() {
		s.blocks = s.blocks[:0]
		return 0, false
	}
	for _, b := range s.blocks {
		c.use(b)
	}
	s.computed = cached * c.size
	n = min(total-s.computed, budget)
	if !c.grow(s, s.computed+n) {
		panic("sim: blocks that were counted as free are not")
	}
	return n, true
}

// find returns the leading cached blocks of the sequence, at most limit, in the array of its block list.
func (c *blockCache) find(s *sequence, limit int) []int32 {
	found := s.blocks[:0]
	if s.counted() {
		return found
	}
	for i := range limit {
		b := c.oldestOf(s.hashOf(i, c.size))
		if b == none {
			break
		}
		found = append(found, b)
	}
	return found
}

// oldestOf is the block with a hash that had it first, or none.
func (c *blockCache) oldestOf(hash uint64) int32 {
	is := none
	if c.buckets == nil {
		return is
	}
	for b := *c.bucket(hash); b != none; b = c.blocks[b].chain {
		if c.blocks[b].hash == hash {
			is = b
		}
	}
	return is
}

// grow takes fresh blocks until the sequence has those for its first tokens, or takes none and reports false.
func (c *blockCache) grow(s *sequence, tokens int) bool {
	missing := c.blocksFor(tokens) - len(s.blocks)
	if missing > c.free() {
		return false
	}
	for range missing {
		s.blocks = append(s.blocks, c.take())
	}
	return true
}

// computed records that the KV of the sequence's first tokens is there once the step ends. Blocks that are full now
// can be found by others at once, as in vLLM: a request behind in the same step already shares them.
func (c *blockCache) computed(s *sequence, tokens int) {
	if s.counted() {
		s.computed = tokens
		return
	}
	for i := s.computed / c.size; i < tokens/c.size; i++ {
		if b := s.blocks[i]; !c.blocks[b].hashed {
			c.label(b, s.hashOf(i, c.size))
		}
	}
	s.computed = tokens
}

// release gives blocks back, the last one first, so that the end of a prefix is evicted before its beginning.
func (c *blockCache) release(blocks []int32) {
	for _, b := range slices.Backward(blocks) {
		c.blocks[b].uses--
		if c.blocks[b].uses > 0 {
			continue
		}
		c.blocks[b].prev, c.blocks[b].next = c.newest, none
		if c.newest == none {
			c.oldest = b
		} else {
			c.blocks[c.newest].next = b
		}
		c.newest = b
		c.listed++
	}
}

// use counts one more user of a cached block.
func (c *blockCache) use(b int32) {
	if c.blocks[b].uses == 0 {
		c.unlist(b)
	}
	c.blocks[b].uses++
}

// take returns a free block, empty and with one user. There is one: the caller has counted.
func (c *blockCache) take() int32 {
	if len(c.blocks) < c.capacity {
		c.blocks = append(c.blocks, block{uses: 1})
		return int32(len(c.blocks) - 1)
	}
	b := c.oldest
	c.unlist(b)
	c.blocks[b].uses = 1
	if c.blocks[b].hashed {
		c.unlabel(b)
	}
	return b
}

// unlist takes a block out of the list of free ones.
func (c *blockCache) unlist(b int32) {
	prev, next := c.blocks[b].prev, c.blocks[b].next
	if prev == none {
		c.oldest = next
	} else {
		c.blocks[prev].next = next
	}
	if next == none {
		c.newest = prev
	} else {
		c.blocks[next].prev = prev
	}
	c.listed--
}

// bucket is where the chain begins of the blocks with a hash.
func (c *blockCache) bucket(hash uint64) *int32 {
	i, _ := bits.Mul64(hash, uint64(len(c.buckets)))
	return &c.buckets[i]
}

// label makes a block found by its hash. Two blocks have the same where a prompt is cached to its very end: the last block is computed again,
// since at least one token must be. The older of them is found first.
func (c *blockCache) label(b int32, hash uint64) {
	if c.buckets == nil {
		c.buckets = slices.Repeat([]int32{none}, 2*c.capacity)
	}
	first, is := c.bucket(hash), &c.blocks[b]
	is.hashed, is.hash, is.chain = true, hash, *first
	*first = b
}

// unlabel makes a block's content forgotten.
func (c *blockCache) unlabel(b int32) {
	is := &c.blocks[b]
	at := c.bucket(is.hash)
	for *at != b {
		at = &c.blocks[*at].chain
	}
	*at, is.hashed = is.chain, false
}

// blocksFor is the number of blocks that hold so many tokens.
func (c *blockCache) blocksFor(tokens int) int { return (tokens + c.size - 1) / c.size }

// hashOf returns the hash of everything up to the end of full block i: the adapter, whose weights make its KV differ,
// and all tokens. Hashes of 64 bits are trusted to be distinct: a million blocks collide once in 37 million runs.
func (s *sequence) hashOf(i, size int) uint64 {
	for len(s.hashes) <= i {
		block := len(s.hashes)
		var h uint64
		if block == 0 {
			for _, b := range []byte(s.Adapter) {
				h = mix(h, uint64(b)+1)
			}
		} else {
			h = s.hashes[block-1]
		}
		for t := block * size; t < (block+1)*size; t++ {
			h = mix(h, uint64(s.token(t)))
		}
		s.hashes = append(s.hashes, h)
	}
	return s.hashes[i]
}

// mix folds a value into a hash: a multiplication and a shift of the splitmix64 generator (Steele, Lea, Flood: Fast splittable pseudorandom
// number generators, OOPSLA 2014).
func mix(h, value uint64) uint64 {
	h = (h ^ value ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return h ^ h>>31
}
