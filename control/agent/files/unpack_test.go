package files_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
)

// item is an entry of an archive; a regular file unless kind is set.
type item struct {
	name, body string
	kind       byte
	link       string
	mode       int64
}

// tarOf returns an archive of these entries.
func tarOf(t *testing.T, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h := &tar.Header{
			Name: i.name, Typeflag: i.kind, Linkname: i.link, Mode: 0o644 | i.mode, Size: int64(len(i.body)), Format: tar.FormatPAX,
		}
		if i.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, i.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipOf(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(content)
	if err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstdOf(t *testing.T, content []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(content, nil)
}

func zipOf(t *testing.T, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, i := range items {
		h := &zip.FileHeader{Name: i.name, Method: zip.Deflate}
		switch i.kind {
		case tar.TypeSymlink:
			h.SetMode(0o777 | fs.ModeSymlink)
		case tar.TypeFifo:
			h.SetMode(0o644 | fs.ModeNamedPipe)
		default:
			h.SetMode(0o644)
		}
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, i.body+i.link); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// layers is a source of archives that are unpacked in their order.
func layers(a fetch.Archive, contents ...[]byte) *source {
	s := &source{content: make(map[string][]byte), archives: make(map[string]fetch.Archive), digests: true}
	for i, content := range contents {
		name := fmt.Sprint("layer", i)
		s.content[name], s.archives[name] = content, a
	}
	return s
}

const dir, symlink, hardLink = tar.TypeDir, tar.TypeSymlink, tar.TypeLink

func TestUnpack(t *testing.T) {
	plain := fetch.Archive{Format: "tar"}
	image := fetch.Archive{Format: "tar", Compression: "gzip", Prefix: "models/", Layer: true}
	long := strings.Repeat("ab", 4000)
	for name, c := range map[string]struct {
		source *source
		want   map[string]string
	}{
		"a tar": {
			layers(plain, tarOf(t, item{name: "./a", body: long}, item{name: "sub/", kind: dir}, item{name: "sub/b", body: "2"})),
			map[string]string{"a": long, "sub/b": "2"},
		},
		"a zip": {
			layers(fetch.Archive{Format: "zip"}, zipOf(t, item{name: "sub/a", body: "1"}, item{name: "l", kind: symlink, link: "sub/a"})),
			map[string]string{"sub/a": "1", "l": "-> sub/a"},
		},
		"zstd": {
			layers(fetch.Archive{Format: "tar", Compression: "zstd"}, zstdOf(t, tarOf(t, item{name: "a", body: long}))),
			map[string]string{"a": long},
		},
		"layers": {
			layers(image,
				gzipOf(t, tarOf(t, item{name: "etc/passwd", body: "x"}, item{name: "models/", kind: dir}, item{name: "models/a", body: "1"},
					item{name: "models/gone", body: "1"}, item{name: "models/d/old", body: "1"}, item{name: "models/e/old", body: "1"},
					item{name: "models/file", body: "1"}, item{name: "models/folder/x", body: "1"})),
				gzipOf(t, tarOf(t, item{name: "models/.wh.gone"}, item{name: "models/d/new", body: "2"}, item{name: "models/d/.wh..wh..opq"},
					item{name: "models/.wh.e"}, item{name: "models/e/new", body: "2"}, item{name: "models/a", body: "2"},
					item{name: "models/file/x", body: "2"}, item{name: "models/.wh.file"}, item{name: "models/folder", body: "2"},
					item{name: "dev/null", kind: tar.TypeChar}))),
			nil, // a folder cannot be made where a file is
		},
		"whiteouts": {
			layers(image,
				gzipOf(t, tarOf(t, item{name: "models/a", body: "1"},
					item{name: "models/gone", body: "1"}, item{name: "models/d/old", body: "1"}, item{name: "models/e/old", body: "1"},
					item{name: "models/folder/x", body: "1"})),
				gzipOf(t, tarOf(t, item{name: "models/.wh.gone"}, item{name: "models/d/new", body: "2"}, item{name: "models/d/.wh..wh..opq"},
					item{name: "models/.wh.e"}, item{name: "models/e/new", body: "2"}, item{name: "models/a", body: "2"},
					item{name: "models/folder", body: "2"}, item{name: "dev/null", kind: tar.TypeChar}))),
			map[string]string{"a": "2", "d/new": "2", "e/new": "2", "folder": "2"},
		},
		"a whiteout of everything": {
			layers(image, gzipOf(t, tarOf(t, item{name: "models/a", body: "1"})),
				gzipOf(t, tarOf(t, item{name: "models/b", body: "2"}, item{name: ".wh.models"}))),
			map[string]string{"b": "2"},
		},
		"links": {
			layers(plain, tarOf(t, item{name: "blobs/x", body: "1"}, item{name: "snap/m/x", kind: symlink, link: "../../blobs/x"},
				item{name: "twin", kind: hardLink, link: "blobs/x"}, item{name: "later", kind: symlink, link: "y"}, item{name: "y", body: "3"}),
				tarOf(t, item{name: "blobs/x", body: "2"})),
			map[string]string{"blobs/x": "2", "snap/m/x": "-> ../../blobs/x", "twin": "1", "later": "-> y", "y": "3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			s := open(t, t.TempDir(), m, nil)
			m.put("oci://r/i", c.source)
			local, err := s.Fetch(t.Context(), "m", of("oci://r/i"))
			switch {
			case c.want == nil:
				wantReason(t, err, fetch.Unsafe)
			case err != nil:
				t.Fatal(err)
			default:
				wantTree(t, local.Path, c.want)
			}
			wantEmpty(t, s, m)
		})
	}
}

// claiming returns a zip with one file. Its zip64 end record claims a number of entries.
func claiming(t *testing.T, entries uint64) []byte {
	t.Helper()
	b := zipOf(t, item{name: "x", body: string(noise(1, 4<<20))})
	at := uint64(len(b) - 22) // the end record
	length := uint64(binary.LittleEndian.Uint32(b[at+12:]))
	le := binary.LittleEndian
	b = append(b[:at], "PK\x06\x06"...)
	b = le.AppendUint32(le.AppendUint64(b, 44), 45<<16|45)
	for _, v := range []uint64{0, entries, entries, length, at - length} { // the disks are 0
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(append(b, "PK\x06\x07"...), 0)
	b = le.AppendUint32(le.AppendUint64(b, at), 1)
	return append(append(append(b, "PK\x05\x06\x00\x00\x00\x00"...), bytes.Repeat([]byte{0xff}, 12)...), 0, 0)
}

func TestUnpackRefuses(t *testing.T) {
	plain := fetch.Archive{Format: "tar"}
	many := make([]item, 100_001)
	for i := range many {
		many[i] = item{name: "other/x"}
	}
	long := make([]item, 300)
	for i := range long {
		long[i] = item{name: strings.Repeat("x", 60_000)}
	}
	zeros := make([]byte, 100<<20)
	ok := item{name: "ok", body: "1"}
	for name, c := range map[string]struct {
		source *source
		reason fetch.Reason
	}{
		"a parent":               {layers(plain, tarOf(t, ok, item{name: "../x"})), fetch.Unsafe},
		"a parent in the middle": {layers(plain, tarOf(t, ok, item{name: "a/../../x"})), fetch.Unsafe},
		"an absolute name":       {layers(plain, tarOf(t, ok, item{name: "/x"})), fetch.Unsafe},
		"an absolute link": {
			layers(plain, tarOf(t, ok, item{name: "x", kind: symlink, link: "/etc/passwd"})),
			fetch.Unsafe,
		},
		"a link out": {
			layers(plain, tarOf(t, ok, item{name: "a/x", kind: symlink, link: "../../y"})),
			fetch.Unsafe,
		},
		"a link to nothing": {layers(plain, tarOf(t, ok, item{name: "x", kind: symlink, link: "y"})), fetch.Unsafe},
		"a link to itself":  {layers(plain, tarOf(t, ok, item{name: "x", kind: symlink, link: "x"})), fetch.Unsafe},
		"a hard link out": {
			layers(plain, tarOf(t, ok, item{name: "x", kind: hardLink, link: "../../ok"})),
			fetch.Unsafe,
		},
		"an absolute hard link": {
			layers(plain, tarOf(t, ok, item{name: "x", kind: hardLink, link: "/etc/passwd"})),
			fetch.Unsafe,
		},
		"a hard link to a link": {
			layers(plain, tarOf(t, ok, item{name: "l", kind: symlink, link: "ok"}, item{name: "x", kind: hardLink, link: "l"})),
			fetch.Unsafe,
		},
		"a device": {layers(plain, tarOf(t, ok, item{name: "x", kind: tar.TypeBlock})), fetch.Unsafe},
		"a pipe":   {layers(plain, tarOf(t, ok, item{name: "x", kind: tar.TypeFifo})), fetch.Unsafe},
		"a pipe in a zip": {
			layers(fetch.Archive{Format: "zip"}, zipOf(t, ok, item{name: "x", kind: tar.TypeFifo})),
			fetch.Unsafe,
		},
		"a link out in a zip": {
			layers(fetch.Archive{Format: "zip"}, zipOf(t, ok, item{name: "x", kind: symlink, link: "../y"})),
			fetch.Unsafe,
		},
		"a parent in a zip":   {layers(fetch.Archive{Format: "zip"}, zipOf(t, ok, item{name: "../y"})), fetch.Unsafe},
		"setuid":              {layers(plain, tarOf(t, ok, item{name: "x", mode: 0o4000})), fetch.Unsafe},
		"a file below a file": {layers(plain, tarOf(t, ok, item{name: "ok/x"})), fetch.Unsafe},
		"many entries":        {layers(fetch.Archive{Format: "tar", Prefix: "models"}, tarOf(t, many...)), fetch.Unsafe},
		"zeros without end": {
			layers(fetch.Archive{Format: "tar", Compression: "gzip"}, gzipOf(t, tarOf(t, item{name: "x", body: string(zeros)}))),
			fetch.Unsafe,
		},
		"zeros in a zip": {
			layers(fetch.Archive{Format: "zip"}, zipOf(t, item{name: "x", body: string(zeros)})),
			fetch.Unsafe,
		},
		"a zip that claims many entries": {layers(fetch.Archive{Format: "zip"}, claiming(t, 2<<16+1)), fetch.Unsafe},
		"a zip with a large directory": {
			layers(fetch.Archive{Format: "zip", Prefix: "models/"}, zipOf(t, long...)),
			fetch.Unsafe,
		},
		"no files": {layers(fetch.Archive{Format: "tar", Prefix: "models/"}, tarOf(t, ok)), fetch.Empty},
		"half an archive": {
			layers(plain, tarOf(t, item{name: "x", body: strings.Repeat("x", 9000)})[:4000]),
			fetch.Corrupt,
		},
		"no archive": {
			layers(fetch.Archive{Format: "tar", Compression: "gzip"}, []byte("not found")),
			fetch.Corrupt,
		},
		"the folder itself a link": {
			layers(fetch.Archive{Format: "tar", Prefix: "models/"}, tarOf(t, item{name: "models", kind: symlink, link: "etc"})),
			fetch.Unsafe,
		},
		"more than the limit": {layers(plain, tarOf(t, item{name: "x", body: string(noise(1, 6<<20))})), fetch.Full},
		"links that leave together": {
			layers(plain, tarOf(t, ok, item{name: "a/b/d", kind: symlink, link: ".."}, item{name: "a/b/d/x", kind: symlink, link: "../../outside"})),
			fetch.Unsafe,
		},
		"a file through such links": {
			layers(plain, tarOf(t, ok, item{name: "a/b/d", kind: symlink, link: ".."},
				item{name: "a/b/d/x", kind: symlink, link: "../../outside"}, item{name: "a/x/evil", body: "1"})),
			fetch.Unsafe,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, parent := newMemory(), t.TempDir()
			models := filepath.Join(parent, "models")
			if err := os.Mkdir(filepath.Join(parent, "outside"), 0o755); err != nil {
				t.Fatal(err)
			}
			s := open(t, models, m, func(c *files.Config) { c.Limit, c.PartSize = 10<<20, 1<<20 })
			if c.reason != fetch.Full {
				s = open(t, filepath.Join(parent, "unlimited"), m, func(c *files.Config) { c.PartSize = 1 << 20 })
			}
			m.put("oci://r/i", c.source)
			_, err := s.Fetch(t.Context(), "m", of("oci://r/i"))
			wantReason(t, err, c.reason)
			t.Log(err)
			if s.Wait(); !s.Empty() {
				t.Error("something is left")
			}
			if len(tree(t, filepath.Join(parent, "outside"))) != 0 {
				t.Error("a file is outside")
			}
		})
	}
}
