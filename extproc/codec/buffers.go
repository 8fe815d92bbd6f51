package codec

import (
	"math/bits"
	"sync"
)

// Buffers is a pool of buffers. Unlike gRPC's own pool it does not clear them, and its sizes are
// close to each other: a buffer is at most a quarter larger than what is requested. Large requests
// wait in their buffers. The zero Buffers is ready for use. It is safe for concurrent use, and
// implements [mem.BufferPool].
type Buffers struct {
	sizes [classes]sync.Pool // of *[]byte; by class
	// Returned is called with each buffer that is returned. It is for tests; nil means that
	// nothing is called.
	Returned func([]byte)
}

const (
	// smallest is the size of the smallest buffers; half as large ones would have no fourths.
	smallest = 1 << smallestBits
	// largest is the size of the largest buffers that are pooled, for bodies of 1 MiB in their
	// envelopes. Larger ones are rare.
	largest      = 5 << 18
	smallestBits = 8
	// classes is the number of sizes: four from each power of two to the next.
	classes = (20-smallestBits)*4 + 2
)

// classOf returns the class of the smallest buffers that have n bytes, and their size.
func classOf(n int) (class, size int) {
	if n <= smallest {
		return 0, smallest
	}
	power := bits.Len(uint(n-1)) - 1 // n is more than this power of two, and at most the next one
	step := 1 << (power - 2)
	steps := (n - 1 - 1<<power) >> (power - 2)
	return (power-smallestBits)*4 + steps + 1, 1<<power + (steps+1)*step
}

// Get returns a buffer with n bytes. Their values are arbitrary.
func (b *Buffers) Get(n int) *[]byte {
	if n > largest {
		large := make([]byte, n)
		return &large
	}
	class, size := classOf(n)
	if got, ok := b.sizes[class].Get().(*[]byte); ok {
		*got = (*got)[:n]
		return got
	}
	fresh := make([]byte, n, size)
	return &fresh
}

// Put returns a buffer that Get returned. It may be shorter now. Nothing may use it afterwards.
func (b *Buffers) Put(buffer *[]byte) {
	whole := (*buffer)[:cap(*buffer)]
	if b.Returned != nil {
		b.Returned(whole)
	}
	if len(whole) > largest {
		return
	}
	if class, size := classOf(len(whole)); size == len(whole) {
		b.sizes[class].Put(buffer)
	}
}
