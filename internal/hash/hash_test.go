package hash

import (
	"hash/fnv"
	"testing"
)

func TestKnownHashes(t *testing.T) {
	for i, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} { // splitmix64 from seed 0
		if got := Mix(uint64(i+1) * Gamma); got != want {
			t.Errorf("output %d of splitmix64 is %x, want %x", i, got, want)
		}
	}
	for _, text := range []string{"", "a", "10.0.0.7:8000", "\x00\xff"} {
		h := fnv.New64a()
		_, _ = h.Write([]byte(text))
		if Of(text) != h.Sum64() || Of([]byte(text)) != h.Sum64() {
			t.Errorf("the hash of %q is %x, want %x", text, Of(text), h.Sum64())
		}
	}
}
