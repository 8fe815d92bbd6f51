package command

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/manage"
)

// A Secret that Kubernetes mounts is read again after it was replaced, by a new target of its
// symlink.
func TestStorageConfigIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	write := func(version, key, text string) {
		t.Helper()
		at := filepath.Join(dir, version)
		made := filepath.Join(dir, "..made")
		for _, err := range []error{
			os.Mkdir(at, 0o755), os.WriteFile(filepath.Join(at, key), []byte(text), 0o600),
			os.Symlink(version, made), os.Rename(made, filepath.Join(dir, "..data")),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	s := &stored{dir: dir, log: slog.New(slog.DiscardHandler)}
	read := func() string {
		t.Helper()
		all, err := s.entries()
		if err != nil || len(all) != 1 {
			t.Fatalf("%d entries, %v", len(all), err)
		}
		return all["one"]["access_key_id"]
	}
	write("..2026_1", "one", `{"type":"s3","access_key_id":"a"}`)
	if err := os.Symlink("..data/one", filepath.Join(dir, "one")); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != "a" {
		t.Errorf("%q", got)
	}
	write("..2026_2", "one", `{"type":"s3","access_key_id":"b"}`)
	if got := read(); got != "b" {
		t.Errorf("%q after a change", got)
	}
	if err := os.Symlink("..data/gone", filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != "b" {
		t.Errorf("%q beside the link of a key that was removed", got)
	}
}

// A path of the engine passes with its key. The errors of storage become those of a load call.
func TestStored(t *testing.T) {
	off := &stored{log: slog.New(slog.DiscardHandler)}
	r := manage.Request{ID: "m", Path: "s3://bucket/path", Key: "anything"}
	if got, err := off.Fetch(t.Context(), r); err != nil || got != (manage.Local{Path: r.Path, Key: r.Key}) {
		t.Errorf("without the storage helper: %+v, %v", got, err)
	}
	store, err := files.Open(files.Config{Dir: t.TempDir(), Log: off.log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	on := &stored{files: store, log: off.log}
	r.Path = "/local"
	if got, err := on.Fetch(t.Context(), r); err != nil || got != (manage.Local{Path: r.Path, Key: r.Key}) {
		t.Errorf("a local path: %+v, %v", got, err)
	}
	var failed *manage.FetchError
	if _, err := on.Fetch(t.Context(), manage.Request{ID: "m", Path: "ftp://x/y"}); !errors.As(err, &failed) || failed.Transient {
		t.Errorf("an unknown scheme: %v", err)
	}
	on.dir = "/nowhere"
	if _, err := on.Fetch(t.Context(), manage.Request{ID: "m", Path: "s3://b/p"}); !errors.As(err, &failed) || failed.Transient {
		t.Errorf("a folder that is gone: %v", err)
	}
	for reason, transient := range map[fetch.Reason]bool{
		fetch.Busy: true, fetch.Changed: true, fetch.NotFound: false, fetch.Denied: false, fetch.Full: false, fetch.Unsafe: false,
	} {
		err := fetchError(&fetch.Error{Reason: reason, Message: "m"})
		if !errors.As(err, &failed) || failed.Transient != transient || failed.Message != "m" {
			t.Errorf("%s: %+v", reason, failed)
		}
	}
}
