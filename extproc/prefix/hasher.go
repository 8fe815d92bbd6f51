// Package prefix estimates how much of a prompt each endpoint has in its KV cache. Engines cache
// the KV of prompts in blocks. For the next prompt they reuse its leading blocks that are cached,
// and compute only the rest. So the prompts that an endpoint got before show how much of the next
// prompt it has cached.
//
// A [Hasher] splits a prompt into blocks; each block is a hash of everything up to its end. An
// [Index] records which blocks were sent to which endpoints, for as long as the engines probably
// keep them. No prompt text is kept.
//
// The package is pure. Neither type is safe for concurrent use.
package prefix

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

const (
	// BlockBytes is the size of a block: about 64 tokens of English with most tokenizers. Engines
	// use blocks of 16 to 128 tokens.
	BlockBytes = 256
	// BlockTokens is the assumed number of tokens in a block, and TokenBytes the assumed number of
	// bytes per token. A token id in a tokenized prompt is written as TokenBytes bytes.
	BlockTokens = BlockBytes / TokenBytes
	TokenBytes  = 4
	// MaxBlocks is the maximum number of blocks of one prompt, which is 1 MiB. The bytes beyond
	// that are counted but not hashed.
	MaxBlocks = 4096
)

// Scope states which prompts can share KV: those with the same pool, model, adapter and salt.
type Scope struct {
	Pool, Model, Adapter string
	// Salt is the client's cache_salt (vLLM), usually empty. Clients without this salt cannot find
	// out which prompts are cached for it.
	Salt string
}

// Seed returns the start of the hash chain for prompts in the Scope. Prompts with different seeds
// share no block. The seed is the same in every process.
func (s Scope) Seed() uint64 {
	var seed uint64
	for _, of := range [...]string{s.Pool, s.Model, s.Adapter, s.Salt} {
		seed = chained(seed, xxhash.Sum64String(of))
	}
	return seed
}

// chained extends a hash by the next value. It is one round of a bijective mixer, so different
// values give different results.
func chained(before, next uint64) uint64 {
	x := (before*0x9e3779b97f4a7c15 + next) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// Hasher splits a prompt into blocks. Call Begin, then write the prompt in the order in which an
// engine processes it. A Hasher reuses its buffers.
type Hasher struct {
	blocks []uint64
	latest uint64           // hash of the last full block, or the seed
	open   [BlockBytes]byte // bytes after the last full block
	filled int              // number of bytes in open
	bytes  int
}

// Begin starts a prompt with the seed of its Scope.
func (h *Hasher) Begin(seed uint64) {
	h.blocks, h.latest, h.filled, h.bytes = h.blocks[:0], seed, 0, 0
}

// Write appends bytes to the prompt. It keeps no reference to span.
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

// Token appends a token id to the prompt.
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

// Opaque appends content that is not text, such as an image, by its hash. tokens is the number of
// tokens that an engine makes from the content.
func (h *Hasher) Opaque(hash uint64, tokens int) {
	for ; tokens > 0 && len(h.blocks) < MaxBlocks; tokens-- {
		h.Token(uint32(hash)) //nolint:gosec // the other half is the next one
		hash = bits.RotateLeft64(hash, 32)
	}
	h.bytes += tokens * TokenBytes
}

// fill records n more bytes in open, and hashes open if it is full.
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

// Mark separates the text before it from the text after it. It writes a byte below 9, which no JSON
// contains. The byte does not count as a byte of the prompt.
func (h *Hasher) Mark(what byte) {
	h.Write([]byte{what})
	h.bytes--
}

// Blocks returns the hashes of the prompt's full blocks in order; each hash covers everything up to
// the block's end. The result is valid until the next Begin.
func (h *Hasher) Blocks() []uint64 { return h.blocks }

// Bytes returns the length of the prompt in bytes.
func (h *Hasher) Bytes() int { return h.bytes }
