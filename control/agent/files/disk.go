package files

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/headgate/headgate/control/agent/fetch"
)

// entry is a complete source. Its fields are guarded by Store.mu, except those of the record, which
// do not change.
type entry struct {
	record
	users      int       // models and flights that need the files
	used       time.Time // when the number of users last changed
	superseded bool      // the source has another version now
	// keys are the keys of the sources whose credentials gave access to the files, see
	// [storage.Source.Key].
	keys map[string]bool
}

// partial is an incomplete download of a source. Its fields are guarded by Store.mu.
type partial struct {
	name, source string
	bytes        int64         // bytes that count against the limit, including those that are expected
	used         time.Time     // when it was last written
	running      chan struct{} // closed when the running download ends; nil if none runs
}

// pin counts a user of an entry. The caller holds mu.
func (s *Store) pin(e *entry) {
	e.users++
	s.touch(e)
}

// unpin undoes pin. It removes entries that cannot be used again. The caller holds mu, and releases
// it with unlock.
func (s *Store) unpin(e *entry) {
	e.users--
	s.touch(e)
	if e.users == 0 && s.entries[e.Name] == e && (e.superseded || !e.Versioned || e.Bytes == 0) {
		s.evict(e)
	}
}

// touch makes an entry the most recently used one. The caller holds mu.
func (s *Store) touch(e *entry) {
	e.used = s.config.Now()
	s.writeTime(e)
}

// writeTime stores the time of last use on disk, for a later process. The caller holds mu.
func (s *Store) writeTime(e *entry) {
	name := s.path(sourcesDir, e.Name, recordFile)
	_ = os.Chtimes(name, e.used, e.used) // without it, a later process only evicts in another order
}

// evict removes an entry that has no user. The caller holds mu.
func (s *Store) evict(e *entry) {
	delete(s.entries, e.Name)
	s.used -= e.Bytes
	s.discard(s.path(sourcesDir, e.Name))
}

// drop removes a partial that is not running. The caller holds mu.
func (s *Store) drop(p *partial) {
	delete(s.partials, p.name)
	s.used -= p.bytes
	s.discard(s.path(partialDir, p.name))
}

// discard moves a folder to the trash, which unlock empties. The caller holds mu.
func (s *Store) discard(path string) {
	to := s.temporary(trashDir)
	if err := os.Rename(path, to); err == nil {
		s.garbage = append(s.garbage, to)
	} else if !errors.Is(err, os.ErrNotExist) {
		s.garbage = append(s.garbage, path)
	}
}

// reserve counts n more bytes for p. It evicts interrupted downloads first, and then entries
// without users, least recently used first. It evicts nothing if that would not make enough room.
func (s *Store) reserve(p *partial, uri string, n int64) error {
	s.mu.Lock()
	defer s.unlock()
	if limit := s.config.Limit; limit > 0 && s.used+n > limit {
		if free := limit - s.used + s.evictable(p); n > free {
			return fail(fetch.Full, uri, "it needs %s more, but at most %s of the disk limit of %s can be freed; raise --disk or unload models",
				size(n), size(max(0, free)), size(limit))
		}
		for s.used+n > limit && s.evictOldest(p) {
		}
	}
	p.bytes += n
	s.used += n
	return nil
}

// makeRoom evicts as reserve does until n bytes are freed, and reports whether it evicted anything.
// It is for disks that are full before the limit is reached.
func (s *Store) makeRoom(p *partial, n int64) bool {
	s.mu.Lock()
	defer s.unlock()
	goal, evicted := s.used-max(n, 1), false
	for s.used > goal && s.evictOldest(p) {
		evicted = true
	}
	return evicted
}

// evictable returns the bytes that eviction can free for p. The caller holds mu.
func (s *Store) evictable(p *partial) (n int64) {
	for _, other := range s.partials {
		if other != p && other.running == nil {
			n += other.bytes
		}
	}
	for _, e := range s.entries {
		if e.users == 0 {
			n += e.Bytes
		}
	}
	return n
}

// evictOldest evicts the interrupted download that was used least recently, or else such an entry.
// It reports whether there was one. The caller holds mu.
func (s *Store) evictOldest(p *partial) bool {
	var part *partial
	for _, other := range s.partials {
		if other != p && other.running == nil && (part == nil || other.used.Before(part.used)) {
			part = other
		}
	}
	if part != nil {
		s.drop(part)
		return true
	}
	var oldest *entry
	for _, e := range s.entries {
		if e.users == 0 && (oldest == nil || e.used.Before(oldest.used)) {
			oldest = e
		}
	}
	if oldest == nil {
		return false
	}
	s.meter.evictions.Inc()
	s.evict(oldest)
	return true
}

// hit returns the entry with a name, and counts the caller as a user. It returns nil if there is
// none, or if its files have changed.
func (s *Store) hit(name string) *entry {
	s.mu.Lock()
	defer s.unlock()
	e := s.entries[name]
	if e == nil || !e.Versioned {
		return nil
	}
	if !s.intact(e) {
		delete(s.entries, name) // models that use it have their own links
		s.used -= e.Bytes
		s.discard(s.path(sourcesDir, name))
		return nil
	}
	s.pin(e)
	s.supersede(e)
	return e
}

// supersede marks an entry as the current version of its source, and the others as earlier ones.
// The caller holds mu.
func (s *Store) supersede(e *entry) {
	e.superseded = false
	for _, other := range s.entries {
		if other != e && other.Source == e.Source {
			other.superseded = true
			if other.users == 0 {
				s.evict(other)
			}
		}
	}
}

// hitSource returns the entry of a source that was used last, as hit does. It may be of any version
// that was fetched with these credentials.
func (s *Store) hitSource(source, key string) *entry {
	s.mu.Lock()
	var latest *entry
	for _, e := range s.entries {
		if e.Source == source && e.keys[key] && (latest == nil || e.used.After(latest.used)) {
			latest = e
		}
	}
	s.unlock()
	if latest == nil {
		return nil
	}
	return s.hit(latest.Name)
}

// admit checks that the credentials of a flight give access to the files of an entry that other
// credentials fetched: a listing alone may need fewer rights. It reads the beginning of the largest
// file, because a server may not check rights to an empty one, and hubs serve small files of gated
// repositories to everybody.
func (s *Store) admit(ctx context.Context, f *flight, remote fetch.Remote, e *entry, listed []fetch.Object) error {
	s.mu.Lock()
	known := e.keys[f.key]
	s.unlock()
	if !known && len(listed) > 0 {
		largest := slices.MaxFunc(listed, func(a, b fetch.Object) int { return cmp.Compare(a.Size, b.Size) })
		if err := f.retry(ctx, func() error { return probe(ctx, remote, largest) }); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.unlock()
	e.keys[f.key] = true
	return nil
}

// probe reads the first byte of an object.
func probe(ctx context.Context, remote fetch.Remote, o fetch.Object) error {
	length := int64(-1)
	if o.Size > 0 {
		length = 1
	}
	body, err := remote.Open(ctx, o, 0, length)
	if reasonOf(err) == fetch.NoRange {
		body, err = remote.Open(ctx, o, 0, -1)
	}
	if err != nil {
		return err
	}
	_, err = body.Read(make([]byte, 1))
	_ = body.Close() // the byte has been read
	if reasonOf(err) != "" {
		return err
	}
	return nil
}

// intact reports whether the files of an entry have the recorded sizes.
func (s *Store) intact(e *entry) bool {
	dir := s.path(sourcesDir, e.Name)
	if e.isArchive() {
		_, err := os.Stat(filepath.Join(dir, "files"))
		return err == nil
	}
	for i, o := range e.targets() {
		info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(e.file(i))))
		if err != nil || o.Size >= 0 && info.Size() != o.Size {
			return false
		}
	}
	return true
}
