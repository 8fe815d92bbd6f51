// Package files manages the agent's disk. It fetches the files of models from storage, caches them
// while there is room, and makes a folder for each model.
//
// Layout of the folder:
//
//	ID/                  the files of a model: hard links to those of its source
//	_sources/NAME/       a complete source: record.json, files/ and schema/
//	_partial/NAME/       an incomplete source: also journal and blobs/
//	_models/ID.json      which source the folder of a model is from
//	_links/, _trash/     folders that are being made or removed
//
// NAME is a hash of the source and of its version, so a source that changed has another name. A
// folder gets its final name by one rename, after its content has been checked. So a killed process
// leaves no partial file under a name that an engine reads.
package files

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/storage"
)

// Config configures a [Store]. Dir, Open and Log are required.
type Config struct {
	// Dir is the folder for all files. One process at a time uses it.
	Dir string
	// Limit is the maximum number of bytes below Dir; 0 means that the disk is the limit.
	Limit int64
	// Concurrency is the maximum number of requests to storage at the same time; 0 means 8.
	Concurrency int
	// PartSize is the number of bytes per request for larger objects; 0 means 8 MiB.
	PartSize int64
	// Open opens a source.
	Open func(context.Context, storage.Source) (fetch.Remote, error)
	Log  *slog.Logger
	// Now is the clock for the order of least recent use; nil means time.Now.
	Now func() time.Time
}

// Local contains the paths of a model's files on this machine.
type Local struct {
	// Path is the absolute path of the model's folder, or of its file if the source is one object.
	Path string
	// Schema is the absolute path of the schema file; empty if the source has none.
	Schema string
	// Bytes is the size of the model's files, without the schema.
	Bytes int64
}

// Model is a model whose folder exists.
type Model struct {
	ID    string
	URI   string // the URI of its source, without credentials
	Local Local
}

// Store manages the disk of one agent. Its methods are safe for concurrent use. Engines may read
// the files of a model until it is released. They may add files to its folder, but must not write
// to existing files, because other models share these.
type Store struct {
	config  Config
	lock    *os.File
	slots   chan struct{} // has one element for each request to storage
	buffers sync.Pool     // of *[]byte
	boot    string        // identifies the time since the machine started
	meter   *meter
	tasks   sync.WaitGroup // goroutines of this Store
	started int64          // makes temporary names differ from those of other processes
	serial  atomic.Int64   // and from each other

	mount func(folder, mounted string) (bytes int64, err error) // linkMount, except in tests

	folders sync.Mutex // held while the folder of a model changes; taken before mu

	mu       sync.Mutex
	closed   bool
	models   map[string]*model   // by id
	entries  map[string]*entry   // complete sources, by name
	partials map[string]*partial // incomplete sources, by name
	flights  map[string]*flight  // running fetches, by the hash of the whole source
	used     int64               // bytes of all entries and partials
	garbage  []string            // folders to remove after mu is released
}

// model is the state of a model whose folder exists. Its fields do not change.
type model struct {
	entry *entry
	local Local
}

// The folders of a Store below its Dir.
const (
	sourcesDir = "_sources"
	partialDir = "_partial"
	modelsDir  = "_models"
	linksDir   = "_links"
	trashDir   = "_trash"
)

// Open returns the Store of a folder, with what an earlier process left there: complete sources,
// models whose folders are complete, and parts of sources. It removes everything else that an
// earlier process made. It fails if another process uses the folder.
func Open(c Config) (*Store, error) {
	if c.Concurrency <= 0 {
		c.Concurrency = 8
	}
	if c.PartSize <= 0 {
		c.PartSize = 8 << 20
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	c.Dir = dir
	s := &Store{
		config: c, slots: make(chan struct{}, c.Concurrency), boot: bootID(), meter: newMeter(), started: time.Now().UnixNano(),
		mount:  linkMount,
		models: make(map[string]*model), entries: make(map[string]*entry), partials: make(map[string]*partial),
		flights: make(map[string]*flight),
	}
	s.buffers.New = func() any { b := make([]byte, bufferSize); return &b }
	for _, folder := range []string{sourcesDir, partialDir, modelsDir, linksDir, trashDir} {
		if err := os.MkdirAll(s.path(folder), 0o755); err != nil {
			return nil, fmt.Errorf("folder of models: %w", err)
		}
	}
	if s.lock, err = lockFolder(s.path("_lock")); err != nil {
		return nil, err
	}
	if err := s.recover(); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	return s, nil
}

// path returns a path below the folder of the Store.
func (s *Store) path(elements ...string) string {
	return filepath.Join(append([]string{s.config.Dir}, elements...)...)
}

// unlock releases mu. Then it removes the folders that were moved to the trash while mu was held.
func (s *Store) unlock() {
	garbage := s.garbage
	s.garbage = nil
	s.mu.Unlock()
	for _, path := range garbage {
		removeTree(path)
	}
}

// Fetch makes the folder of a model. All calls for one source share one download, which continues
// while any of them waits. Fetch lists the source even if the files are on disk, and fetches them
// again if the version has changed. Then it also replaces an existing folder of the model. If
// storage is busy, Fetch retries until ctx ends. The error is a [fetch.Error], or that of ctx if
// the caller canceled it.
func (s *Store) Fetch(ctx context.Context, id string, src storage.Source) (Local, error) {
	f, err := s.join(src)
	if err != nil {
		return Local{}, err
	}
	defer s.leave(f)
	select {
	case <-f.done:
	case <-ctx.Done():
		return Local{}, f.interrupted(ctx)
	}
	if f.err != nil {
		return Local{}, f.err
	}
	local, err := s.link(id, f.entry)
	switch {
	case isNoSpace(err):
		return Local{}, full(src.URI)
	case err != nil:
		return Local{}, fail(fetch.Invalid, src.URI, "the model folder cannot be made: %v", withoutPath(err))
	}
	return local, nil
}

// Release removes the folder of a model, after the engine has unloaded it. The files of its source
// stay until their room is needed. Models that do not exist are no error.
func (s *Store) Release(id string) error {
	s.folders.Lock()
	defer s.folders.Unlock()
	return s.unlink(id)
}

// Purge removes the folders of all models.
func (s *Store) Purge() error {
	var errs []error
	for _, m := range s.Models() {
		errs = append(errs, s.Release(m.ID))
	}
	return errors.Join(errs...)
}

// Models returns the models whose folders exist, in the order of their ids. After [Open] they are
// those that an earlier process made.
func (s *Store) Models() []Model {
	s.mu.Lock()
	defer s.unlock()
	all := make([]Model, 0, len(s.models))
	for _, id := range slices.Sorted(maps.Keys(s.models)) {
		all = append(all, Model{ID: id, URI: s.models[id].entry.URI, Local: s.models[id].local})
	}
	return all
}

// Used returns the number of bytes on disk that count against the limit.
func (s *Store) Used() int64 {
	s.mu.Lock()
	defer s.unlock()
	return s.used
}

// Close ends all downloads and waits for them. All files stay for the next process.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, f := range s.flights {
		f.cancel()
	}
	s.unlock()
	s.tasks.Wait()
	return s.lock.Close()
}

// withoutPath returns an error of a file operation without the path, which is of no use to clients
// of the agent.
func withoutPath(err error) error {
	var p *os.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return p.Err
	case errors.As(err, &l):
		return l.Err
	}
	return err
}

// fail returns an error whose message is one sentence about a source.
func fail(reason fetch.Reason, uri, format string, args ...any) *fetch.Error {
	return &fetch.Error{Reason: reason, Message: uri + ": " + fmt.Sprintf(format, args...)}
}

// reasonOf returns the reason of an error; empty if it is no [fetch.Error].
func reasonOf(err error) fetch.Reason {
	if e, is := errors.AsType[*fetch.Error](err); is {
		return e.Reason
	}
	return ""
}

// size formats a number of bytes for people.
func size(n int64) string {
	units := "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	f, i := float64(n)/1024, 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	return strings.Replace(fmt.Sprintf("%.1f %ciB", f, units[i]), ".0 ", " ", 1)
}
