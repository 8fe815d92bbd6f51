package store_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/place/store"
)

// folder returns a folder in memory if the system has such a file system, since the tests wait for
// a thousand writes.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "headgate")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// used returns the bytes of a file that was used: it contains branches, free pages, a value of
// several pages, and a bucket that has become empty.
func used(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(folder(t), "control.db")
	f := open(t, path)
	for i := range 60 {
		m := model(fmt.Sprint("m", i))
		if i%20 == 0 {
			m.Spec.Source = strings.Repeat("s", 10_000)
		}
		if err := f.PutModel(m)(); err != nil {
			t.Fatal(err)
		}
		f.PutStatuses([]store.Status{{Pool: "default/p", ID: m.Name}})
	}
	for i := 10; i < 30; i++ {
		if err := f.DeleteModel(model(fmt.Sprint("m", i)))(); err != nil {
			t.Fatal(err)
		}
	}
	_ = f.PutCopy(store.Copy{Endpoint: "e", Pool: "default/p", ID: "m1", State: "loaded"}, true)
	f.DeleteCopy("e", "default/p", "m1")
	_ = f.PutRuntime(store.Runtime{Endpoint: "e"})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// try opens a file with these bytes, reads everything and writes to it. opened reports success. If
// it is false, the file must not have changed.
func try(t *testing.T, all []byte) (opened bool, words string) {
	t.Helper()
	path := filepath.Join(folder(t), "control.db")
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := store.Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		if is, readErr := os.ReadFile(path); readErr != nil || !bytes.Equal(is, all) {
			t.Errorf("%v, and the file is another now: %v", err, readErr)
		}
		return false, err.Error()
	}
	if _, err := f.Models(); err != nil {
		t.Errorf("it was opened, and then: %v", err)
	}
	if _, err := f.Statuses(); err != nil {
		t.Errorf("it was opened, and then: %v", err)
	}
	if _, err := f.VModels(); err != nil {
		t.Errorf("it was opened, and then: %v", err)
	}
	if _, err := f.VModelStatuses(); err != nil {
		t.Errorf("it was opened, and then: %v", err)
	}
	for i := range 60 { // some transactions
		wait := f.PutModel(model(fmt.Sprint("n", i)))
		f.DeleteModel(model(fmt.Sprint("m", i)))
		if i%10 == 9 {
			if err := wait(); err != nil {
				t.Errorf("it was opened, and then: %v", err)
			}
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	return true, ""
}

// A truncated file, after a full disk or an interrupted copy, is an error and is not changed. Files
// of bbolt end in unused zeros, so the test cuts used pages.
func TestTruncatedFileIsLeftAlone(t *testing.T) {
	all := used(t)
	if opened, words := try(t, all); !opened {
		t.Fatalf("the whole file: %s", words)
	}
	written := len(bytes.TrimRight(all, "\x00"))
	for _, size := range []int{1, 100, 4095, 4096, 4097, 8192, 12288, written / 2, written/2 + 1, written - 4096} {
		opened, words := try(t, all[:size])
		if opened || !strings.Contains(words, "control.db: it is damaged: ") || !strings.Contains(words, "move it away") {
			t.Errorf("%d of %d bytes: opened %v, %q", size, len(all), opened, words)
		}
	}
}

// With any changed byte, control does not crash: it reports an error, or uses what it can read.
func TestGarbledFileDoesNotCrash(t *testing.T) {
	all := used(t)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // which bytes are tried
	refused := 0
	const tries = 400
	for range tries {
		garbled := bytes.Clone(all)
		at := random.IntN(len(all))
		if random.IntN(2) == 0 { // change a byte of bbolt's own structures
			at = at&^4095 + random.IntN(200)
		}
		garbled[at] ^= byte(1 + random.IntN(255))
		if opened, words := try(t, garbled); !opened {
			refused++
			if !strings.Contains(words, "it is damaged: ") {
				t.Errorf("byte %d: %s", at, words)
			}
		}
		if t.Failed() {
			t.Fatalf("byte %d, which was %d and is %d", at, all[at], garbled[at])
		}
	}
	if refused == 0 { // most bytes are in values or free pages
		t.Error("no file was refused")
	}
	t.Logf("%d of %d files were refused", refused, tries)
}

func TestForeignFileIsLeftAlone(t *testing.T) {
	if opened, words := try(t, []byte(strings.Repeat("models: {}\n", 2000))); opened ||
		!strings.Contains(words, "it is not a state file of control") {
		t.Errorf("opened %v: %s", opened, words)
	}
}

// A file in which a page is used twice is rejected, since bbolt would overwrite the page.
func TestGarbledStructureIsLeftAlone(t *testing.T) {
	const page = 4096
	all := used(t)
	after := func(b []byte, name string) []byte { // the number after a bucket's name: its root page
		t.Helper()
		_, rest, found := bytes.Cut(b, []byte(name))
		if !found {
			t.Fatalf("%s is nowhere", name)
		}
		return rest[:8]
	}
	for name, garble := range map[string]func(b []byte){
		"keys out of order": func(b []byte) { copy(b, bytes.ReplaceAll(b, []byte("default\x00m31"), []byte("default\x00m99"))) },
		"two buckets of one root": func(b []byte) {
			for at := 0; at < len(b); at += page {
				if p := b[at:][:page]; bytes.Contains(p, []byte("statuses")) && bytes.Contains(p, []byte("runtimes")) {
					copy(after(p, "statuses"), after(p, "models"))
				}
			}
		},
		"a page that goes on beyond the file": func(b []byte) {
			for at := 2 * page; at < len(b); at += page {
				copy(b[at+12:], "\xff\xff\xff\x7f") // the number of its overflow pages
			}
		},
		"a free page that is in use": func(b []byte) {
			for at := 0; at < len(b); at += page {
				if kind := b[at+8]; kind == 0x10 { // a list of free pages; only the latest is in use
					copy(b[at+16:], b[at:at+8])
				}
			}
		},
	} {
		garbled := bytes.Clone(all)
		garble(garbled)
		if bytes.Equal(garbled, all) {
			t.Fatalf("%s: nothing was garbled", name)
		}
		if opened, words := try(t, garbled); opened {
			t.Errorf("%s: it was opened", name)
		} else {
			t.Logf("%s: %s", name, words)
		}
	}
}
