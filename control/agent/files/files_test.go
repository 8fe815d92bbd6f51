package files_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/storage"
)

// open opens a Store with small parts in dir.
func open(t *testing.T, dir string, m *memory, change func(*files.Config)) *files.Store {
	t.Helper()
	c := files.Config{Dir: dir, Open: m.Open, PartSize: 1000, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&c)
	}
	s, err := files.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// get fetches a source for a model, and fails the test if that fails.
func get(t *testing.T, s *files.Store, id, uri string) files.Local {
	t.Helper()
	local, err := s.Fetch(t.Context(), id, of(uri))
	if err != nil {
		t.Fatal(err)
	}
	return local
}

// tree returns the content of all files below dir by their names. Links are "-> TARGET".
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, _ := filepath.Rel(dir, name)
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(name)
			all[relative] = "-> " + target
			return err
		}
		content, err := os.ReadFile(name)
		all[relative] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// text returns contents as strings.
func text(content map[string][]byte) map[string]string {
	all := make(map[string]string)
	for name, b := range content {
		all[name] = string(b)
	}
	return all
}

// wantTree fails the test if the files below dir are not these.
func wantTree(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := tree(t, dir)
	if maps.Equal(got, want) {
		return
	}
	for name := range got {
		if len(got[name]) > 100 || len(want[name]) > 100 {
			t.Errorf("%s has %d bytes, want %d, equal: %v", name, len(got[name]), len(want[name]), got[name] == want[name])
		}
	}
	t.Errorf("%s has %q, want %q", dir, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
}

// wantReason fails the test if an error has another reason, or no sentence about the source.
func wantReason(t *testing.T, err error, reason fetch.Reason) {
	t.Helper()
	var e *fetch.Error
	if !errors.As(err, &e) || e.Reason != reason {
		t.Fatalf("the error is %v, want %s", err, reason)
	}
	if !strings.Contains(e.Message, "://") || strings.ContainsRune(e.Message, '\n') {
		t.Errorf("the message %q is not one sentence about the URI", e.Message)
	}
}

// wantEmpty releases all models, evicts everything, and fails the test if anything is left.
func wantEmpty(t *testing.T, s *files.Store, m *memory) {
	t.Helper()
	s.Wait()
	if err := s.Purge(); err != nil {
		t.Error(err)
	}
	if used, measured := s.Used(), s.Measured(); used != measured {
		t.Errorf("%d bytes count, but %d are on disk", used, measured)
	}
	s.EvictAll()
	if !s.Empty() {
		t.Error("the store is not empty after everything was released and evicted")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open != 0 || m.running != 0 {
		t.Errorf("%d remotes and %d requests are still open", m.open, m.running)
	}
}

func TestFetchFolder(t *testing.T) {
	m, dir := newMemory(), t.TempDir()
	s := open(t, dir, m, nil)
	content := map[string][]byte{"a.bin": noise(1, 5500), "sub/b.bin": noise(2, 1000), "sub/empty": {}, "c": noise(3, 1)}
	src := m.put("s3://b/folder", &source{content: content, schema: []byte("{}")})
	local := get(t, s, "one", "s3://b/folder")
	want := text(content)
	want["schema.json"] = "{}"
	if diff := cmp.Diff(files.Local{
		Path: filepath.Join(dir, "one"), Schema: filepath.Join(dir, "one", "schema.json"), Bytes: 6501,
	}, local); diff != "" {
		t.Error(diff)
	}
	wantTree(t, local.Path, want)
	if m.asked != 6503 {
		t.Errorf("%d bytes were asked for", m.asked)
	}

	// A second model has the same files without a download, and so has the first when it returns.
	other := get(t, s, "two", "s3://b/folder")
	if err := s.Release("one"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(local.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is there after the release: %v", err)
	}
	get(t, s, "one", "s3://b/folder")
	wantTree(t, local.Path, want)
	wantTree(t, other.Path, want)
	if m.asked != 6503 || m.lists != 3 {
		t.Errorf("%d bytes were asked for, and %d listings", m.asked, m.lists)
	}
	a, _ := os.Stat(filepath.Join(local.Path, "a.bin"))
	b, _ := os.Stat(filepath.Join(other.Path, "a.bin"))
	if !os.SameFile(a, b) || a.Mode() != 0o444 {
		t.Errorf("the files are not the same, or have mode %v", a.Mode())
	}

	// The source changes: the model that returns gets the new files, the other keeps the old ones.
	changed := map[string][]byte{"a.bin": noise(4, 5500)}
	m.put("s3://b/folder", &source{content: changed})
	get(t, s, "one", "s3://b/folder")
	wantTree(t, local.Path, text(changed))
	wantTree(t, other.Path, want)
	if got := s.Models(); len(got) != 2 || got[0].ID != "one" || got[0].URI != "s3://b/folder" || got[1].Local != other {
		t.Errorf("models are %v", got)
	}
	if err := s.Release("two"); err != nil {
		t.Fatal(err)
	}
	if s.Wait(); s.Used() != 5500 {
		t.Errorf("%d bytes are used: the old version must go with its last model", s.Used())
	}
	_ = src
	wantEmpty(t, s, m)
}

func TestFetchOne(t *testing.T) {
	m, dir := newMemory(), t.TempDir()
	s := open(t, dir, m, nil)
	m.put("s3://b/x.onnx", &source{content: map[string][]byte{"x.onnx": noise(1, 2500)}, single: true, digests: true})
	local := get(t, s, "a/../b", "s3://b/x.onnx")
	if want := (files.Local{Path: filepath.Join(dir, "a%2F..%2Fb", "x.onnx"), Bytes: 2500}); local != want {
		t.Errorf("it is at %+v, want %+v", local, want)
	}
	got, _ := os.ReadFile(local.Path)
	if string(got) != string(noise(1, 2500)) {
		t.Error("the file is not that of the source")
	}
	wantEmpty(t, s, m)
}

// A schema file with the name of a model's file does not replace it.
func TestFetchSchemaOfSameName(t *testing.T) {
	m, dir := newMemory(), t.TempDir()
	s := open(t, dir, m, nil)
	m.put("s3://b/x", &source{content: map[string][]byte{"schema.json": []byte("model")}, schema: []byte("model")})
	local := get(t, s, "m", "s3://b/x")
	wantTree(t, local.Path, map[string]string{"schema.json": "model", "_schema/schema.json": "model"})
	if want := filepath.Join(dir, "m", "_schema", "schema.json"); local.Schema != want {
		t.Errorf("the schema is %s, want %s", local.Schema, want)
	}
	wantEmpty(t, s, m)
}

func TestFetchMount(t *testing.T) {
	m, dir, mount := newMemory(), t.TempDir(), t.TempDir()
	s := open(t, dir, m, nil)
	for name, content := range map[string]string{"1/model.onnx": "12345", "config": "123"} {
		_ = os.MkdirAll(filepath.Dir(filepath.Join(mount, name)), 0o755)
		if err := os.WriteFile(filepath.Join(mount, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m.put("pvc://c/folder", &source{link: mount})
	m.put("pvc://c/file", &source{link: filepath.Join(mount, "config"), single: true, schema: []byte("{}")})
	get(t, s, "again", "pvc://c/folder")
	folder, file := get(t, s, "folder", "pvc://c/folder"), get(t, s, "file", "pvc://c/file")
	wantTree(t, folder.Path, map[string]string{"1": "-> " + mount + "/1", "config": "-> " + mount + "/config"})
	if folder.Bytes != 8 || file.Bytes != 3 || file.Path != filepath.Join(dir, "file", "config") || file.Schema == "" {
		t.Errorf("locals are %+v and %+v", folder, file)
	}
	if err := s.Purge(); err != nil {
		t.Fatal(err)
	}
	if len(tree(t, mount)) != 2 {
		t.Error("the release removed files of the mount")
	}
	wantEmpty(t, s, m)
}

// A mount that hangs blocks only its own models. Two calls for one model make one folder.
func TestMountHangs(t *testing.T) {
	m, mount, hung := newMemory(), t.TempDir(), make(chan struct{})
	s := open(t, t.TempDir(), m, nil)
	waits := s.HangAt(mount, hung)
	m.put("pvc://c/hangs", &source{link: mount})
	m.put("s3://b/x", &source{content: map[string][]byte{"x": []byte("1")}})
	errs := make(chan error, 3)
	for range 2 {
		go func() {
			_, err := s.Fetch(context.Background(), "hangs", of("pvc://c/hangs"))
			errs <- err
		}()
		<-waits
	}
	go func() {
		_, err := s.Fetch(context.Background(), "m", of("s3://b/x"))
		errs <- errors.Join(err, s.Release("m"), s.Release("hangs"))
	}()
	select {
	case err := <-errs:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("another model waits for the mount")
	}
	close(hung)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if err := s.Purge(); err != nil {
		t.Fatal(err)
	}
	s.Wait()
	wantEmpty(t, s, m)
}

// A source without versions is fetched again for each model that comes later, and does not stay.
func TestFetchUnversioned(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, nil)
	m.put("http://h/x", &source{content: map[string][]byte{"x": noise(1, 1500)}, bare: true, single: true})
	get(t, s, "a", "http://h/x")
	get(t, s, "b", "http://h/x")
	if m.asked != 3000 || m.opens != 2 {
		t.Errorf("%d bytes were asked for by %d requests", m.asked, m.opens)
	}
	if err := s.Purge(); err != nil {
		t.Fatal(err)
	}
	if s.Wait(); s.Used() != 0 {
		t.Errorf("%d bytes stay", s.Used())
	}
	wantEmpty(t, s, m)
}

// Other credentials get the files on disk if they give access to them. A server that is down does
// not matter for a source that names its content, if the same credentials fetched it.
func TestFetchCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := open(t, t.TempDir(), m, nil)
		content := map[string][]byte{"x": noise(1, 1500)}
		src := m.put("hf://o/r", &source{content: content})
		as := func(token string) storage.Source {
			return storage.Source{
				Scheme: storage.Hub, URI: "hf://o/r", Bucket: "o/r", Revision: strings.Repeat("a1", 20),
				Fields: map[string]string{"token": token, "include": "*"},
			}
		}
		fetch1 := func(id, token string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := s.Fetch(ctx, id, as(token))
			return err
		}
		if err := errors.Join(fetch1("a", "one"), fetch1("b", "two"), fetch1("c", "two")); err != nil {
			t.Fatal(err)
		}
		if m.asked != 1501 || m.lists != 3 {
			t.Errorf("%d bytes and %d listings were asked for", m.asked, m.lists)
		}
		src.body = func(context.Context, fetch.Object, int64, io.ReadCloser) (io.ReadCloser, error) {
			return nil, &fetch.Error{Reason: fetch.Denied, Message: "hf://o/r: access is denied"}
		}
		wantReason(t, fetch1("d", "three"), fetch.Denied)
		src.list = func(context.Context) error { return &fetch.Error{Reason: fetch.Busy, Message: "hf://o/r: 503"} }
		if err := fetch1("d", "one"); err != nil {
			t.Error(err)
		}
		wantReason(t, fetch1("e", "three"), fetch.Busy)
		wantEmpty(t, s, m)
	})
}

// Access to an empty or a small file, which a server may give to everybody, is not access to the
// others.
func TestFetchCredentialsForLargest(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, nil)
	src := m.put("hf://o/r", &source{content: map[string][]byte{".gitattributes": nil, "README.md": noise(1, 10), "weights": noise(2, 1500)}})
	as := func(token string) storage.Source {
		return storage.Source{Scheme: storage.Hub, URI: "hf://o/r", Bucket: "o/r", Fields: map[string]string{"token": token}}
	}
	if _, err := s.Fetch(t.Context(), "a", as("one")); err != nil {
		t.Fatal(err)
	}
	src.body = func(_ context.Context, o fetch.Object, _ int64, b io.ReadCloser) (io.ReadCloser, error) {
		if o.Name == "weights" {
			return nil, &fetch.Error{Reason: fetch.Denied, Message: "hf://o/r: access is denied"}
		}
		return b, nil
	}
	_, err := s.Fetch(t.Context(), "b", as("two"))
	wantReason(t, err, fetch.Denied)
	wantEmpty(t, s, m)
}

// endless is a remote with an object whose announced size is larger than any disk.
type endless struct {
	fetch.Remote
	size int64
}

func (e endless) List(context.Context) (fetch.Listing, error) {
	return fetch.Listing{Objects: []fetch.Object{{Name: "x", Size: e.size, Version: "1"}, {Name: "y", Size: e.size, Version: "1"}}}, nil
}

func (e endless) Open(context.Context, fetch.Object, int64, int64) (io.ReadCloser, error) {
	return nil, &fetch.Error{Reason: fetch.Denied, Message: "http://h/x: denied"}
}

func (e endless) Close() error { return nil }

// A size that a server announces takes no memory before it is refused.
func TestFetchEndless(t *testing.T) {
	for _, n := range []int64{1<<18 + 1, 1<<63 - 1} {
		m := newMemory()
		s := open(t, t.TempDir(), m, func(c *files.Config) {
			c.PartSize = 1
			c.Open = func(context.Context, storage.Source) (fetch.Remote, error) { return endless{size: n}, nil }
		})
		_, err := s.Fetch(t.Context(), "a", of("http://h/x"))
		wantReason(t, err, fetch.Full)
		wantEmpty(t, s, m)
	}
}

// Files that something has changed on disk are fetched again.
func TestFetchDamaged(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, nil)
	content := map[string][]byte{"x": noise(1, 1500)}
	m.put("s3://b/x", &source{content: content})
	local := get(t, s, "a", "s3://b/x")
	if err := errors.Join(os.Chmod(local.Path+"/x", 0o644), os.Truncate(local.Path+"/x", 7)); err != nil {
		t.Fatal(err)
	}
	wantTree(t, get(t, s, "b", "s3://b/x").Path, text(content))
	wantTree(t, get(t, s, "a", "s3://b/x").Path, text(content))
	wantEmpty(t, s, m)
}

func TestFetchRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		source source
		reason fetch.Reason
	}{
		"no files":          {source{}, fetch.Empty},
		"a parent":          {source{content: map[string][]byte{"../x": {1}}}, fetch.Unsafe},
		"an absolute name":  {source{content: map[string][]byte{"/x": {1}}}, fetch.Unsafe},
		"a zero byte":       {source{content: map[string][]byte{"a\x00": {1}}}, fetch.Unsafe},
		"a file and folder": {source{content: map[string][]byte{"a": {1}, "a/b": {1}}}, fetch.Unsafe},
		"an error": {source{content: map[string][]byte{"a": {1}}, list: func(context.Context) error {
			return &fetch.Error{Reason: fetch.Denied, Message: "s3://b/x: access is denied"}
		}}, fetch.Denied},
		"a missing object": {source{
			content: map[string][]byte{"a": {1}, "b": {2}},
			body: func(_ context.Context, o fetch.Object, _ int64, b io.ReadCloser) (io.ReadCloser, error) {
				if o.Name == "b" {
					return nil, &fetch.Error{Reason: fetch.NotFound, Message: "s3://b/x: there is no b"}
				}
				return b, nil
			},
		}, fetch.NotFound},
		"too many bytes": {source{
			content: map[string][]byte{"a": {1}}, unsized: false,
			body: func(context.Context, fetch.Object, int64, io.ReadCloser) (io.ReadCloser, error) {
				return io.NopCloser(strings.NewReader("12")), nil
			},
		}, fetch.Changed},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			s := open(t, t.TempDir(), m, nil)
			m.put("s3://b/x", &c.source)
			_, err := s.Fetch(t.Context(), "m", of("s3://b/x"))
			wantReason(t, err, c.reason)
			m.mu.Lock()
			m.running = 0 // the body that "too many bytes" replaces is never closed
			m.mu.Unlock()
			if s.Wait(); !s.Empty() {
				t.Error("something is left")
			}
		})
	}
}

// A folder that the agent has not made stays as it is.
func TestFetchForeignFolder(t *testing.T) {
	m, dir := newMemory(), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "m"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, m, nil)
	m.put("s3://b/x", &source{content: map[string][]byte{"x": {1}}})
	_, err := s.Fetch(t.Context(), "m", of("s3://b/x"))
	wantReason(t, err, fetch.Invalid)
	for _, name := range []string{"m", "lost+found"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	wantEmpty(t, s, m)
}

func TestEscape(t *testing.T) {
	long := strings.Repeat("x", 300)
	for id, want := range map[string]string{
		"a": "a", "Model-1.2_x": "Model-1.2_x", "_a": "%5Fa", "..": "%2E.", "a/b": "a%2Fb", "%": "%25", "": "%%", "ü": "%C3%BC",
		"a b\n": "a%20b%0A",
	} {
		if got := files.Escape(id); got != want {
			t.Errorf("%q becomes %q, want %q", id, got, want)
		}
	}
	if a, b := files.Escape(long+"1"), files.Escape(long+"2"); a == b || len(a) > 200 {
		t.Errorf("long ids become %q and %q", a, b)
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 3 << 30: "3 GiB"} {
		if got := files.Size(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
