package errand_test

import (
	"crypto/aes"
	"crypto/cipher"
	"reflect"
	"strings"
	"testing"

	"github.com/headgate/headgate/extproc/errand"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

func sealer(tb testing.TB, key byte) *errand.Sealer {
	tb.Helper()
	block, err := aes.NewCipher([]byte(strings.Repeat(string(key), 32)))
	if err != nil {
		tb.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		tb.Fatal(err)
	}
	return errand.NewSealer(aead)
}

var full = errand.Errand{
	Kind: errand.Again, Back: "back.sock", Listener: "Gateway ns/g http", Given: objects.Name{Namespace: "ns", Name: "given"}, All: true, Last: true,
	Models: []errand.Model{
		{Name: "gpt-4", Target: route.Target{Route: objects.Name{Namespace: "ns", Name: "r"}, Pool: objects.Name{Namespace: "ns", Name: "p"}, Adapter: "a01", Open: true, Priority: -3}},
		{Name: "模型/v1\x00"},
	},
	Tried: []errand.Copy{{Endpoint: "10.0.0.1:8000", At: "10.0.0.1:8001", Model: "a01-v2"}, {Endpoint: "[fd00::1]:8000", At: "[fd00::1]:8000", Model: "a01"}},
}

// What is sealed comes out as it was, is a header's value, and says nothing of what is in it.
func TestWhatIsSealedIsOpened(t *testing.T) {
	s := sealer(t, 'k')
	for _, e := range []errand.Errand{full, {}, {Kind: errand.Manage}} {
		sealed := s.Seal(e)
		got, ok := s.Open(sealed)
		if !ok || !reflect.DeepEqual(got, e) {
			t.Errorf("%+v comes out as %+v, %v", e, got, ok)
		}
		for _, r := range sealed {
			if r <= ' ' || r > '~' || r == ',' {
				t.Errorf("%q is no value of a header", sealed)
			}
		}
		if sealed == s.Seal(e) {
			t.Error("the same is sealed the same way twice")
		}
	}
}

// Nothing else is opened: of another key, changed in any byte, cut off, or made up.
func TestNothingElseIsOpened(t *testing.T) {
	s := sealer(t, 'k')
	sealed := s.Seal(full)
	for i := range sealed {
		changed := []byte(sealed)
		if changed[i]++; changed[i] == sealed[i] {
			continue
		}
		if _, ok := s.Open(string(changed)); ok && i < len(sealed)-1 { // the last digit may have bits that nobody reads
			t.Errorf("with byte %d changed it is opened", i)
		}
		if _, ok := s.Open(sealed[:i]); ok {
			t.Errorf("%d bytes of it are opened", i)
		}
	}
	for _, text := range []string{"", "x", "{}", sealer(t, 'o').Seal(full), sealed + "A"} {
		if _, ok := s.Open(text); ok {
			t.Errorf("%q is opened", text)
		}
	}
}

func BenchmarkSeal(b *testing.B) {
	s := sealer(b, 'k')
	e := full
	e.Models, e.Tried = e.Models[:1], e.Tried[:1]
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(s.Seal(e))))
	}
}
