package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// naiveCache is a simple implementation that blockCache must agree with. It stores a block's
// contents as text, finds blocks by scanning in the order of labelling, and has a slice of free
// blocks.
type naiveCache struct {
	size   int
	uses   []int
	free   []int32 // the longest free block first
	labels []label
}

type label struct {
	block int32
	text  string
}

func newNaiveCache(capacity, size int) *naiveCache {
	c := &naiveCache{size: size, uses: make([]int, capacity)}
	for b := range capacity {
		c.free = append(c.free, int32(b))
	}
	return c
}

// text returns the contents of the sequence up to the end of the full block i.
func (c *naiveCache) text(s *sequence, i int) string {
	return fmt.Sprint(s.Adapter, "|", s.Prompt[:(i+1)*c.size])
}

func (c *naiveCache) admit(s *sequence, budget int) (blocks []int32, computed int, ok bool) {
	for i := range (len(s.Prompt) - 1) / c.size {
		at := slices.IndexFunc(c.labels, func(l label) bool { return l.text == c.text(s, i) })
		if at < 0 {
			break
		}
		blocks = append(blocks, c.labels[at].block)
	}
	rest := slices.DeleteFunc(slices.Clone(c.free), func(b int32) bool { return slices.Contains(blocks, b) })
	if need := (len(s.Prompt)+c.size-1)/c.size - len(blocks); need > len(rest) {
		return nil, 0, false
	}
	c.free = rest
	for _, b := range blocks {
		c.uses[b]++
	}
	computed = len(blocks) * c.size
	upTo := computed + min(len(s.Prompt)-computed, budget)
	return c.compute(s, blocks, computed, upTo), upTo, true
}

// compute allocates blocks for the tokens between from and to, and labels the full blocks.
func (c *naiveCache) compute(s *sequence, blocks []int32, from, to int) []int32 {
	for len(blocks)*c.size < to {
		b := c.free[0]
		c.free = c.free[1:]
		c.uses[b] = 1
		c.labels = slices.DeleteFunc(c.labels, func(l label) bool { return l.block == b })
		blocks = append(blocks, b)
	}
	for i := from / c.size; i < to/c.size; i++ {
		if !slices.ContainsFunc(c.labels, func(l label) bool { return l.block == blocks[i] }) {
			c.labels = append(c.labels, label{blocks[i], c.text(s, i)})
		}
	}
	return blocks
}

func (c *naiveCache) release(blocks []int32) {
	for _, b := range slices.Backward(blocks) {
		if c.uses[b]--; c.uses[b] == 0 {
			c.free = append(c.free, b)
		}
	}
}

// duplicates contains both caches, which get the same sequences.
type duplicates struct {
	*testing.T
	fast            blockCache
	naive           *naiveCache
	live            []*duplicate
	shared, refused int
}

type duplicate struct {
	s      *sequence
	blocks []int32 // blocks of the sequence in the naive cache
}

func TestBlockCacheMatchesTheNaiveOne(t *testing.T) {
	const capacity, size = 20, 3
	shared, refused := 0, 0
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 5))
		c := duplicates{T: t, fast: newBlockCache(capacity, size), naive: newNaiveCache(capacity, size)}
		for op := range 600 {
			switch i := r.IntN(max(1, len(c.live))); r.IntN(3) {
			case 0:
				c.admit(randomPrompt(r, size), 1+r.IntN(10))
			case 1:
				if len(c.live) > 0 {
					s := c.live[i].s
					c.grow(c.live[i], s.computed+r.IntN(len(s.Prompt)-s.computed+1))
				}
			case 2:
				if len(c.live) > 0 {
					c.fast.release(c.live[i].s.blocks)
					c.naive.release(c.live[i].blocks)
					c.live = slices.Delete(c.live, i, i+1)
				}
			}
			if c.compare(); t.Failed() {
				t.Fatalf("seed %d, operation %d", seed, op)
			}
		}
		shared, refused = shared+c.shared, refused+c.refused
	}
	if shared == 0 || refused == 0 {
		t.Errorf("%d tokens shared, %d admissions refused: nothing was shown", shared, refused)
	}
}

// randomPrompt returns a prompt that joins one of a few beginnings with one of a few ends.
func randomPrompt(r *rand.Rand, size int) *sequence {
	s := &sequence{Request: Request{Adapter: []string{"", "a"}[r.IntN(2)]}}
	for i := range 1 + r.IntN(5*size) {
		s.Prompt = append(s.Prompt, uint32(i))
	}
	for range r.IntN(3) {
		s.Prompt = append(s.Prompt, uint32(r.IntN(3)))
	}
	s.prompt = len(s.Prompt)
	return s
}

func (c *duplicates) admit(s *sequence, budget int) {
	n, ok := c.fast.admit(s, budget)
	blocks, upTo, wantOK := c.naive.admit(s, budget)
	if ok != wantOK {
		c.Fatalf("admitted %v, want %v", ok, wantOK)
	}
	if !ok {
		c.refused++
		return
	}
	c.shared += s.computed
	if c.fast.computed(s, s.computed+n); s.computed != upTo {
		c.Errorf("computed up to %d, want %d", s.computed, upTo)
	}
	c.live = append(c.live, &duplicate{s, blocks})
}

func (c *duplicates) grow(t *duplicate, to int) {
	fits := c.fast.blocksFor(to)-len(t.blocks) <= len(c.naive.free)
	if got := c.fast.grow(t.s, to); got != fits {
		c.Fatalf("grew %v, want %v", got, fits)
	}
	if fits {
		t.blocks = c.naive.compute(t.s, t.blocks, t.s.computed, to)
		c.fast.computed(t.s, to)
	}
}

func (c *duplicates) compare() {
	for _, t := range c.live {
		if !slices.Equal(t.s.blocks, t.blocks) {
			c.Errorf("a sequence holds %v, want %v", t.s.blocks, t.blocks)
		}
	}
	if c.fast.free() != len(c.naive.free) {
		c.Errorf("%d blocks are free, want %d", c.fast.free(), len(c.naive.free))
	}
}

// Two blocks with equal text at the same position have the same hash only if all text before them
// is equal, too.
func TestBlockHashCoversItsPrefix(t *testing.T) {
	hash := func(adapter string, tokens ...uint32) uint64 {
		s := &sequence{Request: Request{Adapter: adapter, Prompt: tokens}, prompt: len(tokens)}
		return s.hashOf(1, 2)
	}
	base := hash("", 1, 2, 3, 4)
	for name, other := range map[string]uint64{
		"another beginning": hash("", 1, 1, 3, 4),
		"another end":       hash("", 1, 2, 3, 3),
		"swapped":           hash("", 2, 1, 3, 4),
		"an adapter":        hash("a", 1, 2, 3, 4),
	} {
		if other == base {
			t.Errorf("%s has the same hash", name)
		}
	}
	if hash("", 1, 2, 3, 4) != base {
		t.Error("the same has another hash")
	}
}
