// Package dir fills a Set of objects from a directory of YAML, and follows every edit.
//
// It reads the files *.yaml, *.yml and *.json that stand in the directory itself, hidden ones apart. Each may hold
// several documents, and what `kubectl get -o yaml` prints works as it is. The unit of refusal is the file: a file that
// is not valid keeps its last good objects in force and the others go on being followed.
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
	// quiet is how long a directory must be at rest before it is read: editors write a file in several steps, and half
	// a file may be valid.
	quiet = 100 * time.Millisecond
	// patience bounds the wait for quiet, so that an edit is in force within a second whatever else goes on.
	patience = 500 * time.Millisecond
	// resync is how often the directory is read without an event: network file systems send none, and a directory that
	// was replaced is watched no more.
	resync = 5 * time.Second
)

// Source follows one directory. Make one with [New].
type Source struct {
	dir     string
	kinds   []kinds.Kind
	log     *slog.Logger
	refused func(files int)

	// Owned by Run.
	files   map[string]*file
	network *objects.Network // as read last; nil if none of its own kinds is read
	running bool             // the first Set is out: a fault is now a refused edit, and no longer a failed start
}

// file is what is known of one file.
type file struct {
	sum  [sha256.Size]byte // of its text, as last read, which may have Secrets
	good *contents         // the last that was valid; nil if none was
	err  error             // why the text is not in force, nil if it is
}

// New returns a Source for the objects of a directory, which are of the kinds of a table. Refused is called after each reading with
// the number of files that are not in force; it may be nil.
func New(dir string, table []kinds.Kind, log *slog.Logger, refused func(files int)) *Source {
	if refused == nil {
		refused = func(int) {}
	}
	return &Source{dir: dir, kinds: table, log: log, refused: refused, files: make(map[string]*file)}
}

// Read reads once the objects of a directory, which are of the kinds of a table, with no name resolved.
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

// Run publishes the objects at the start and again whenever a file changes, until ctx ends. It returns an error if the
// directory cannot be read, or holds an invalid file, at the start; later faults are logged and leave the last good
// objects in force. It calls publish from one goroutine.
func (s *Source) Run(ctx context.Context, publish func(objects.Set)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", s.dir, err)
	}
	defer watcher.Close()

	// Watch before reading, so that no edit falls between the two.
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
			// Adding a directory that is watched already changes nothing.
			_ = watcher.Add(s.dir)
		}
		set, err := s.read()
		if err != nil {
			s.log.Error("objects cannot be read; keeping the last good ones; retrying", "dir", s.dir, "err", err)
			continue
		}
		if set != nil {
			publish(*set)
		}
	}
}

// settle returns when events have been quiet for a while, or the patience is over.
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

// read reads the directory and returns what is in force, or nil if that is what was before.
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

	// Files at rest keep what they define; a change that defines it too is the one at fault. A file that was refused is
	// tried again each time, for the fault may have been mended in another file.
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
	s.refused(s.countRefused())
	if !changed {
		return nil, nil
	}
	return s.good(names), nil
}

// texts reads every file, and when it was written. A file that goes away meanwhile was never there.
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
		info, err := os.Stat(path) // through links: a mounted ConfigMap is made of them
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

// update takes the new text of a file, and reports whether what is in force changed.
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
			s.log.Error("objects refused; keeping the last good ones of this file", "fault", err)
		}
		claim(claims, name, f.good)
		return false
	}
	for _, n := range fresh.notes {
		s.log.Warn("objects read with a warning", "note", n)
	}
	if len(fresh.foreign) > 0 {
		slices.Sort(fresh.foreign)
		s.log.Info("passed over objects of kinds that Headgate does not read", "file", path, "kinds", slices.Compact(fresh.foreign))
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

// conflict is an error if another file defines an object of c.
func (s *Source) conflict(path string, c *contents, claims map[objects.Object]string) error {
	for _, id := range c.inOrder() {
		if other, ok := claims[id]; ok {
			return &Fault{File: path, Line: c.as[id].line, Reason: fmt.Sprintf("%s is already defined at %s:%d",
				id, filepath.Join(s.dir, other), s.files[other].good.as[id].line)}
		}
	}
	return nil
}

// inOrder are the objects by where they are.
func (c *contents) inOrder() []objects.Object {
	return slices.SortedFunc(maps.Keys(c.as), func(a, b objects.Object) int { return c.as[a].line - c.as[b].line })
}

// immutable is an error if an object is not as it was, in what may not change.
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

func (s *Source) countRefused() int {
	n := 0
	for _, f := range s.files {
		if f.err != nil {
			n++
		}
	}
	return n
}

// faults joins what is wrong with the files, in order of name.
func (s *Source) faults() error {
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		faults = append(faults, s.files[name].err)
	}
	return errors.Join(faults...)
}

// good joins the last good objects of every file. The Network stays the one that it was until one of its objects is another.
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
