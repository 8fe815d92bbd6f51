// Package ring stores the last decisions about requests, and the outcomes of these requests, in
// bounded memory. It stores no prompt. Its records have no pointers, so the garbage collector does
// not read them, and a record costs no allocation.
package ring

import (
	"slices"

	"github.com/headgate/headgate/internal/hash"
)

const (
	// chunkBytes is the size of a chunk. It is more than the largest record.
	chunkBytes = 1 << 16
	// MaxRecord is the maximum size of a record; a larger one is not stored.
	MaxRecord = chunkBytes / 4
)

// Ring stores the last records. A record is a decision and, once it is known, the outcome, both
// encoded. Make one with [New]. A Ring is not safe for concurrent use.
type Ring struct {
	slots  []slot  // records by number modulo len(slots)
	chunks []chunk // the texts of the records
	most   int     // maximum number of chunks
	begun  []int   // chunks in the order in which they were begun; the last one is being filled
	next   uint64  // number of the next record, from 1
}

type slot struct {
	key               uint64 // hash of the request's id
	decision, outcome span
}

// span is where a text is. A span of an earlier generation of its chunk is gone; the zero span is
// always gone.
type span struct {
	generation          uint32
	chunk, offset, size uint16
}

type chunk struct {
	text       []byte
	generation uint32 // counts how often the chunk was begun
	last       uint64 // highest number of a record with a text in this chunk
}

// New returns an empty Ring for at most this number of records, whose texts take at most this
// number of bytes. It allocates memory as it is filled.
func New(records, bytes int) *Ring {
	return &Ring{slots: make([]slot, records), most: max(2, bytes/chunkBytes), next: 1}
}

// Add stores a decision about the request with this id, and returns its number. It forgets the
// oldest record if the Ring is full.
func (r *Ring) Add(id, decision []byte) (number uint64) {
	number = r.next
	r.next++
	r.slots[number%uint64(len(r.slots))] = slot{key: hash.Of(id), decision: r.write(number, decision)}
	return number
}

// SetOutcome stores the outcome of a record, instead of an earlier one. It ignores a record that
// the Ring has forgotten.
func (r *Ring) SetOutcome(number uint64, outcome []byte) {
	if s := r.slot(number); s != nil {
		s.outcome = r.write(number, outcome)
	}
}

// slot returns the slot of a record; nil if there is no such record.
func (r *Ring) slot(number uint64) *slot {
	if number == 0 || number >= r.next || r.next-number > uint64(len(r.slots)) {
		return nil
	}
	return &r.slots[number%uint64(len(r.slots))]
}

// write stores a text of a record.
func (r *Ring) write(number uint64, text []byte) span {
	if len(text) > MaxRecord {
		return span{}
	}
	if n := len(r.begun); n == 0 || len(r.chunks[r.begun[n-1]].text)+len(text) > chunkBytes {
		r.begin()
	}
	now := r.begun[len(r.begun)-1]
	c := &r.chunks[now]
	at := len(c.text)
	c.text, c.last = append(c.text, text...), max(c.last, number)
	return span{c.generation, uint16(now), uint16(at), uint16(len(text))} //nolint:gosec // bounded by New, chunkBytes and MaxRecord
}

// begin begins another chunk: the oldest one if the Ring has forgotten all its records, or if there
// is no memory for a new one.
func (r *Ring) begin() {
	if n := len(r.chunks); n == r.most || n > 1 && r.slot(r.chunks[r.begun[0]].last) == nil {
		oldest := r.begun[0]
		c := &r.chunks[oldest]
		c.text, c.last = c.text[:0], 0
		c.generation++
		r.begun = append(slices.Delete(r.begun, 0, 1), oldest)
		return
	}
	r.chunks = append(r.chunks, chunk{text: make([]byte, 0, chunkBytes), generation: 1})
	r.begun = append(r.begun, len(r.chunks)-1)
}

// text returns the text at a span; nil if it is gone. The result is valid until the next change.
func (r *Ring) text(s span) []byte {
	if s.generation == 0 || r.chunks[s.chunk].generation != s.generation {
		return nil
	}
	return r.chunks[s.chunk].text[s.offset:][:s.size]
}

// Find calls show for the records that may be those of a request id, the latest first, until show
// returns false. Few of them have another id with the same hash. Outcome is nil if it is not known.
// Show must not keep the texts, nor change the Ring.
func (r *Ring) Find(id string, show func(decision, outcome []byte) bool) {
	key := hash.Of(id)
	for number := r.next - 1; number > 0 && r.next-number <= uint64(len(r.slots)); number-- {
		s := &r.slots[number%uint64(len(r.slots))]
		if s.key != key {
			continue
		}
		if decision := r.text(s.decision); decision != nil && !show(decision, r.text(s.outcome)) {
			return
		}
	}
}

// Records returns the number of records that the Ring has, and the bytes of their texts' memory.
func (r *Ring) Records() (records, bytes int) {
	for number := r.next - 1; number > 0 && r.next-number <= uint64(len(r.slots)); number-- {
		if r.text(r.slots[number%uint64(len(r.slots))].decision) != nil {
			records++
		}
	}
	return records, len(r.chunks) * chunkBytes
}
