// Package prefix knows how much of a prompt each endpoint probably has in its KV cache. Engines
// keep what they computed of prompts in blocks, and compute of another prompt only what is behind
// the blocks that they have. So what an endpoint was sent before says how much of the next prompt
// it need not compute.
//
// A [Hasher] makes blocks of a prompt, each a hash of everything up to its end. An [Index]
// remembers which endpoint was sent which blocks, for as long as its engine probably keeps them.
// Nothing of a prompt's text stays.
//
// The package is pure. Neither type is safe for concurrent use.
package prefix

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

const (
	// BlockBytes is how much of a prompt a block is: 64 tokens of English, as most tokenizers cut
	// it. Engines' own blocks have 16 to 128 tokens.
	BlockBytes = 256
	// BlockTokens is how many tokens a block is taken to be, and TokenBytes how many bytes a token:
	// that of a prompt of token ids is written in as many.
	BlockTokens = BlockBytes / TokenBytes
	TokenBytes  = 4
	// MaxBlocks bounds the blocks of one prompt: 1 MiB. What is behind them is counted and not
	// hashed.
	MaxBlocks = 4096
)

// Scope is where prompts share KV: an engine takes none of another adapter or salt for one prompt,
// and pools have no engine in common as far as it matters.
type Scope struct {
	Pool, Model, Adapter string
	// Salt is what the client gave so that others cannot find out what it asked (vLLM's
	// cache_salt), empty if it gave none.
	Salt string
}

// Seed is what the blocks of a prompt in the Scope begin with: equal prompts of two seeds have no
// block in common. It is the same in every process.
func (s Scope) Seed() uint64 {
	var seed uint64
	for _, of := range [...]string{s.Pool, s.Model, s.Adapter, s.Salt} {
		seed = chained(seed, xxhash.Sum64String(of))
	}
	return seed
}

// chained is the hash of what has a hash, with what comes behind it: one round of a mixer whose
// steps lose nothing.
func chained(before, next uint64) uint64 {
	x := (before*0x9e3779b97f4a7c15 + next) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// Hasher makes blocks of a prompt, which is written to it in the order in which an engine sees it.
// It keeps its buffers from prompt to prompt. Begin before the first.
type Hasher struct {
	blocks []uint64
	latest uint64           // the hash of the last full block, or the seed
	open   [BlockBytes]byte // what is behind the last full block
	filled int              // of open
	bytes  int
}

// Begin begins a prompt, with the seed of its Scope.
func (h *Hasher) Begin(seed uint64) {
	h.blocks, h.latest, h.filled, h.bytes = h.blocks[:0], seed, 0, 0
}

// Write goes on with bytes of the prompt. It keeps none of span.
func (h *Hasher) Write(span []byte) {
	h.bytes += len(span)
	for len(span) > 0 && len(h.blocks) < MaxBlocks {
		if h.filled == 0 && len(span) >= BlockBytes {
			h.block(span[:BlockBytes])
			span = span[BlockBytes:]
			continue
		}
		n := copy(h.open[h.filled:], span)
		span = span[n:]
		h.fill(n)
	}
}

// Token goes on with a token of the prompt.
func (h *Hasher) Token(id uint32) {
	if h.filled > BlockBytes-TokenBytes || len(h.blocks) == MaxBlocks {
		var span [TokenBytes]byte
		binary.LittleEndian.PutUint32(span[:], id)
		h.Write(span[:])
		return
	}
	binary.LittleEndian.PutUint32(h.open[h.filled:], id)
	h.bytes += TokenBytes
	h.fill(TokenBytes)
}

// Opaque goes on with what is no text, such as an image, by a hash of it: an engine makes so many
// tokens of it.
func (h *Hasher) Opaque(hash uint64, tokens int) {
	for ; tokens > 0 && len(h.blocks) < MaxBlocks; tokens-- {
		h.Token(uint32(hash)) //nolint:gosec // the other half is the next one
		hash = bits.RotateLeft64(hash, 32)
	}
	h.bytes += tokens * TokenBytes
}

// fill says that so many bytes more are in open.
func (h *Hasher) fill(n int) {
	if h.filled += n; h.filled == BlockBytes {
		h.block(h.open[:])
		h.filled = 0
	}
}

func (h *Hasher) block(full []byte) {
	h.latest = chained(h.latest, xxhash.Sum64(full))
	h.blocks = append(h.blocks, h.latest)
}

// Mark says that something else begins: what is before and what is behind does not run together. No
// JSON has a byte below 9 in it, so that it can be used for that. It counts as no byte of the
// prompt.
func (h *Hasher) Mark(what byte) {
	h.Write([]byte{what})
	h.bytes--
}

// Blocks are the hashes of the prompt's full blocks, in order: each of everything up to its end.
// They are good until the next Begin.
func (h *Hasher) Blocks() []uint64 { return h.blocks }

// Bytes is how long the prompt is.
func (h *Hasher) Bytes() int { return h.bytes }
