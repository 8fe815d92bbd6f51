// Package store remembers what a folder of objects cannot hold, because it is the user's: the models that clients
// registered, what was asked of engines, and the status of models. It is one file beside the folder (bbolt: a B+tree of
// pages that a crash leaves whole; one process at a time).
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Buckets of the file. Values are JSON.
var (
	models   = []byte("models")   // registered, by object name
	copies   = []byte("copies")   // by endpoint, pool and id
	runtimes = []byte("runtimes") // by endpoint
	statuses = []byte("statuses") // by pool and id
)

// Store is safe for concurrent use. Open one with [Open].
type Store struct {
	db     *bbolt.DB
	log    *slog.Logger
	writes chan write
	done   chan struct{} // closed when no more is written
}

// write is what one caller wants to have written; several go into one transaction.
type write struct {
	changes []change
	written chan error // nil: nobody waits
}

type change struct {
	bucket []byte
	key    string
	value  any // nil deletes
}

// maxTogether bounds how many writes go into one transaction.
const maxTogether = 1024

// Open opens the file, or makes it. Another process that has it open is an error after a moment.
func Open(path string, log *slog.Logger) (*Store, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 2 * time.Second})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%s: another process has it open: one control at a time decides", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{models, copies, runtimes, statuses} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &Store{db: db, log: log, writes: make(chan write, maxTogether), done: make(chan struct{})}
	go s.run()
	return s, nil
}

// Close writes what is still to be written and closes the file. Nobody may call another method meanwhile or after.
func (s *Store) Close() error {
	close(s.writes)
	<-s.done
	return s.db.Close()
}

// run writes: all that has come since the last transaction goes into the next one, so that many callers share the wait
// for the disk.
func (s *Store) run() {
	defer close(s.done)
	for first := range s.writes {
		together := []write{first}
	more:
		for len(together) < maxTogether {
			select {
			case w, ok := <-s.writes:
				if !ok {
					break more
				}
				together = append(together, w)
			default:
				break more
			}
		}
		err := s.db.Update(func(tx *bbolt.Tx) error {
			for _, w := range together {
				for _, c := range w.changes {
					if err := c.apply(tx); err != nil {
						return err
					}
				}
			}
			return nil
		})
		for _, w := range together {
			switch {
			case w.written != nil:
				w.written <- err
			case err != nil:
				s.log.Error("what is known of models cannot be written; it is known until control ends", "err", err)
			}
		}
	}
}

func (c change) apply(tx *bbolt.Tx) error {
	b := tx.Bucket(c.bucket)
	if c.value == nil {
		return b.Delete([]byte(c.key))
	}
	value, err := json.Marshal(c.value)
	if err != nil {
		return err
	}
	return b.Put([]byte(c.key), value)
}

// begin writes the changes in order with all others, and returns what waits until they are on the disk.
func (s *Store) begin(changes ...change) (wait func() error) {
	w := write{changes, make(chan error, 1)}
	s.writes <- w
	return func() error { return <-w.written }
}

// now returns when the changes are on the disk.
func (s *Store) now(changes ...change) error { return s.begin(changes...)() }

// later returns at once; the changes are written in order with all others.
func (s *Store) later(changes ...change) { s.writes <- write{changes: changes} }

// key joins parts to a key: none of them has a byte 0.
func key(parts ...string) string { return strings.Join(parts, "\x00") }

// PutModel writes a registered model, in order with other calls. Wait returns when it is on the disk.
func (s *Store) PutModel(m *v1alpha1.Model) (wait func() error) {
	return s.begin(change{models, key(m.Namespace, m.Name), m})
}

// DeleteModel forgets a registered model and its status, as PutModel.
func (s *Store) DeleteModel(m *v1alpha1.Model) (wait func() error) {
	return s.begin(change{models, key(m.Namespace, m.Name), nil}, change{statuses, key(m.Namespace+"/"+m.Spec.PoolRef.Name, m.Spec.ID), nil})
}

// PutCopy writes what is asked of an engine. With wait, it returns when that is on the disk.
func (s *Store) PutCopy(c objects.CopyRecord, wait bool) error {
	return s.put(change{copies, key(c.Endpoint, c.Pool, c.ID), c}, wait)
}

// DeleteCopy forgets a copy.
func (s *Store) DeleteCopy(endpoint, pool, id string) {
	s.later(change{copies, key(endpoint, pool, id), nil})
}

// PutRuntime writes what a runtime said of itself, and returns when it is on the disk.
func (s *Store) PutRuntime(r objects.RuntimeRecord) error {
	return s.now(change{runtimes, r.Endpoint, r})
}

// PutStatuses writes the status of models, when there is time.
func (s *Store) PutStatuses(all []objects.ModelRecord) {
	changes := make([]change, len(all))
	for i, st := range all {
		changes[i] = change{statuses, key(st.Pool, st.ID), st}
		if st.Gone {
			changes[i].value = nil
		}
	}
	s.later(changes...)
}

func (s *Store) put(c change, wait bool) error {
	if wait {
		return s.now(c)
	}
	s.later(c)
	return nil
}

// Models returns the registered models.
func (s *Store) Models() ([]v1alpha1.Model, error) { return read[v1alpha1.Model](s, models) }

// Copies returns what was last asked of engines.
func (s *Store) Copies() ([]objects.CopyRecord, error) { return read[objects.CopyRecord](s, copies) }

// Runtimes returns what runtimes said of themselves.
func (s *Store) Runtimes() ([]objects.RuntimeRecord, error) {
	return read[objects.RuntimeRecord](s, runtimes)
}

// Statuses returns the status of models.
func (s *Store) Statuses() ([]objects.ModelRecord, error) {
	return read[objects.ModelRecord](s, statuses)
}

func read[T any](s *Store, bucket []byte) (all []T, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(k, value []byte) error {
			var v T
			if err := json.Unmarshal(value, &v); err != nil {
				return fmt.Errorf("%s: %s %q: %w", s.db.Path(), bucket, k, err)
			}
			all = append(all, v)
			return nil
		})
	})
	return all, err
}
