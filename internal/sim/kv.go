package sim

import (
	"math/bits"
	"slices"

	"github.com/headgate/headgate/internal/hash"
)

// reservedBlocks is the number of blocks of num_gpu_blocks that vLLM reserves: the null block.
const reservedBlocks = 1

// none ends a list of blocks.
const none = int32(-1)

// blockCache is the KV cache: blocks of size tokens with reference counts. A free block keeps its
// contents and can be found by its hash until it is reused. Free blocks are reused in the order in
// which they became free, after those never used, as in vLLM's block pool.
type blockCache struct {
	size, capacity int
	// blocks are those used at least once; the others need no memory.
	blocks []block
	// The free ones among blocks: a list linked by prev and next, oldest first.
	oldest, newest int32
	listed         int
	// buckets is a hash table of chains of blocks, the newest first; nil until a block has a hash.
	buckets []int32
}

// block is one block of KV cache.
type block struct {
	uses       int32
	prev, next int32 // in the free list, while uses is 0
	chain      int32 // next in its bucket, if hashed
	hashed     bool
	hash       uint64 // of all tokens up to the block's end, if hashed
}

func newBlockCache(capacity, size int) blockCache {
	return blockCache{size: size, capacity: capacity, oldest: none, newest: none}
}

// free is the number of free blocks.
func (c *blockCache) free() int { return c.capacity - len(c.blocks) + c.listed }

// usage is the share of blocks in use, 0..1.
func (c *blockCache) usage() float64 { return 1 - float64(c.free())/float64(c.capacity) }

// admit allocates the blocks for the first part, at most budget tokens, of a sequence without
// blocks. Leading blocks that are cached are shared and count as computed; at least one token is
// left to compute. It returns the size of the part, or false if the blocks of the whole sequence
// are not available: admitting a prompt of which only the first part fits would preempt others
// later (vLLM's scheduler_reserve_full_isl, on by default).
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

// find returns the sequence's leading cached blocks, at most limit, using the array of its block
// list.
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

// oldestOf returns the oldest block with a hash, or none.
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

// grow allocates blocks for the sequence's first tokens. If there are not enough, it allocates none
// and returns false.
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

// computed records that the KV of the sequence's first tokens will be computed when the step ends.
// Full blocks can be found at once, as in vLLM: a later request in the same step already shares
// them.
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

// release frees blocks in reverse order, so that the end of a prefix is evicted before its
// beginning.
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

// use adds a reference to a cached block.
func (c *blockCache) use(b int32) {
	if c.blocks[b].uses == 0 {
		c.unlist(b)
	}
	c.blocks[b].uses++
}

// take returns an empty block with one reference. The caller has checked that there is a free one.
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

// unlist removes a block from the free list.
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

// bucket is the start of the chain of blocks with a hash.
func (c *blockCache) bucket(hash uint64) *int32 {
	i, _ := bits.Mul64(hash, uint64(len(c.buckets)))
	return &c.buckets[i]
}

// label sets a block's hash. Two blocks have the same hash if a prompt is cached to its end: its
// last block is computed again, since at least one token must be. The older block is found first.
func (c *blockCache) label(b int32, hash uint64) {
	if c.buckets == nil {
		c.buckets = slices.Repeat([]int32{none}, 2*c.capacity)
	}
	first, is := c.bucket(hash), &c.blocks[b]
	is.hashed, is.hash, is.chain = true, hash, *first
	*first = b
}

// unlabel removes a block's hash.
func (c *blockCache) unlabel(b int32) {
	is := &c.blocks[b]
	at := c.bucket(is.hash)
	for *at != b {
		at = &c.blocks[*at].chain
	}
	*at, is.hashed = is.chain, false
}

// blocksFor is the number of blocks for tokens.
func (c *blockCache) blocksFor(tokens int) int { return (tokens + c.size - 1) / c.size }

// hashOf returns the hash of everything up to the end of full block i: the adapter, whose weights
// change the KV, and all tokens. 64-bit hashes are assumed to be unique: a million blocks collide
// in one of 37 million runs.
func (s *sequence) hashOf(i, size int) uint64 {
	for len(s.hashes) <= i {
		block := len(s.hashes)
		var h uint64
		if block == 0 {
			for _, b := range []byte(s.Adapter) {
				h = hash.Fold(h, uint64(b)+1)
			}
		} else {
			h = s.hashes[block-1]
		}
		for t := block * size; t < (block+1)*size; t++ {
			h = hash.Fold(h, uint64(s.token(t)))
		}
		s.hashes = append(s.hashes, h)
	}
	return s.hashes[i]
}
