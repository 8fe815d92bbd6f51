package prefix

import "math/bits"

// The types words and places are fixed-size hash tables without pointers, so that the garbage
// collector skips them. Each bucket is the head of a chain of entries. Entries are numbered from 1;
// 0 means no entry.

// word is a bitmap of the endpoints that have a block, for one group of 64 endpoints; at least one
// bit is set. The block's hash leads to the block's first word, which links to its other words in
// any order. The number of the first word identifies the block.
type word struct {
	hash  uint64 // hash of the block
	set   uint64 // bit i stands for endpoint 64*group+i
	group uint32
	more  uint32 // number of another word of the same block
	next  uint32 // next word in the chain of its bucket, or in the free list
	count uint32 // number of the block's endpoints; only in the block's first word
}

type words struct {
	at      []word
	buckets []uint32
	free    uint32 // head of the free list
	used    uint32 // number of entries that were ever used
}

func newWords(size int) words {
	return words{at: make([]word, size+1), buckets: make([]uint32, 2*size)}
}

// bucket returns the bucket of a hash.
func bucket(hash uint64, of []uint32) *uint32 {
	i, _ := bits.Mul64(hash, uint64(len(of)))
	return &of[i]
}

// find returns the block with a hash; 0 if there is none.
func (t *words) find(hash uint64) uint32 {
	if t.at == nil {
		return 0
	}
	at := *bucket(hash, t.buckets)
	for at != 0 && t.at[at].hash != hash {
		at = t.at[at].next
	}
	return at
}

// endpoints returns the number of endpoints that have a block; 0 for block 0.
func (t *words) endpoints(block uint32) uint32 {
	if block == 0 {
		return 0
	}
	return t.at[block].count
}

// add adds an endpoint to a block, which the endpoint must not have yet. If block is 0, it creates
// the block. It returns the block.
func (t *words) add(block uint32, hash uint64, endpoint int) uint32 {
	group, bit := uint32(endpoint/64), uint64(1)<<(endpoint%64) //nolint:gosec // a small number
	if block == 0 {
		block = t.take()
		head := bucket(hash, t.buckets)
		t.at[block] = word{hash: hash, set: bit, group: group, next: *head, count: 1}
		*head = block
		return block
	}
	at := block
	for t.at[at].group != group {
		if t.at[at].more == 0 {
			more := t.take()
			t.at[more] = word{group: group}
			t.at[at].more = more
		}
		at = t.at[at].more
	}
	t.at[at].set |= bit
	t.at[block].count++
	return block
}

// remove removes an endpoint from a block, which the endpoint must have. It deletes the block if no
// endpoint remains.
func (t *words) remove(block uint32, endpoint int) {
	group, bit := uint32(endpoint/64), uint64(1)<<(endpoint%64) //nolint:gosec // a small number
	at, before := block, uint32(0)
	for t.at[at].group != group {
		at, before = t.at[at].more, at
	}
	first := &t.at[block]
	first.count--
	if t.at[at].set &^= bit; t.at[at].set != 0 {
		return
	}
	switch {
	case before != 0:
		t.at[before].more = t.at[at].more
	case first.more != 0: // the second word is copied to the first, because the number of the first identifies the block
		at = first.more
		first.set, first.group, first.more = t.at[at].set, t.at[at].group, t.at[at].more
	default:
		head := bucket(first.hash, t.buckets)
		for *head != block {
			head = &t.at[*head].next
		}
		*head = first.next
	}
	t.at[at] = word{next: t.free}
	t.free = at
}

// take returns a free word. There is always one, because each word in use has an endpoint with a
// place for the block.
func (t *words) take() uint32 {
	at := t.free
	if at == 0 {
		t.used++
		return t.used
	}
	t.free = t.at[at].next
	return at
}

// place is one block at one endpoint, as an entry in that endpoint's list.
type place struct {
	block        uint32
	endpoint     uint32
	newer, older uint32
	next         uint32 // next place in the chain of its bucket, or in the free list
}

type places struct {
	at      []place
	buckets []uint32
	free    uint32 // head of the free list
	used    uint32 // number of entries that were ever used
}

func newPlaces(size int) places {
	return places{at: make([]place, size+1), buckets: make([]uint32, size)}
}

func (t *places) full() bool { return t.free == 0 && int(t.used) == len(t.at)-1 }

func (t *places) bucket(block, endpoint uint32) *uint32 {
	return bucket(chained(uint64(block), uint64(endpoint)), t.buckets)
}

// find returns the place of a block at an endpoint; 0 if there is none.
func (t *places) find(block uint32, endpoint int) uint32 {
	if block == 0 {
		return 0
	}
	e := uint32(endpoint) //nolint:gosec // a small number
	at := *t.bucket(block, e)
	for at != 0 && (t.at[at].block != block || t.at[at].endpoint != e) {
		at = t.at[at].next
	}
	return at
}

// add adds a place, which must not exist yet. The table must not be full.
func (t *places) add(block uint32, endpoint int) uint32 {
	at := t.free
	if at != 0 {
		t.free = t.at[at].next
	} else {
		t.used++
		at = t.used
	}
	e := uint32(endpoint) //nolint:gosec // a small number
	head := t.bucket(block, e)
	t.at[at] = place{block: block, endpoint: e, next: *head}
	*head = at
	return at
}

func (t *places) remove(at uint32) {
	head := t.bucket(t.at[at].block, t.at[at].endpoint)
	for *head != at {
		head = &t.at[*head].next
	}
	*head = t.at[at].next
	t.at[at] = place{next: t.free}
	t.free = at
}
