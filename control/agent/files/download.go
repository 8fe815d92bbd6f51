package files

import (
	"context"
	"errors"
	"os"
	"path"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/agent/fetch"
)

// download returns the entry of a record, and counts the caller as a user. It fetches what is
// missing, unless the entry exists: then hit is true.
func (s *Store) download(ctx context.Context, f *flight, remote fetch.Remote, r record) (e *entry, hit bool, err error) {
	if parts(r.targets(), s.config.PartSize) > maxParts {
		return nil, false, fail(fetch.Full, r.URI, "it is larger than %s, which is the limit; correct the source", size(maxParts*s.config.PartSize))
	}
	var p *partial
	for {
		if e := s.hit(r.Name); e != nil {
			if err := s.admit(ctx, f, remote, e, r.listed); err != nil {
				s.mu.Lock()
				defer s.unlock()
				s.unpin(e)
				return nil, false, err
			}
			return e, true, nil
		}
		var wait <-chan struct{}
		if p, wait = s.begin(r); wait == nil {
			break
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	stop := s.logProgress(f)
	defer stop()
	r.PartSize, r.Boot = s.config.PartSize, s.boot
	again := false // the download began anew because a digest was wrong
	for {
		t, err := s.prepare(f, remote, r, p)
		if err == nil {
			if err = t.run(ctx); err == nil {
				err = t.complete(ctx)
			}
			err = errors.Join(err, t.close())
		}
		switch {
		case err == nil:
			e, err = s.adopt(&t.record, p, f.key)
			return e, false, err
		case reasonOf(err) == fetch.NoRange && r.PartSize > 0:
			r.PartSize = 0
			s.restart(p)
			continue
		case reasonOf(err) == fetch.Corrupt && t.resumed && !again:
			again = true
			s.restart(p)
			continue
		case isNoSpace(err):
			if s.makeRoom(p, p.bytes) {
				continue
			}
			err = full(r.URI)
		}
		s.end(&t.record, p, ctx.Err() != nil || reasonOf(err) == fetch.Busy)
		return nil, false, s.explain(r.URI, err)
	}
}

// isNoSpace reports whether an error is that of a full disk or quota.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// full returns the error of a full disk.
func full(uri string) error {
	return fail(fetch.Full, uri, "the disk is full; make it larger or unload models")
}

// explain converts an error of the disk to a [fetch.Error] for clients of the agent.
func (s *Store) explain(uri string, err error) error {
	if e, is := errors.AsType[*fetch.Error](err); is {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	s.config.Log.Error("cannot write the files of models", "err", err)
	return fail(fetch.Invalid, uri, "the agent cannot write its files: %v; check the volume of --models-dir", withoutPath(err))
}

// begin makes the caller the only one that downloads a source. If another caller downloads it, or
// has just finished, begin returns a channel. The caller tries again when the channel is closed.
func (s *Store) begin(r record) (p *partial, wait <-chan struct{}) {
	s.mu.Lock()
	defer s.unlock()
	p = s.partials[r.Name]
	switch {
	case s.entries[r.Name] != nil:
		closed := make(chan struct{})
		close(closed)
		return nil, closed
	case p != nil && p.running != nil:
		return nil, p.running
	case p == nil:
		p = &partial{name: r.Name, source: r.Source}
		s.partials[r.Name] = p
	}
	p.running, p.used = make(chan struct{}), s.config.Now()
	for _, other := range s.partials {
		if other.source == r.Source && other.running == nil {
			s.drop(other) // another version
		}
	}
	return p, nil
}

// end ends a download that failed. If keep is true, what has arrived stays for the next attempt.
func (s *Store) end(r *record, p *partial, keep bool) {
	have := int64(0)
	if keep && r.Versioned {
		have = leftover(s.path(partialDir, r.Name), r)
	}
	s.mu.Lock()
	defer s.unlock()
	close(p.running)
	p.running, p.used = nil, s.config.Now()
	s.used += have - p.bytes
	p.bytes = have
	if have == 0 {
		s.drop(p)
	}
}

// leftover returns the number of bytes that have arrived in a partial folder. It removes what was
// unpacked of archives.
func leftover(dir string, r *record) int64 {
	if r.isArchive() {
		removeTree(path.Join(dir, "files"))
	}
	if _, err := os.Stat(path.Join(dir, journalFile)); err != nil {
		return 0
	}
	j, err := openJournal(path.Join(dir, journalFile), len(divide(r.targets(), r.PartSize)))
	if err != nil {
		return 0
	}
	defer j.close()
	return j.sum()
}

// restart removes what has arrived.
func (s *Store) restart(p *partial) {
	removeTree(s.path(partialDir, p.name))
	s.mu.Lock()
	defer s.unlock()
	s.used -= p.bytes
	p.bytes = 0
}

// transfer fetches the parts of one source into its partial folder.
type transfer struct {
	record
	store   *Store
	flight  *flight
	remote  fetch.Remote
	partial *partial
	root    *os.Root // the partial folder
	objects []fetch.Object
	parts   []part
	journal *journal
	resumed bool // parts are from an earlier attempt
}

// prepare opens the partial folder of a source, or makes one, and reserves room for what is
// missing.
func (s *Store) prepare(f *flight, remote fetch.Remote, r record, p *partial) (*transfer, error) {
	t := &transfer{record: r, store: s, flight: f, remote: remote, partial: p, objects: r.listed}
	dir := s.path(partialDir, r.Name)
	earlier, _, err := readRecord(dir)
	if err == nil && earlier.PartSize == r.PartSize && earlier.Name == r.Name && earlier.survives(s.boot) {
		t.resumed = true
	} else {
		removeTree(dir)
		if err := errors.Join(os.MkdirAll(dir, 0o755), writeJSON(path.Join(dir, recordFile), r)); err != nil {
			return t, err
		}
	}
	t.parts = divide(t.objects, r.PartSize)
	if t.root, err = os.OpenRoot(dir); err != nil {
		return t, err
	}
	if t.journal, err = openJournal(path.Join(dir, journalFile), len(t.parts)); err != nil {
		return t, errors.Join(err, t.close())
	}
	total := int64(0)
	for _, part := range t.parts {
		if have := t.journal.bytes(part.index); part.length >= 0 && have > part.length ||
			!t.journal.done(part.index) && versionOf(t.objects[part.object]) == "" {
			t.journal.have[part.index] = 0
		}
		total += max(part.length, t.journal.bytes(part.index))
	}
	f.total.Store(total)
	f.kept.Store(t.journal.sum())
	f.fetched.Store(0)
	s.mu.Lock()
	counted := p.bytes
	s.mu.Unlock()
	if err := s.reserve(p, r.URI, total-counted); err != nil {
		return t, errors.Join(err, t.close())
	}
	return t, nil
}

// close closes the files of a transfer, once.
func (t *transfer) close() (err error) {
	if t.journal != nil {
		err = t.journal.close()
	}
	if t.root != nil {
		err = errors.Join(err, t.root.Close())
	}
	t.journal, t.root = nil, nil
	return err
}

// run fetches all parts that are missing, several at a time, and checks each object when it is
// complete.
func (t *transfer) run(ctx context.Context) error {
	missing := make([]int32, len(t.objects))
	for _, p := range t.parts {
		if !t.journal.done(p.index) {
			missing[p.object]++
		}
	}
	for i := range t.objects {
		if err := t.root.MkdirAll(path.Dir(t.file(i)), 0o755); err != nil {
			return err
		}
	}
	pending := newCounts(missing)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(t.store.config.Concurrency)
	for i, n := range missing {
		if n == 0 {
			g.Go(func() error { return t.check(ctx, i) })
		}
	}
	for _, p := range t.parts {
		if t.journal.done(p.index) {
			continue
		}
		g.Go(func() error {
			if err := t.fetch(ctx, p); err != nil {
				return err
			}
			if pending.less(p.object) {
				return nil
			}
			return t.check(ctx, p.object)
		})
	}
	return g.Wait()
}
