package codec_test

import (
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/extproc/codec"
)

// A buffer has the requested length, and is at most a quarter larger, from 256 bytes.
func TestSizesOfBuffers(t *testing.T) {
	var b codec.Buffers
	rng := rand.New(rand.NewPCG(1, 2))
	check := func(n int) {
		got := b.Get(n)
		if len(*got) != n || cap(*got) > max(256, n+n/4) {
			t.Fatalf("for %d bytes there are %d, and room for %d", n, len(*got), cap(*got))
		}
		*got = (*got)[:n/2] // its user may have shortened it
		b.Put(got)
	}
	for n := range 5000 {
		check(n)
	}
	for range 5000 {
		check(rng.IntN(3 << 20))
	}
	for bits := range 22 {
		for n := max(0, 1<<bits-2); n < 1<<bits+3; n++ {
			check(n)
		}
	}
}

// A buffer is used again.
func TestBuffersAreUsedAgain(t *testing.T) {
	var b codec.Buffers
	for _, n := range []int{100, 100_000, 1 << 20} {
		if got := testing.AllocsPerRun(100, func() { b.Put(b.Get(n)) }); got > 0 {
			t.Errorf("%d bytes cost %.0f allocations", n, got)
		}
	}
}
