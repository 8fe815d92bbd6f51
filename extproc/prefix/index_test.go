package prefix_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/headgate/headgate/extproc/prefix"
)

// naive is an implementation of Index with plain lists and linear searches.
type naive struct {
	size  int
	lists map[int][]uint64 // blocks by endpoint, the oldest first
	most  map[int]int
}

func newNaive(size int) *naive {
	return &naive{size, make(map[int][]uint64), make(map[int]int)}
}

func (n *naive) limit(endpoint int) int {
	if most, told := n.most[endpoint]; told {
		return most
	}
	return prefix.DefaultBlocks
}

func (n *naive) Sent(endpoint int, blocks []uint64) {
	blocks = blocks[:min(len(blocks), n.limit(endpoint), n.size)]
	for _, b := range slices.Backward(blocks) {
		own := n.lists[endpoint]
		if i := slices.Index(own, b); i >= 0 {
			n.lists[endpoint] = append(slices.Delete(own, i, i+1), b)
			continue
		}
		if from, full := n.gives(endpoint); full {
			n.lists[from] = n.lists[from][1:]
		}
		n.lists[endpoint] = append(n.lists[endpoint], b)
	}
}

// gives determines the endpoint that must lose a block so that this endpoint can get one more. Full
// is true if any endpoint must.
func (n *naive) gives(endpoint int) (from int, full bool) {
	own, total, parts, largest := len(n.lists[endpoint]), 0, 0, 0
	for e := range 400 {
		if total += len(n.lists[e]); len(n.lists[e]) > 0 {
			parts++
		}
		if len(n.lists[e]) > len(n.lists[largest]) {
			largest = e
		}
	}
	switch {
	case own == n.limit(endpoint):
		return endpoint, true
	case total < n.size:
		return 0, false
	case own*parts >= n.size:
		return endpoint, true
	}
	return largest, true
}

func (n *naive) Forget(endpoint int) { delete(n.lists, endpoint) }

func (n *naive) Resize(endpoint, blocks int) {
	n.most[endpoint] = blocks
	if own := n.lists[endpoint]; len(own) > blocks {
		n.lists[endpoint] = own[len(own)-blocks:]
	}
}

func (n *naive) cached(endpoint int, blocks []uint64) int32 {
	for i, b := range blocks {
		if !slices.Contains(n.lists[endpoint], b) {
			return int32(i)
		}
	}
	return int32(len(blocks))
}

// prompt returns the blocks of a conversation with these turns. Conversations with equal first
// turns share a prefix.
func prompt(turns ...byte) []uint64 {
	h := new(prefix.Hasher)
	h.Begin(7)
	for _, turn := range turns {
		h.Write(slices.Repeat([]byte{turn}, prefix.BlockBytes))
	}
	return h.Blocks()
}

// same fails the test if the Index and the naive implementation disagree about a prompt.
func (n *naive) same(t *testing.T, x *prefix.Index, endpoints int, blocks []uint64, step string) {
	t.Helper()
	got := x.Cached(blocks, nil)
	for e := range endpoints {
		var is int32
		if e < len(got) {
			is = got[e]
		}
		if want := n.cached(e, blocks); is != want {
			t.Fatalf("%s: endpoint %d has %d blocks of %d, want %d", step, e, is, len(blocks), want)
		}
	}
}

// walk applies the same random operations to an Index and to a naive implementation. It compares
// the two after each operation.
func walk(t *testing.T, endpoints, size, steps int, draw func(n int) int) {
	x, n := prefix.New(size*64), newNaive(size)
	both := [...]prefix.Writer{x, n}
	for step := range steps {
		turns := make([]byte, draw(8))
		for i := range turns {
			turns[i] = byte(draw(2 + i/4*3))
		}
		blocks, e, what, room := prompt(turns...), draw(endpoints), draw(20), draw(12)
		for _, w := range both {
			switch what {
			case 0:
				w.Forget(e)
			case 1:
				w.Resize(e, room)
			default:
				w.Sent(e, blocks)
			}
		}
		n.same(t, x, endpoints, blocks, fmt.Sprintf("step %d, of %d endpoints and %d blocks", step, endpoints, size))
	}
	for e := range endpoints { // finally compares all remaining blocks
		for i := range n.lists[e] {
			n.same(t, x, endpoints, n.lists[e][i:i+1], "the end")
		}
	}
	for e := range endpoints {
		x.Forget(e)
	}
	if !x.Empty() {
		t.Error("all endpoints are forgotten, and the index is not empty")
	}
}

// An Index gives the same results as the naive implementation: with few endpoints, with many
// endpoints, and with far too little room.
func TestIndexMatchesTheNaiveOne(t *testing.T) {
	for _, c := range []struct{ endpoints, size, steps int }{
		{1, 5, 2000},
		{3, 10, 4000},
		{3, 1000, 2000},
		{70, 100, 4000},
		{200, 3000, 2000},
		{400, 20, 2000},
	} {
		for seed := range uint64(2) {
			walk(t, c.endpoints, c.size, c.steps, rand.New(rand.NewPCG(seed, 1)).IntN)
		}
	}
}

func FuzzIndex(f *testing.F) {
	f.Add(uint8(2), uint8(9), []byte("what is sent where"))
	f.Add(uint8(130), uint8(40), []byte("\x01\x02\x00\xff\x80 and so on and so forth"))
	f.Fuzz(func(t *testing.T, endpoints, size uint8, draws []byte) {
		draws = draws[:min(len(draws), 4096)]
		walk(t, 1+int(endpoints), 1+int(size), len(draws)/8, func(n int) int {
			if len(draws) == 0 {
				return 0
			}
			d := draws[0]
			draws = draws[1:]
			return int(d) % n
		})
	})
}

// The remaining blocks of each prompt that was sent to an endpoint are a prefix: if a block is
// present, so are all earlier blocks.
func TestPrefixesStayComplete(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	x := prefix.New(64 * 60)
	var sent [][]uint64
	for range 500 {
		turns := make([]byte, 1+random.IntN(12))
		for i := range turns {
			turns[i] = byte(random.IntN(3))
		}
		sent = append(sent, prompt(turns...))
		x.Resize(0, 20)
		x.Sent(random.IntN(4), sent[len(sent)-1])
		for _, blocks := range sent {
			has := x.Cached(blocks, nil)
			for i := range blocks { // a single block is found only if the prompt begins with it
				for e, n := range x.Cached(blocks[i:i+1], nil) {
					if n == 1 && int(has[e]) <= i {
						t.Fatalf("endpoint %d has block %d of a prompt, and only %d of those before it", e, i, has[e])
					}
				}
			}
		}
	}
}

func TestCached(t *testing.T) {
	x := prefix.New(1 << 20)
	if got := x.Cached(prompt(1, 2), nil); len(got) != 0 {
		t.Errorf("nothing was sent, and Cached returns %v", got)
	}
	x.Sent(2, prompt(1, 2, 3))
	x.Sent(0, prompt(1, 2))
	x.Sent(130, prompt(1, 2, 3, 4, 5))
	x.Sent(1, nil)
	for _, c := range []struct {
		of              []uint64
		at0, at2, at130 int32
	}{
		{nil, 0, 0, 0},
		{prompt(9), 0, 0, 0},
		{prompt(1), 1, 1, 1},
		{prompt(1, 9), 1, 1, 1},
		{prompt(1, 2, 3, 4), 2, 3, 4},
		{prompt(1, 2, 3, 4, 5, 6), 2, 3, 5},
		{prompt(2), 0, 0, 0},
	} {
		room := make([]int32, 500)
		for i := range room {
			room[i] = 99
		}
		got := x.Cached(c.of, room)
		if len(got) != 131 || &got[0] != &room[0] {
			t.Fatalf("%d numbers, want 131 in the given buffer", len(got))
		}
		want := make([]int32, 131)
		want[0], want[2], want[130] = c.at0, c.at2, c.at130
		if !slices.Equal(got, want) {
			t.Errorf("for %d blocks: %v", len(c.of), got)
		}
	}
}

// A popular prefix on 1,000 endpoints needs no allocation, and other prompts do not evict it.
func TestHotPrefix(t *testing.T) {
	x := prefix.New(prefix.DefaultBytes)
	hot := prompt(slices.Repeat([]byte{1}, 20)...)
	for e := range 1000 {
		x.Sent(e, hot)
		x.Sent(e, prompt(append(slices.Repeat([]byte{1}, 20), byte(e), byte(e>>8))...))
	}
	got := x.Cached(prompt(append(slices.Repeat([]byte{1}, 20), 5, 0, 7)...), nil)
	for e, n := range got {
		want := int32(20)
		if e == 5 {
			want = 22
		} else if e%256 == 5 {
			want = 21
		}
		if n != want {
			t.Fatalf("endpoint %d has %d blocks, want %d", e, n, want)
		}
	}
	if allocs := testing.AllocsPerRun(20, func() { got = x.Cached(hot, got); x.Sent(3, hot) }); allocs > 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}

// For prompts that are never repeated, the index uses no more memory than its limit, and contains
// the latest of them.
func TestIndexMemoryIsBounded(t *testing.T) {
	const most = 16 << 20
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	x := prefix.New(most)
	for e := range 50 {
		x.Resize(e, 1_000_000)
	}
	if grown := live() - before; grown > 100_000 {
		t.Errorf("an empty index takes %d bytes", grown)
	}
	blocks := make([]uint64, 3)
	random := rand.New(rand.NewPCG(3, 4))
	draw := func() []uint64 {
		for i := range blocks {
			blocks[i] = random.Uint64()
		}
		return blocks
	}
	first := slices.Clone(draw())
	x.Sent(0, first)
	for i := range 1_000_000 {
		x.Sent(i%50, draw())
		if i%99_999 == 0 {
			if got := x.Cached(blocks, nil)[i%50]; got != 3 {
				t.Fatalf("prompt %d: its endpoint has %d blocks of it, want 3", i, got)
			}
		}
	}
	if grown := live() - before; grown > most+100_000 || grown < most*9/10 {
		t.Errorf("it takes %d bytes, want some %d", grown, most)
	}
	if got := x.Cached(first, nil)[0]; got != 0 {
		t.Errorf("%d blocks of the first prompt are still there", got)
	}
	// Every endpoint has about an equal share.
	for e := range 50 {
		if kept := x.Len(e); kept < most/64/50*9/10 || kept > most/64/50*11/10 {
			t.Errorf("endpoint %d has %d blocks, want %d, its share", e, kept, most/64/50)
		}
	}
	runtime.KeepAlive(x)
}

// The index keeps at most as many blocks of an endpoint as its engine keeps, however many were
// sent.
func TestResize(t *testing.T) {
	x := prefix.New(1 << 20)
	x.Sent(0, prompt(1, 2, 3, 4))
	x.Sent(0, prompt(5, 6))
	x.Resize(0, 3)
	if got := x.Cached(prompt(1, 2, 3, 4), nil)[0]; got != 1 {
		t.Errorf("%d blocks of the older prompt, want its first", got)
	}
	if got := x.Cached(prompt(5, 6), nil)[0]; got != 2 {
		t.Errorf("%d blocks of the newer prompt, want 2", got)
	}
	x.Sent(0, prompt(7, 7, 7, 7, 7))
	if got := x.Cached(prompt(7, 7, 7, 7, 7), nil)[0]; got != 3 {
		t.Errorf("%d blocks of a prompt that is longer than the cache, want 3", got)
	}
	x.Resize(0, 0)
	x.Sent(0, prompt(1))
	if got := x.Len(0); got != 0 {
		t.Errorf("%d blocks at an endpoint without a cache", got)
	}
	x.Resize(0, 2)
	x.Sent(0, prompt(1))
	x.Forget(0)
	x.Sent(0, prompt(2, 3, 4))
	if got := x.Len(0); got != 2 {
		t.Errorf("after Forget %d blocks are kept, want 2 as before", got)
	}
}

// Familiar is an average over the latest prompts that are not short.
func TestFamiliar(t *testing.T) {
	x := prefix.New(prefix.DefaultBytes)
	long := make([]uint64, 100)
	for i := range long {
		long[i] = uint64(i + 1)
	}
	for _, c := range []struct {
		what string
		sent int
		asks []uint64
		want float64
	}{
		{"nothing was sent", 0, long, 0},
		{"half of a beginning", 16, long, 0.5},
		{"all of it and more", 50, long, 1},
		{"short prompts", 0, []uint64{1000, 1001, 1002}, 1},
		{"half of a prompt of 8 blocks", 0, []uint64{1, 2, 3, 4, 2000, 2001, 2002, 2003}, 0.5},
		{"others again", 0, []uint64{3000, 3001, 3002, 3003}, 0},
	} {
		x.Sent(1, long[:c.sent])
		for range 1000 {
			x.Cached(c.asks, nil)
		}
		if got := x.Familiar(); math.Abs(got-c.want) > 0.001 {
			t.Errorf("%s: Familiar is %.3f, want %g", c.what, got, c.want)
		}
	}
	if x.Cached(long, nil); math.Abs(x.Familiar()-1./64) > 1e-6 {
		t.Errorf("after one familiar prompt, Familiar is %.3f, want 1/64", x.Familiar())
	}
}

// A beginning is the first 32 blocks of a prompt, or all blocks if the prompt has 4 to 32.
func TestBeginning(t *testing.T) {
	all := make([]uint64, 100)
	for i := range all {
		all[i] = uint64(i + 1)
	}
	for of, want := range map[int]int{0: 0, 3: 0, 4: 4, 31: 31, 32: 32, 33: 32, 100: 32} {
		if hash, blocks := prefix.Beginning(all[:of]); blocks != want || hash != uint64(want) {
			t.Errorf("for %d blocks the beginning has %d, up to %d; want %d", of, blocks, hash, want)
		}
	}
}
