package prefix

import "math/bits"

// Words and places are hash tables of a fixed size without pointers, for the garbage collector to
// pass over: buckets lead to chains of entries, which are numbered from 1 on, so that 0 is none.

// word is those that have a block of 64 endpoints, of which one has it at least. The first word of
// a block is found by its hash, and leads to the others, in no order; its number is the block's.
type word struct {
	hash  uint64 // of the block
	set   uint64 // bit i is endpoint 64*group+i
	group uint32
	more  uint32 // another word of the block
	next  uint32 // in the chain of its bucket, or of those that are free
	count uint32 // of the block's endpoints, in its first word
}

type words struct {
	at      []word
	buckets []uint32
	free    uint32 // the first of those that were used and are not
	used    uint32 // how many ever were
}

func newWords(size int) words {
	return words{at: make([]word, size+1), buckets: make([]uint32, 2*size)}
}

// bucket is one of so many, by a hash.
func bucket(hash uint64, of []uint32) *uint32 {
	i, _ := bits.Mul64(hash, uint64(len(of)))
	return &of[i]
}

// find returns the block of a hash, 0 if there is none.
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

// endpoints is how many have a block; none has block 0.
func (t *words) endpoints(block uint32) uint32 {
	if block == 0 {
		return 0
	}
	return t.at[block].count
}

// add gives a block an endpoint that it has not. The block is made if it is 0.
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

// remove takes an endpoint from a block that has it. A block without endpoints is gone.
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
	case first.more != 0: // the second takes the place of the first, by whose number the block is known
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

// take returns a word that is free: there is one, for each has an endpoint and each of these has a
// place.
func (t *words) take() uint32 {
	at := t.free
	if at == 0 {
		t.used++
		return t.used
	}
	t.free = t.at[at].next
	return at
}

// place is a block that an endpoint has, in the list of those that it has.
type place struct {
	block        uint32
	endpoint     uint32
	newer, older uint32
	next         uint32 // in the chain of its bucket, or of those that are free
}

type places struct {
	at      []place
	buckets []uint32
	free    uint32 // the first of those that were used and are not
	used    uint32 // how many ever were
}

func newPlaces(size int) places {
	return places{at: make([]place, size+1), buckets: make([]uint32, size)}
}

func (t *places) full() bool { return t.free == 0 && int(t.used) == len(t.at)-1 }

func (t *places) bucket(block, endpoint uint32) *uint32 {
	return bucket(chained(uint64(block), uint64(endpoint)), t.buckets)
}

// find returns the place of a block at an endpoint, 0 if there is none.
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

// add makes a place that there is not yet. There must be room.
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
