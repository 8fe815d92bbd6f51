package sim

import (
	"math/bits"
	"slices"

	"github.com/headgate/headgate/internal/hash"
)

// reservedBlocks is the number of KV blocks that vLLM reserves: one, the null block.
const reservedBlocks = 1

// none is the index that ends a linked list of blocks.
const none = int32(-1)

// blockCache is the KV cache. It has blocks of size tokens, with reference counts. A free block
// keeps its contents, and can be found by its hash, until the block is reused. As in vLLM's block
// pool, blocks that were never used are taken first, and then free blocks in the order in which
// they became free.
type blockCache struct {
	size, capacity int
	// blocks contains the blocks that were used at least once. The other blocks need no memory.
	blocks []block
	// oldest and newest are the ends of a list of the free blocks in blocks. The links are prev and
	// next.
	oldest, newest int32
	listed         int
	// buckets is a hash table. Each bucket is a chain of blocks, the newest first. It is nil until
	// a block has a hash.
	buckets []int32
}

// block is one block of KV cache.
type block struct {
	uses       int32
	prev, next int32 // links in the list of free blocks, if uses is 0
	chain      int32 // next block in the chain of its bucket, if hashed
	hashed     bool
	hash       uint64 // hash of all tokens up to the end of this block, if hashed
}

func newBlockCache(capacity, size int) blockCache {
	return blockCache{size: size, capacity: capacity, oldest: none, newest: none}
}

// free returns the number of free blocks.
func (c *blockCache) free() int { return c.capacity - len(c.blocks) + c.listed }

// usage returns the share of blocks in use, from 0 to 1.
func (c *blockCache) usage() float64 { return 1 - float64(c.free())/float64(c.capacity) }

// admit allocates the blocks for the first part of a sequence that has none. The part has at most
// budget tokens. Leading blocks that are in the cache are shared, and their tokens need not be
// computed; at least one token remains to be computed. admit returns the size of the part. ok is
// false if there are not enough blocks for the whole sequence: its later parts would then preempt
// other sequences (vLLM's scheduler_reserve_full_isl, on by default).
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

// find returns the leading blocks of the sequence that are in the cache, at most limit. It reuses
// the array of the sequence's block list.
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

// oldestOf returns the oldest block with this hash; none if there is no such block.
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

// grow allocates the missing blocks for the first tokens of a sequence. If there are not enough
// free blocks, it allocates none and returns false.
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

// computed records that the current step computes the KV of a sequence up to this number of tokens.
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

// release removes a reference from each block. It does so in reverse order, so that the end of a
// prefix is evicted before its beginning.
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

// use adds a reference to a block that was found in the cache.
func (c *blockCache) use(b int32) {
	if c.blocks[b].uses == 0 {
		c.unlist(b)
	}
	c.blocks[b].uses++
}

// take returns an empty block with one reference. The caller has checked that a block is free.
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

// bucket returns the start of the chain that contains blocks with this hash.
func (c *blockCache) bucket(hash uint64) *int32 {
	i, _ := bits.Mul64(hash, uint64(len(c.buckets)))
	return &c.buckets[i]
}

// label sets the hash of a block. Two blocks get the same hash if all blocks of a prompt are in the
// cache: at least one token must be computed, so the last block is computed again. find then
// returns the older block.
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

// blocksFor returns how many blocks this number of tokens needs.
func (c *blockCache) blocksFor(tokens int) int { return (tokens + c.size - 1) / c.size }

// hashOf returns the hash of a sequence up to the end of the full block i. It includes all tokens,
// and the adapter, because its weights change the KV. Hashes have 64 bits and are assumed to be
// unique: with a million blocks, one in 37 million runs has a collision.
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
