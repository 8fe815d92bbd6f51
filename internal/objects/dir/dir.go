// Package dir reads objects from a directory of YAML files into a Set, and follows every edit.
//
// It reads the files *.yaml, *.yml and *.json in the directory itself, except hidden ones. A file
// may contain several documents, and the output of `kubectl get -o yaml` works unchanged. An
// invalid file is refused as a whole: its last valid objects stay in effect, and other files are
// still followed.
package dir

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
)

const (
	// quiet is how long a directory must be unchanged before it is read: editors write a file in
	// several steps, and half a file may be valid.
	quiet = 100 * time.Millisecond
	// patience limits the wait for quiet, so that an edit takes effect within a second in any case.
	patience = 500 * time.Millisecond
	// resync is how often the directory is read without an event: network file systems send none,
	// and a replaced directory is no longer watched.
	resync = 5 * time.Second
)

// Source follows one directory. Make one with [New].
type Source struct {
	dir     string
	kinds   []kinds.Kind
	log     *slog.Logger
	refused func(faults []string)

	// Used only by Run.
	files   map[string]*file
	network *objects.Network // last read; nil if no kind of its own is read
	running bool             // the first Set is published: an error is now a refused edit, no longer a failed start
}

// file is the state of one file.
type file struct {
	sum  [sha256.Size]byte // hash of its last text, which may contain Secrets
	good *contents         // last valid contents; nil if there were none
	err  error             // why the text is refused, nil if it is not
}

// New returns a Source for the objects of a directory with the kinds of a table. Refused, which may
// be nil, is called after each reading with the fault of each refused file, sorted by name.
func New(dir string, table []kinds.Kind, log *slog.Logger, refused func(faults []string)) *Source {
	if refused == nil {
		refused = func([]string) {}
	}
	return &Source{dir: dir, kinds: table, log: log, refused: refused, files: make(map[string]*file)}
}

// Read reads the objects of a directory once, with the kinds of a table. Names are not resolved.
func Read(dir string, table []kinds.Kind) (objects.Set, error) {
	s := New(dir, table, slog.New(slog.DiscardHandler), nil)
	set, err := s.first()
	if err != nil {
		return objects.Set{}, fmt.Errorf("read objects: %w", err)
	}
	return *set, nil
}

// first reads the directory at the start.
func (s *Source) first() (*objects.Set, error) {
	set, err := s.read()
	if err := errors.Join(err, s.faults()); err != nil {
		return nil, err
	}
	if set == nil {
		set = s.good(nil)
	}
	return set, nil
}

// Run publishes the objects at the start, and again whenever a file changes, until ctx ends. At the
// start, a directory that cannot be read or an invalid file is an error. Later errors are logged,
// and the last valid objects stay in effect. It calls publish from one goroutine.
func (s *Source) Run(ctx context.Context, publish func(objects.Set)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", s.dir, err)
	}
	defer watcher.Close()

	// Watching before reading misses no edit.
	if err := watcher.Add(s.dir); err != nil {
		return fmt.Errorf("read objects: %s: %w", s.dir, err)
	}
	set, err := s.first()
	if err != nil {
		return fmt.Errorf("read objects: %w", err)
	}
	if len(s.files) == 0 {
		s.log.Warn("the folder holds no objects yet", "dir", s.dir)
	}
	publish(*set)
	s.running = true

	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
			settle(ctx, watcher.Events)
		case err := <-watcher.Errors:
			s.log.Warn("cannot watch the folder of objects; reading it at intervals", "dir", s.dir, "err", err)
		case <-tick.C:
			// Adding a watched directory again has no effect.
			_ = watcher.Add(s.dir)
		}
		set, err := s.read()
		if err != nil {
			s.log.Error("cannot read objects; keeping the last valid ones; retrying", "dir", s.dir, "err", err)
			continue
		}
		if set != nil {
			publish(*set)
		}
	}
}

// settle returns when there has been no event for quiet, at the latest after patience.
func settle(ctx context.Context, events <-chan fsnotify.Event) {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		calm := time.NewTimer(quiet)
		select {
		case <-events:
			calm.Stop()
		case <-calm.C:
			return
		case <-limit.C:
			calm.Stop()
			return
		case <-ctx.Done():
			calm.Stop()
			return
		}
	}
}

// read reads the directory and returns the objects in effect, or nil if they are unchanged.
func (s *Source) read() (*objects.Set, error) {
	texts, written, err := s.texts()
	if err != nil {
		return nil, err
	}
	changed := false
	for name := range s.files {
		if _, ok := texts[name]; !ok {
			s.log.Info("objects removed", "file", filepath.Join(s.dir, name))
			delete(s.files, name)
			changed = true
		}
	}

	// Unchanged files keep their objects; a changed file that defines one of them is refused.
	// Refused files are tried again each time, since an edit of another file may have resolved the
	// conflict.
	names := slices.Sorted(maps.Keys(texts))
	claims := make(map[objects.Object]string)
	var unsettled []string
	for _, name := range names {
		f := s.files[name]
		if f != nil && f.err == nil && f.sum == sha256.Sum256(texts[name]) {
			claim(claims, name, f.good)
			continue
		}
		unsettled = append(unsettled, name)
	}
	for _, name := range unsettled {
		changed = s.update(name, texts[name], written[name], claims) || changed
	}
	s.refused(s.refusals())
	if !changed {
		return nil, nil
	}
	return s.good(names), nil
}

// texts reads every file and its modification time. A file that is removed meanwhile is skipped.
func (s *Source) texts() (texts map[string][]byte, written map[string]time.Time, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, err
	}
	texts, written = make(map[string][]byte), make(map[string]time.Time)
	for _, e := range entries {
		name := e.Name()
		if ext := filepath.Ext(name); strings.HasPrefix(name, ".") || (ext != ".yaml" && ext != ".yml" && ext != ".json") {
			continue
		}
		path := filepath.Join(s.dir, name)
		info, err := os.Stat(path) // follows links, because a mounted ConfigMap consists of links
		if errors.Is(err, fs.ErrNotExist) || (err == nil && !info.Mode().IsRegular()) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		texts[name], written[name] = text, info.ModTime()
	}
	return texts, written, nil
}

// update applies the new text of a file, and reports whether the objects in effect changed.
func (s *Source) update(name string, text []byte, written time.Time, claims map[objects.Object]string) bool {
	path := filepath.Join(s.dir, name)
	f := s.files[name]
	if f == nil {
		f = &file{}
		s.files[name] = f
	}
	known := f.err
	fresh, err := parse(path, text, s.kinds)
	if err == nil {
		err = s.conflict(path, fresh, claims)
	}
	if err == nil && f.good != nil {
		err = immutable(path, f.good, fresh)
	}
	f.sum, f.err = sha256.Sum256(text), err
	if err != nil {
		if s.running && (known == nil || known.Error() != err.Error()) {
			s.log.Error("objects refused; keeping the last valid ones of this file", "fault", err)
		}
		claim(claims, name, f.good)
		return false
	}
	for _, n := range fresh.notes {
		s.log.Warn("objects read with a warning", "note", n)
	}
	if len(fresh.foreign) > 0 {
		slices.Sort(fresh.foreign)
		s.log.Info("ignored objects of kinds that Headgate does not read", "file", path, "kinds", slices.Compact(fresh.foreign))
	}
	s.log.Info("objects read", "file", path, "objects", len(fresh.as))
	fresh.set.Written = make(map[objects.Object]time.Time, len(fresh.as))
	for id := range fresh.as {
		fresh.set.Written[id] = written
	}
	f.good = fresh
	claim(claims, name, fresh)
	return true
}

// conflict returns an error if another file defines an object of c.
func (s *Source) conflict(path string, c *contents, claims map[objects.Object]string) error {
	for _, id := range c.inOrder() {
		if other, ok := claims[id]; ok {
			return &Fault{File: path, Line: c.as[id].line, Reason: fmt.Sprintf("%s is already defined at %s:%d",
				id, filepath.Join(s.dir, other), s.files[other].good.as[id].line)}
		}
	}
	return nil
}

// inOrder returns the objects in the order of the file.
func (c *contents) inOrder() []objects.Object {
	return slices.SortedFunc(maps.Keys(c.as), func(a, b objects.Object) int { return c.as[a].line - c.as[b].line })
}

// immutable returns an error if an immutable field of an object has changed.
func immutable(path string, was, is *contents) error {
	for _, id := range is.inOrder() {
		old, there := was.as[id]
		if !there {
			continue
		}
		o := is.as[id]
		if faults := o.kind.Change(old.object, o.object); len(faults) > 0 {
			return &Fault{File: path, Line: o.line, Reason: fmt.Sprintf("%s: %v", id, faults[0])}
		}
	}
	return nil
}

func claim(claims map[objects.Object]string, name string, c *contents) {
	if c == nil {
		return
	}
	for id := range c.as {
		if _, taken := claims[id]; !taken {
			claims[id] = name
		}
	}
}

// refusals returns the faults of the refused files, sorted by name.
func (s *Source) refusals() (all []string) {
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if err := s.files[name].err; err != nil {
			all = append(all, err.Error())
		}
	}
	return all
}

// faults joins the errors of the files, sorted by name.
func (s *Source) faults() error {
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		faults = append(faults, s.files[name].err)
	}
	return errors.Join(faults...)
}

// good joins the last valid objects of every file. The Network keeps its pointer until one of its
// objects changes.
func (s *Source) good(names []string) *objects.Set {
	all := objects.Set{Network: kinds.NewNetwork(s.kinds)}
	for _, name := range names {
		if good := s.files[name].good; good != nil {
			all.Add(good.set)
		}
	}
	if reflect.DeepEqual(all.Network, s.network) {
		all.Network = s.network
	}
	s.network = all.Network
	return &all
}
