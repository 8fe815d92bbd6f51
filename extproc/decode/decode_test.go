package decode

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

var all = []Coding{Zstd, Gzip, Brotli, Deflate}

func encode(t testing.TB, body []byte, codings ...Coding) []byte {
	t.Helper()
	for _, c := range codings {
		var out bytes.Buffer
		var w io.WriteCloser
		switch c {
		case Zstd:
			z, err := zstd.NewWriter(&out, zstd.WithWindowSize(1<<16), zstd.WithZeroFrames(true))
			if err != nil {
				t.Fatal(err)
			}
			w = z
		case Gzip:
			w = gzip.NewWriter(&out)
		case Brotli:
			w = brotli.NewWriterLevel(&out, 5)
		case Deflate:
			w = zlib.NewWriter(&out)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		body = out.Bytes()
	}
	return body
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		header string
		want   []Coding
		err    error
	}{
		{"", nil, nil},
		{"identity", nil, nil},
		{"zstd", []Coding{Zstd}, nil},
		{"GZIP", []Coding{Gzip}, nil},
		{"x-gzip", []Coding{Gzip}, nil},
		{"br", []Coding{Brotli}, nil},
		{"deflate", []Coding{Deflate}, nil},
		{"gzip, zstd", []Coding{Gzip, Zstd}, nil},
		{"gzip,\tidentity ,, br", []Coding{Gzip, Brotli}, nil},
		{"gzip, gzip, gzip, gzip", nil, ErrUnsupported},
		{"compress", nil, ErrUnsupported},
		{"gzip, aes128gcm", nil, ErrUnsupported},
		{"gzip;q=1", nil, ErrUnsupported},
	} {
		got, err := Parse(c.header)
		if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, c.err) {
			t.Errorf("Parse(%q): %v, want %v %s", c.header, err, c.err, diff)
		}
	}
}

// A decoded body equals the original body for every coding and combination of codings.
func TestDecode(t *testing.T) {
	d := New(1 << 20)
	random := make([]byte, 200_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	for _, body := range [][]byte{{}, []byte("{}"), bytes.Repeat([]byte("a token "), 100_000), random, make([]byte, 1<<20)} {
		for _, codings := range [][]Coding{{Zstd}, {Gzip}, {Brotli}, {Deflate}, {Gzip, Zstd}, {Brotli, Gzip}, {Gzip, Gzip, Zstd}} {
			encoded := encode(t, body, codings...)
			before := slices.Clone(encoded)
			got, err := d.Decode(encoded, codings)
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes as %v: %d bytes, %v", len(body), codings, len(got), err)
			}
			if !bytes.Equal(before, encoded) {
				t.Errorf("%v: the encoded body was changed", codings)
			}
		}
	}
}

// The result for several members or frames is the concatenation of their contents.
func TestDecodeMembers(t *testing.T) {
	for _, c := range []Coding{Zstd, Gzip} {
		got, err := New(1<<20).Decode(append(encode(t, []byte("{\"model\":"), c), encode(t, []byte("\"m\"}"), c)...), []Coding{c})
		if string(got) != `{"model":"m"}` || err != nil {
			t.Errorf("%v: %q, %v", c, got, err)
		}
	}
}

// A body that is truncated, has bytes after its end, or is garbage yields an error and never a part
// of the body.
func TestDecodeBroken(t *testing.T) {
	d := New(1 << 20)
	body := bytes.Repeat([]byte(`{"model":"m","prompt":"x"}`), 300)
	for _, c := range all {
		whole := encode(t, body, c)
		for n := range whole {
			_, err := d.Decode(whole[:n], []Coding{c})
			if e := new(Error); !errors.As(err, &e) || e.Fault != Cut || e.Coding != c {
				t.Errorf("%v: %d of %d bytes: %v", c, n, len(whole), err)
			}
		}
		for _, tail := range [][]byte{{0}, []byte("garbage"), bytes.Repeat([]byte("long garbage"), 10_000)} {
			_, err := d.Decode(append(slices.Clone(whole), tail...), []Coding{c})
			if e := new(Error); !errors.As(err, &e) {
				t.Errorf("%v: %d bytes follow: %v", c, len(tail), err)
			}
		}
		_, err := d.Decode([]byte(`{"model":"m"}`), []Coding{c})
		if e := new(Error); !errors.As(err, &e) {
			t.Errorf("%v: plain JSON: %v", c, err)
		}
		if got, err := d.Decode(whole, []Coding{c}); !bytes.Equal(got, body) || err != nil {
			t.Errorf("%v: a valid body after invalid ones: %v", c, err)
		}
	}
}

// A zstd frame that asks for a larger window than the limit for a body yields an error.
func TestDecodeWindow(t *testing.T) {
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithWindowSize(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(make([]byte, 4<<20))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := New(4<<20).Decode(out.Bytes(), []Coding{Zstd}); err != nil {
		t.Error(err)
	}
	_, err = New(1<<19).Decode(out.Bytes(), []Coding{Zstd})
	if e := new(Error); !errors.As(err, &e) || e.Fault != Window {
		t.Errorf("a window of twice the limit: %v", err)
	}
}

// The limit applies to the exact number of decoded bytes, also between two codings. A body that
// exceeds it costs at most a few times the limit in memory, whatever its decoded size.
func TestDecodeTooLarge(t *testing.T) {
	const limit = 1 << 20
	d := New(limit)
	for _, c := range all {
		if got, err := d.Decode(encode(t, make([]byte, limit), c), []Coding{c}); len(got) != limit || err != nil {
			t.Errorf("%v: the limit: %d bytes, %v", c, len(got), err)
		}
		if _, err := d.Decode(encode(t, make([]byte, limit+1), c), []Coding{c}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v: one byte more: %v", c, err)
		}
		bomb := encode(t, make([]byte, 64*limit), c)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := d.Decode(bomb, []Coding{c}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v: 64 times the limit: %v", c, err)
		}
		runtime.ReadMemStats(&after)
		// brotli's window is up to 16 MiB
		if used := after.TotalAlloc - before.TotalAlloc; used > 24*limit {
			t.Errorf("%v: a bomb of %d bytes took %d MiB", c, len(bomb), used>>20)
		}
		if _, err := d.Decode(encode(t, make([]byte, 2*limit), c, Gzip), []Coding{c, Gzip}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v in gzip: %v", c, err)
		}
	}
}

// For any input, the result is within the limit or is an error that a client may read. Any encoded
// body decodes to the original.
func FuzzDecode(f *testing.F) {
	for _, c := range all {
		f.Add(encode(f, []byte(`{"model":"m","prompt":"some words, some words, some words"}`), c), uint8(c), uint8(c))
	}
	f.Add(append(encode(f, []byte("a"), Gzip), encode(f, []byte("b"), Gzip)...), uint8(Gzip), uint8(Gzip))
	f.Add([]byte("\x28\xb5\x2f\xfd\xa4\xff\xff\xff\xff"), uint8(Zstd), uint8(Brotli))
	const limit = 1 << 16
	d := New(limit)
	f.Fuzz(func(t *testing.T, body []byte, outer, inner uint8) {
		codings := []Coding{all[int(inner)%len(all)], all[int(outer)%len(all)]}
		got, err := d.Decode(body, codings[1:])
		if e := new(Error); err != nil && !errors.Is(err, ErrTooLarge) && !errors.As(err, &e) || len(got) > limit {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if len(body) > limit/2 {
			return
		}
		if got, err := d.Decode(encode(t, body, codings...), codings); err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%v: %q was decoded as %q, %v", codings, body, got, err)
		}
	})
}
