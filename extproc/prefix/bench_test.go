package prefix_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/headgate/headgate/extproc/prefix"
)

// ratio returns the time of one divided by the time of other, as the median over many rounds. Each
// round runs both, so that a busy machine slows down both.
func ratio(b *testing.B, one, other func()) {
	took := func(do func()) float64 {
		began := time.Now()
		do()
		return float64(time.Since(began))
	}
	var all []float64
	for b.Loop() {
		all = append(all, took(one)/took(other))
	}
	slices.Sort(all)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(all[len(all)/2], "ratio")
}

// BenchmarkHasher measures the speed of hashing prompts, relative to that of xxhash: go test
// ./extproc/prefix -run "^$" -bench Hasher.
func BenchmarkHasher(b *testing.B) {
	for _, kb := range []int{4, 16, 64, 256, 1024} {
		prompt := bytes.Repeat([]byte("0123456789abcdef"), kb<<10/16)
		times := max(1, 1024/kb)
		b.Run(fmt.Sprintf("prompt=%dKB", kb), func(b *testing.B) {
			b.ReportAllocs()
			var h prefix.Hasher
			var sum uint64
			ratio(b, func() {
				for range times {
					sum += xxhash.Sum64(prompt)
				}
			}, func() {
				for range times {
					h.Begin(1)
					h.Write(prompt)
				}
			})
		})
	}
}

// BenchmarkCached measures the time to find a prompt's blocks, relative to a lookup in a Go map of
// the same size: go test ./extproc/prefix -run "^$" -bench Cached.
func BenchmarkCached(b *testing.B) {
	for _, c := range []struct{ endpoints, each, shared int }{
		{1, 8192, 0},    // a prompt at only one endpoint
		{16, 8192, 32},  // all endpoints have the first 32 blocks
		{100, 8192, 32}, // the blocks fill the whole memory
		{1000, 1000, 32},
	} {
		b.Run(fmt.Sprintf("endpoints=%d/blocks=%d/shared=%d", c.endpoints, c.endpoints*c.each, c.shared), func(b *testing.B) {
			b.ReportAllocs()
			x, plain := prefix.New(prefix.DefaultBytes), make(map[uint64]uint32)
			random := rand.New(rand.NewPCG(1, 2))
			var prompts [][]uint64
			shared := make([]uint64, c.shared)
			for i := range shared {
				shared[i] = random.Uint64()
			}
			const long = 100
			for e := range c.endpoints {
				x.Resize(e, c.each)
				for range c.each / long {
					p := slices.Clone(shared)
					for len(p) < long {
						p = append(p, random.Uint64())
					}
					x.Sent(e, p)
					prompts = append(prompts, p)
					for _, hash := range p {
						plain[hash] = uint32(e)
					}
				}
			}
			random.Shuffle(len(prompts), func(i, j int) { prompts[i], prompts[j] = prompts[j], prompts[i] })
			prompts = prompts[:min(len(prompts), 200)]
			var sum int
			var dst []int32
			ratio(b, func() {
				for _, p := range prompts {
					dst = x.Cached(p, dst)
					sum += len(dst)
				}
			}, func() {
				for _, p := range prompts {
					for _, hash := range p {
						sum += int(plain[hash])
					}
				}
			})
		})
	}
}

// BenchmarkSent measures how long it takes to record a prompt: one that is already in the index, a
// new one while there is room, and a new one that evicts others. It also measures how long it takes
// to forget an endpoint.
func BenchmarkSent(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	x := prefix.New(prefix.DefaultBytes)
	prompt := make([]uint64, 32) // 8 KB of text
	draw := func() []uint64 {
		for i := range prompt {
			prompt[i] = random.Uint64()
		}
		return prompt
	}
	for range 40_000 {
		x.Sent(random.IntN(200), draw())
	}
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			x.Sent(3, prompt)
		}
	})
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			x.Sent(random.IntN(200), draw())
		}
	})
	b.Run("forget", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			for range prefix.DefaultBlocks / 32 {
				x.Sent(3, draw())
			}
			b.StartTimer()
			x.Forget(3)
		}
	})
}

// BenchmarkSentBesideHash measures the time to record a prompt of 100 KB, relative to the time to
// hash it: go test ./extproc/prefix -run "^$" -bench SentBesideHash. The index is full, so that a
// new prompt evicts others.
func BenchmarkSentBesideHash(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	prompt := bytes.Repeat([]byte("0123456789abcdef"), 100<<10/16)
	var h prefix.Hasher
	hash := func() { // a new prompt each time
		h.Begin(random.Uint64())
		h.Write(prompt)
	}
	const endpoints = 64
	x := prefix.New(prefix.DefaultBytes)
	for i := range 2 * prefix.DefaultBytes / 64 / 400 {
		hash()
		x.Sent(i%endpoints, h.Blocks())
	}
	known := slices.Clone(h.Blocks())
	b.Run("again", func(b *testing.B) { ratio(b, func() { x.Sent(3, known) }, hash) })
	b.Run("new", func(b *testing.B) { ratio(b, func() { x.Sent(random.IntN(endpoints), h.Blocks()) }, hash) })
}
