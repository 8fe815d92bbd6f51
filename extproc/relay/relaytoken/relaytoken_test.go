package relaytoken_test

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

func sealer(tb testing.TB, key byte) *relaytoken.Sealer {
	tb.Helper()
	return relaytoken.NewSealer(sealing(tb, key))
}

// sealing returns an AEAD with a key.
func sealing(tb testing.TB, key byte) cipher.AEAD {
	tb.Helper()
	block, err := aes.NewCipher([]byte(strings.Repeat(string(key), 32)))
	if err != nil {
		tb.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		tb.Fatal(err)
	}
	return aead
}

var full = relaytoken.Request{
	Kind: relaytoken.Again, SentAt: 1700000000_000000001, Back: "back.sock", Listener: "Gateway ns/g http",
	Given: objects.Name{Namespace: "ns", Name: "given"}, All: true, Last: true, Fallback: "spare",
	Models: []relaytoken.Model{
		{Name: "gpt-4", Target: route.Target{
			Route: objects.Name{Namespace: "ns", Name: "r"},
			Pool:  objects.Name{Namespace: "ns", Name: "p"}, Adapter: "a01", Open: true, Priority: -3, Objectives: []v1alpha1.Objective{
				{Type: "TimeToFirstToken", Latency: v1alpha1.Latency{
					Value:    metav1.Duration{Duration: 200 * time.Millisecond},
					Quantile: &v1alpha1.Quantile{Numerator: 9, Denominator: 10},
				}},
				{Type: "EndToEnd", Latency: v1alpha1.Latency{Value: metav1.Duration{Duration: time.Hour}}},
			},
		}},
		{Name: "模型/v1\x00"},
	},
	Tried: []relaytoken.Copy{
		{Endpoint: "10.0.0.1:8000", At: "10.0.0.1:8001", Model: "a01-v2"},
		{Endpoint: "[fd00::1]:8000", At: "[fd00::1]:8000", Model: "a01"},
	},
}

// A token decrypts to its request, is a valid header value, and hides its content.
func TestTokenRoundTrip(t *testing.T) {
	s := sealer(t, 'k')
	for _, e := range []relaytoken.Request{full, {}, {Kind: relaytoken.Manage}} {
		sealed := s.Seal(e)
		got, ok := s.Open(sealed)
		if !ok || !reflect.DeepEqual(got, e) {
			t.Errorf("%+v is opened as %+v, %v", e, got, ok)
		}
		for _, r := range sealed {
			if r <= ' ' || r > '~' || r == ',' {
				t.Errorf("%q is not a valid header value", sealed)
			}
		}
		if sealed == s.Seal(e) {
			t.Error("the same is sealed the same way twice")
		}
	}
}

// Open rejects tokens with another key, and tokens that are changed, truncated or invented.
func TestForgedTokensAreRejected(t *testing.T) {
	s := sealer(t, 'k')
	sealed := s.Seal(full)
	for i := range sealed {
		changed := []byte(sealed)
		if changed[i]++; changed[i] == sealed[i] {
			continue
		}
		if _, ok := s.Open(string(changed)); ok && i < len(sealed)-1 { // the last base64 digit can have unused bits
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

// Every field of a request survives the round trip, including fields of nested types. Only a
// route's sharing is left out: the request gets that of the objects when it is relayed.
func TestEveryFieldSurvives(t *testing.T) {
	s := sealer(t, 'k')
	var e relaytoken.Request
	n := fill(reflect.ValueOf(&e).Elem(), 0)
	for i := range e.Models {
		e.Models[i].Target.Sharing = nil
	}
	if got, ok := s.Open(s.Seal(e)); !ok || !reflect.DeepEqual(got, e) {
		t.Errorf("with %d values\n%+v is opened as\n%+v, %v", n, e, got, ok)
	}
}

// fill sets each field in v to a different value, beginning with n+1, and returns the last value.
func fill(v reflect.Value, n int) int {
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			n = fill(field, n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			n = fill(v.Index(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		n = fill(v.Elem(), n)
	case reflect.Bool:
		v.SetBool(true)
		n++
	case reflect.Int32, reflect.Int64:
		n++
		v.SetInt(int64(n))
	case reflect.String:
		n++
		v.SetString(strconv.Itoa(n))
	default:
		panic(v.Type().String() + " is no part of a request")
	}
	return n
}

// unsealed returns a Sealer, the plain text of a request, and a function that encrypts any text.
func unsealed(tb testing.TB, e relaytoken.Request) (s *relaytoken.Sealer, text []byte, seal func([]byte) string) {
	tb.Helper()
	aead := sealing(tb, 'k')
	s = relaytoken.NewSealer(aead)
	sealed, err := base64.RawURLEncoding.DecodeString(s.Seal(e))
	if err != nil {
		tb.Fatal(err)
	}
	if text, err = aead.Open(nil, nil, sealed, nil); err != nil {
		tb.Fatal(err)
	}
	return s, text, func(text []byte) string { return base64.RawURLEncoding.EncodeToString(aead.Seal(nil, nil, text, nil)) }
}

// Open rejects tokens of another release that has the same key: their version differs, their
// message is longer or shorter, or they are JSON.
func TestTokensOfOtherReleasesAreRejected(t *testing.T) {
	s, text, seal := unsealed(t, full)
	if _, ok := s.Open(seal(text)); !ok {
		t.Fatal("it is not opened at all")
	}
	others := [][]byte{
		append(slices.Clone(text), 0), append(slices.Clone(text[:len(text)-1]), 2),
		append(slices.Clone(text[:len(text)-1]), 4), []byte(`{"kind":"sent","models":[]}`),
		{},
		{4, 1},
	}
	for i := range text {
		others = append(others, text[:i])
	}
	for _, other := range others {
		if e, ok := s.Open(seal(other)); ok || !reflect.DeepEqual(e, relaytoken.Request{}) {
			t.Errorf("%q is opened as %+v", other, e)
		}
	}
}

// A token with the right key and any content is rejected, or decrypts to a request that can be
// encrypted again.
func FuzzOpen(f *testing.F) {
	s, text, seal := unsealed(f, full)
	f.Add(text)
	slashes := full
	slashes.Given = objects.Name{Namespace: "/g", Name: "given"}
	_, text, _ = unsealed(f, slashes)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		e, ok := s.Open(seal(text))
		if !ok {
			return
		}
		if again, ok := s.Open(s.Seal(e)); !ok || !reflect.DeepEqual(again, e) {
			t.Errorf("%x is %+v, and sealed again %+v, %v", text, e, again, ok)
		}
	})
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
