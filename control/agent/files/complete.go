package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// complete converts the partial folder of a transfer to the content of its entry: it unpacks
// archives, makes files read-only, and writes the record with the sizes.
func (t *transfer) complete(ctx context.Context) error {
	if t.isArchive() {
		if err := t.unpackAll(ctx); err != nil {
			return err
		}
	}
	if err := t.root.MkdirAll("files", 0o755); err != nil { // the source may have only a schema
		return err
	}
	dir := t.store.path(partialDir, t.Name)
	all, err := protect(t.root, dir)
	if err != nil {
		return err
	}
	t.Bytes, t.Model = all, all
	if t.Schema != nil {
		t.Model -= diskBytes(filepath.Join(dir, "schema"))
	}
	t.Synced = false
	return writeJSON(filepath.Join(dir, recordFile), &t.record)
}

// protect makes the files of a source read-only, because models share them, and returns their size.
func protect(root *os.Root, dir string) (bytes int64, err error) {
	for _, folder := range []string{"files", "schema"} {
		err := filepath.WalkDir(filepath.Join(dir, folder), func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(dir, name)
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			bytes += info.Size()
			return root.Chmod(relative, 0o444|info.Mode().Perm()&0o111)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	return bytes, nil
}

// adopt makes a complete partial an entry, and counts the caller as a user of it. Key is that of
// the source with its credentials.
func (s *Store) adopt(r *record, p *partial, key string) (*entry, error) {
	to := s.path(sourcesDir, r.Name)
	removeTree(to)
	if err := os.Rename(s.path(partialDir, r.Name), to); err != nil {
		s.end(r, p, false)
		return nil, s.explain(r.URI, err)
	}
	tidy(to)
	e := &entry{record: *r, keys: map[string]bool{key: true}}
	s.mu.Lock()
	defer s.unlock()
	delete(s.partials, p.name)
	close(p.running)
	s.used += r.Bytes - p.bytes
	s.entries[r.Name] = e
	s.pin(e)
	s.supersede(e)
	s.syncLater(e.record)
	return e, nil
}

// tidy removes files that only an incomplete source needs, from a complete one. If the process is
// killed before that, the next download of the source has nothing left to fetch.
func tidy(dir string) {
	removeTree(filepath.Join(dir, "blobs"))
	_ = os.Remove(filepath.Join(dir, journalFile)) // the next process removes what stays
}

// syncDelay is the time after which files are synced. A sync that began at once would slow the load
// of the model: file systems wait for it when names change.
const syncDelay = 30 * time.Second

// syncLater syncs the files of an entry after syncDelay, unless the Store is closed then.
func (s *Store) syncLater(r record) {
	time.AfterFunc(syncDelay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.tasks.Go(func() { s.sync(r) })
		}
	})
}

// sync writes the files of an entry to the disk, and then records that they survive a failure of
// the machine. Loads do not wait for this: it may take longer than the download.
func (s *Store) sync(r record) {
	dir := s.path(sourcesDir, r.Name)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		if s.isClosed() {
			return filepath.SkipAll
		}
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		return errors.Join(file.Sync(), file.Close())
	})
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) { // it does not exist if it was evicted meanwhile
			s.config.Log.Warn("cannot sync the files of a source", "uri", r.URI, "err", err)
		}
		return
	}
	if s.isClosed() {
		return
	}
	r.Synced = true
	s.mu.Lock()
	defer s.unlock()
	if e := s.entries[r.Name]; e != nil {
		if err := writeJSON(filepath.Join(dir, recordFile), &r); err == nil {
			s.writeTime(e)
		}
	}
}

// isClosed reports whether Close was called.
func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// diskBytes returns the size of all regular files below a folder; 0 if there is none.
func diskBytes(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// removeTree removes a folder as far as possible. The next process removes the rest.
func removeTree(dir string) { _ = os.RemoveAll(dir) }
