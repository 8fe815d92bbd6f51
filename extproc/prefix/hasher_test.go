package prefix_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headgate/headgate/extproc/prefix"
)

func text(n int) []byte {
	random := rand.New(rand.NewPCG(1, uint64(n)))
	all := make([]byte, n)
	for i := range all {
		all[i] = byte(random.UintN(256))
	}
	return all
}

func hashed(seed uint64, spans ...[]byte) []uint64 {
	h := new(prefix.Hasher)
	h.Begin(seed)
	for _, s := range spans {
		h.Write(s)
	}
	return h.Blocks()
}

// Hashes are the same in every process, on every machine and in every version, because several
// extprocs may exchange them.
func TestHashesNeverChange(t *testing.T) {
	h := new(prefix.Hasher)
	h.Begin(prefix.Scope{Pool: "default/pool", Model: "llama", Adapter: "sql", Salt: "salt"}.Seed())
	for i := range 1000 {
		h.Write([]byte{byte(i), byte(i >> 8)})
	}
	want := []uint64{
		0xf6d47e981a84a6da, 0x5e6d4de7251c036c, 0x4956ca13ea7dbe7d, 0xf96931cc467e3c13, 0x274801ddb901aa6a, 0xfbc9f66555434399,
		0x5d1965f5121cdc16,
	}
	if got := h.Blocks(); !slices.Equal(got, want) {
		t.Errorf("blocks are %#x, want %#x", got, want)
	}
}

// However a prompt is cut into spans, its blocks are the same.
func TestHashesDoNotDependOnSpans(t *testing.T) {
	prompt := text(5000)
	want := hashed(3, prompt)
	if len(want) != 5000/prefix.BlockBytes {
		t.Fatalf("%d blocks", len(want))
	}
	random := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		var spans [][]byte
		most := 1 + random.IntN(1000)
		for rest := prompt; len(rest) > 0; {
			n := min(len(rest), random.IntN(most+1))
			spans = append(spans, rest[:n])
			rest = rest[n:]
		}
		if got := hashed(3, spans...); !slices.Equal(got, want) {
			t.Fatalf("%d spans give other blocks", len(spans))
		}
	}
}

// A block depends on the seed and on every byte before its end, and not on later bytes.
func TestBlocksDependOnAllBefore(t *testing.T) {
	prompt := text(4 * prefix.BlockBytes)
	want := hashed(3, prompt)
	for i := range prompt {
		other := slices.Clone(prompt)
		other[i]++
		got := hashed(3, other)
		for block := range want {
			if same := got[block] == want[block]; same != (block < i/prefix.BlockBytes) {
				t.Fatalf("byte %d is changed: that block %d is the same is %v", i, block, same)
			}
		}
	}
	if got := hashed(4, prompt); got[0] == want[0] || got[3] == want[3] {
		t.Error("another seed gives the same blocks")
	}
	if got := hashed(3, slices.Concat(prompt[prefix.BlockBytes:], prompt[:prefix.BlockBytes])); got[3] == want[3] {
		t.Error("blocks in another order end in the same hash")
	}
}

func TestSeed(t *testing.T) {
	seeds := make(map[uint64]prefix.Scope)
	for _, of := range []prefix.Scope{
		{},
		{Pool: "a"},
		{Model: "a"},
		{Adapter: "a"},
		{Salt: "a"},
		{Pool: "a", Model: "b"},
		{Pool: "ab"},
		{Pool: "b", Model: "a"},
		{"a", "b", "c", "d"},
		{"a", "b", "d", "c"},
		{Pool: "a\x00b"},
	} {
		if other, there := seeds[of.Seed()]; there {
			t.Errorf("%q has the seed of %q", of, other)
		}
		seeds[of.Seed()] = of
	}
}

// A token occupies four bytes, at any offset.
func TestTokens(t *testing.T) {
	for before := range 6 {
		var want []byte
		want = append(want, text(before)...)
		h := new(prefix.Hasher)
		h.Begin(3)
		h.Write(text(before))
		for id := range uint32(1000) {
			id *= 12345
			want = binary.LittleEndian.AppendUint32(want, id)
			h.Token(id)
		}
		if !slices.Equal(h.Blocks(), hashed(3, want)) {
			t.Errorf("after %d bytes tokens give other blocks than their bytes", before)
		}
		if h.Bytes() != len(want) {
			t.Errorf("%d bytes, want %d", h.Bytes(), len(want))
		}
	}
}

func TestMark(t *testing.T) {
	h := new(prefix.Hasher)
	h.Begin(3)
	h.Mark(1)
	h.Write(text(300))
	if want := hashed(3, []byte{1}, text(300)); !slices.Equal(h.Blocks(), want) || h.Bytes() != 300 {
		t.Errorf("%#x of %d bytes, want %#x of 300", h.Blocks(), h.Bytes(), want)
	}
}

// The bytes after the last block are counted but not hashed.
func TestLongPromptsAreTruncated(t *testing.T) {
	const most = prefix.MaxBlocks * prefix.BlockBytes
	prompt := text(most + 3000)
	want := hashed(3, prompt[:most])
	h := new(prefix.Hasher)
	h.Begin(3)
	for _, span := range [][]byte{prompt[:100], prompt[100 : most-10], prompt[most-10 : most+20], prompt[most+20:]} {
		h.Write(span)
	}
	for id := range uint32(100) {
		h.Token(id)
	}
	if !slices.Equal(h.Blocks(), want) || len(want) != prefix.MaxBlocks {
		t.Errorf("%d blocks, want the %d of its beginning", len(h.Blocks()), prefix.MaxBlocks)
	}
	if h.Bytes() != len(prompt)+400 {
		t.Errorf("%d bytes, want %d", h.Bytes(), len(prompt)+400)
	}
}

// Opaque content has the given number of tokens. All bits of its hash change the blocks. It is
// counted even after the last block.
func TestOpaque(t *testing.T) {
	opaque := func(before int, hash uint64, tokens int) (blocks []uint64, bytes int) {
		h := new(prefix.Hasher)
		h.Begin(1)
		h.Write(text(before))
		h.Opaque(hash, tokens)
		return slices.Clone(h.Blocks()), h.Bytes()
	}
	all, bytes := opaque(0, 5, prefix.BlockTokens)
	if len(all) != 1 || bytes != prefix.BlockBytes {
		t.Errorf("%d tokens are %d blocks of %d bytes", prefix.BlockTokens, len(all), bytes)
	}
	for _, other := range []uint64{6, 5 + 1<<32, 5 << 32} {
		if has, _ := opaque(0, other, prefix.BlockTokens); slices.Equal(has, all) {
			t.Errorf("%d has the blocks of 5", other)
		}
	}
	const most = prefix.MaxBlocks * prefix.BlockBytes
	if all, bytes := opaque(most-prefix.TokenBytes, 5, 1e9); len(all) != prefix.MaxBlocks || bytes != most+(1e9-1)*prefix.TokenBytes {
		t.Errorf("after the last block, there are %d blocks of %d bytes", len(all), bytes)
	}
}

func TestHashingAllocatesNothing(t *testing.T) {
	prompt := text(100_000)
	var h prefix.Hasher
	do := func() {
		h.Begin(prefix.Scope{Pool: "default/pool", Model: "llama", Adapter: "sql"}.Seed())
		h.Mark(1)
		h.Write(prompt)
		h.Token(5)
		h.Write(prompt)
	}
	if allocs := testing.AllocsPerRun(20, do); allocs > 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}
