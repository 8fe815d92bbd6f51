package files

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/storage"
)

const (
	// firstPause and lastPause are the pauses before the first and after many failed requests.
	firstPause = 250 * time.Millisecond
	lastPause  = 10 * time.Second
	// maxChanges is how often a source may change while it is fetched.
	maxChanges = 3
)

// flight is one fetch of a source, for all callers that ask for it at the same time.
type flight struct {
	key    string
	uri    string
	scheme storage.Scheme
	cancel context.CancelFunc
	done   chan struct{} // closed when the fetch has ended
	entry  *entry        // the result, which counts the flight as a user; set before done is closed
	err    error         // why there is none; set before done is closed

	waiters int // callers that wait for the fetch or use its result; guarded by Store.mu

	busy    atomic.Pointer[fetch.Error] // the latest error after which a request is tried again
	fetched atomic.Int64                // bytes that arrived, less those that were discarded
	kept    atomic.Int64                // bytes of an interrupted download that need not be fetched
	total   atomic.Int64                // bytes of the source, as far as known
}

// join returns the fetch of a source, and starts one if there is none. The caller must leave it.
func (s *Store) join(src storage.Source) (*flight, error) {
	key := src.Key()
	s.mu.Lock()
	defer s.unlock()
	if s.closed {
		return nil, fail(fetch.Busy, src.URI, "the agent is shutting down")
	}
	last := s.flights[key]
	if last != nil && last.waiters > 0 {
		last.waiters++
		return last, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &flight{key: key, uri: src.URI, scheme: src.Scheme, cancel: cancel, done: make(chan struct{}), waiters: 1}
	s.flights[key] = f
	s.tasks.Go(func() {
		if last != nil { // it has no waiters and is about to end
			<-last.done
		}
		e, err := s.obtain(ctx, f, src)
		s.finish(f, e, err)
	})
	return f, nil
}

// finish ends a flight. The entry counts the flight as a user until the last caller leaves.
func (s *Store) finish(f *flight, e *entry, err error) {
	s.mu.Lock()
	defer s.unlock()
	if s.flights[f.key] == f {
		delete(s.flights, f.key)
	}
	f.entry, f.err = e, err
	if f.waiters == 0 && e != nil {
		s.unpin(e)
	}
	close(f.done)
}

// leave removes one waiter. The last one stops the fetch.
func (s *Store) leave(f *flight) {
	s.mu.Lock()
	defer s.unlock()
	f.waiters--
	if f.waiters > 0 {
		return
	}
	f.cancel()
	select {
	case <-f.done:
		if f.entry != nil {
			s.unpin(f.entry)
		}
	default: // finish does it
	}
}

// interrupted returns the error of a caller whose context ends before the fetch.
func (f *flight) interrupted(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if e := f.busy.Load(); e != nil {
		return e
	}
	have, total := f.kept.Load()+f.fetched.Load(), f.total.Load()
	if total == 0 {
		return fail(fetch.Busy, f.uri, "the server did not answer within the load timeout")
	}
	return fail(fetch.Busy, f.uri, "%s of %s arrived within the load timeout; the next attempt continues there", size(have), size(total))
}

// obtain returns the entry of a source, and counts the caller as a user of it.
func (s *Store) obtain(ctx context.Context, f *flight, src storage.Source) (*entry, error) {
	began := time.Now()
	e, hit, err := s.versions(ctx, f, src)
	s.meter.ended(f, began, hit, err)
	if err != nil && reasonOf(err) == "" && ctx.Err() != nil {
		err = fail(fetch.Busy, src.URI, "the download was stopped because the agent shuts down")
	}
	return e, err
}

// versions lists a source until the files of a listing are here, or it has changed too often.
func (s *Store) versions(ctx context.Context, f *flight, src storage.Source) (e *entry, hit bool, err error) {
	var remote fetch.Remote
	defer func() {
		if remote != nil {
			_ = remote.Close() // everything has been read
		}
	}()
	for changes := 0; ; changes++ {
		var listing fetch.Listing
		err := f.retry(ctx, func() (err error) {
			if remote == nil {
				if remote, err = s.config.Open(ctx, src); err != nil {
					remote = nil
					return err
				}
			}
			listing, err = remote.List(ctx)
			if reasonOf(err) == fetch.Busy && immutable(src) {
				if e = s.hitSource(sourceHash(src), f.key); e != nil {
					return nil
				}
			}
			return err
		})
		if err != nil || e != nil {
			return e, e != nil, err
		}
		r, err := describe(src, listing)
		if err != nil {
			return nil, false, err
		}
		e, hit, err = s.download(ctx, f, remote, r)
		if reasonOf(err) != fetch.Changed || changes == maxChanges {
			return e, hit, err
		}
	}
}

// immutable reports whether a source names its content, so that its files never change.
func immutable(src storage.Source) bool {
	switch src.Scheme {
	case storage.OCI:
		return len(src.Revision) == len("sha256:")+64 && src.Revision[:7] == "sha256:" && isHex(src.Revision[7:])
	case storage.Hub:
		return len(src.Revision) == 40 && isHex(src.Revision)
	}
	return false
}

// isHex reports whether s consists of hexadecimal digits.
func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// retry calls do until it succeeds, fails permanently, or ctx ends. The pauses grow, except after
// calls in which bytes arrived. They are at least as long as the server's Retry-After.
func (f *flight) retry(ctx context.Context, do func() error) error {
	pause := firstPause
	for {
		before := f.fetched.Load()
		err := do()
		var e *fetch.Error
		switch {
		case err == nil:
			f.busy.Store(nil)
			return nil
		case !errors.As(err, &e) || e.Reason != fetch.Busy || ctx.Err() != nil:
			return err
		}
		f.busy.Store(e)
		if f.fetched.Load() > before {
			pause = firstPause
		}
		wait := pause/2 + rand.N(pause/2)
		timer := time.NewTimer(max(wait, time.Duration(e.RetryAfter)*time.Second))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		pause = min(2*pause, lastPause)
	}
}
