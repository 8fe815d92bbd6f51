package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/headgate/headgate/api/v1alpha1"
)

// Buckets of the file. Values are JSON.
var (
	models   = []byte("models")   // registered models, by object name
	copies   = []byte("copies")   // copies, by endpoint, pool and model id
	runtimes = []byte("runtimes") // model runtimes, by endpoint
	statuses = []byte("statuses") // statuses of models, by pool and model id
	vmodels  = []byte("vmodels")  // registered VModels, by object name
	moves    = []byte("moves")    // statuses of VModels, by pool and VModel id
	drains   = []byte("drains")   // drained endpoints, by address
)

// File is a Memory that keeps its state in a bbolt file. The file survives crashes, and only one
// process can open it at a time. Open one with [Open].
type File struct {
	db     *bbolt.DB
	log    *slog.Logger
	writes chan write
	done   chan struct{} // closed after the last write
}

// write contains the changes of one caller. Several writes may share a transaction.
type write struct {
	changes []change
	written chan error // receives the result; nil: the caller does not wait
}

type change struct {
	bucket []byte
	key    string
	value  any // nil deletes
}

// maxTogether is the maximum number of writes in one transaction.
const maxTogether = 1024

// lockTimeout is how long another process, such as a control that stops, may still hold the file.
const lockTimeout = 2 * time.Second

// Open opens or creates the file. It fails if another process still has the file open after
// lockTimeout, or if the file is corrupt. If Open fails, it does not change the file.
func Open(path string, log *slog.Logger) (*File, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{OpenFile: openChecked})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{models, copies, runtimes, statuses, vmodels, moves, drains} {
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
	f := &File{db: db, log: log, writes: make(chan write, maxTogether), done: make(chan struct{})}
	go f.run()
	return f, nil
}

// openChecked opens and locks a file, and checks its content before bbolt reads it.
func openChecked(path string, flag int, mode os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, errors.Unwrap(err) // the caller adds the path
	}
	err = lock(f)
	if err == nil {
		err = checkFile(f)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func lock(f *os.File) error {
	limit := time.NewTimer(lockTimeout)
	defer limit.Stop()
	again := time.NewTicker(lockTimeout / 40)
	defer again.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-again.C:
		case <-limit.C:
			return errors.New("another process has it open: only one control at a time may use it")
		}
	}
}

func checkFile(f *os.File) error {
	all, err := io.ReadAll(f)
	if err != nil || len(all) == 0 {
		return err
	}
	if err := check(all); err != nil {
		return fmt.Errorf("it is damaged: %w. control did not change it: restore a backup, or move it away. Without it, control lists the models of engines, and clients must register their models again", err)
	}
	return nil
}

// Close writes what is queued and closes the file. No other method may be called during or after
// it.
func (f *File) Close() error {
	close(f.writes)
	<-f.done
	return f.db.Close()
}

// run writes: all changes since the last transaction go into the next one, so that callers share
// the wait for the disk.
func (f *File) run() {
	defer close(f.done)
	for first := range f.writes {
		together := []write{first}
	more:
		for len(together) < maxTogether {
			select {
			case w, ok := <-f.writes:
				if !ok {
					break more
				}
				together = append(together, w)
			default:
				break more
			}
		}
		err := f.db.Update(func(tx *bbolt.Tx) error {
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
				f.log.Error("cannot write the state file; this change is lost when control ends", "err", err)
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

// begin queues changes in order, and returns a function that waits until they are on disk.
func (f *File) begin(changes ...change) (wait func() error) {
	w := write{changes, make(chan error, 1)}
	f.writes <- w
	return func() error { return <-w.written }
}

// now returns when the changes are on disk.
func (f *File) now(changes ...change) error { return f.begin(changes...)() }

// later queues changes and returns.
func (f *File) later(changes ...change) { f.writes <- write{changes: changes} }

// key joins parts, none of which contains a byte 0.
func key(parts ...string) string { return strings.Join(parts, "\x00") }

// PutModel writes a registered model. The function wait returns when the model is on disk.
func (f *File) PutModel(m *v1alpha1.Model) (wait func() error) {
	return f.begin(change{models, key(m.Namespace, m.Name), m})
}

// DeleteModel deletes a registered model and its status, like PutModel.
func (f *File) DeleteModel(m *v1alpha1.Model) (wait func() error) {
	return f.begin(change{models, key(m.Namespace, m.Name), nil},
		change{statuses, key(m.Namespace+"/"+m.Spec.PoolRef.Name, m.Spec.ID), nil})
}

// PutVModel writes a registered VModel, like PutModel.
func (f *File) PutVModel(v *v1alpha1.VModel, _ bool) (wait func() error) {
	return f.begin(change{vmodels, key(v.Namespace, v.Name), v})
}

// DeleteVModel deletes a registered VModel and its status. wait returns as for PutModel.
func (f *File) DeleteVModel(v *v1alpha1.VModel) (wait func() error) {
	return f.begin(change{vmodels, key(v.Namespace, v.Name), nil}, change{moves, key(v.Namespace+"/"+v.Spec.PoolRef.Name, v.Spec.ID), nil})
}

// PutCopy writes a copy. With wait, it returns when the copy is on disk.
func (f *File) PutCopy(c Copy, wait bool) error {
	return f.put(change{copies, key(c.Endpoint, c.Pool, c.ID), c}, wait)
}

// DeleteCopy deletes a copy.
func (f *File) DeleteCopy(endpoint, pool, id string) {
	f.later(change{copies, key(endpoint, pool, id), nil})
}

// PutRuntime writes the record of a runtime, and returns when the record is on disk.
func (f *File) PutRuntime(r Runtime) error {
	return f.now(change{runtimes, r.Endpoint, r})
}

// DeleteRuntime deletes a runtime.
func (f *File) DeleteRuntime(endpoint string) {
	f.later(change{runtimes, endpoint, nil})
}

// PutStatuses queues statuses of models.
func (f *File) PutStatuses(all []Status) {
	changes := make([]change, len(all))
	for i, st := range all {
		changes[i] = change{statuses, key(st.Pool, st.ID), st}
		if st.Gone {
			changes[i].value = nil
		}
	}
	f.later(changes...)
}

// PutGate does nothing: with a folder of objects, control sets no conditions of pods.
func (f *File) PutGate(Gate) {}

// PutDrain writes that an endpoint is drained, and returns when that is on disk.
func (f *File) PutDrain(d Drain) error { return f.now(change{drains, d.Endpoint, d}) }

// DeleteDrain deletes that an endpoint is drained.
func (f *File) DeleteDrain(endpoint string) { f.later(change{drains, endpoint, nil}) }

// PutVModelStatuses queues statuses of VModels.
func (f *File) PutVModelStatuses(all []VModelStatus) {
	changes := make([]change, len(all))
	for i, st := range all {
		changes[i] = change{moves, key(st.Pool, st.ID), st}
		if st.Gone {
			changes[i].value = nil
		}
	}
	f.later(changes...)
}

func (f *File) put(c change, wait bool) error {
	if wait {
		return f.now(c)
	}
	f.later(c)
	return nil
}

// Models returns the registered models.
func (f *File) Models() ([]v1alpha1.Model, error) { return read[v1alpha1.Model](f, models) }

// Copies returns the copies.
func (f *File) Copies() ([]Copy, error) { return read[Copy](f, copies) }

// Runtimes returns the runtimes.
func (f *File) Runtimes() ([]Runtime, error) {
	return read[Runtime](f, runtimes)
}

// Statuses returns the statuses of models.
func (f *File) Statuses() ([]Status, error) {
	return read[Status](f, statuses)
}

// VModels returns the registered VModels.
func (f *File) VModels() ([]v1alpha1.VModel, error) { return read[v1alpha1.VModel](f, vmodels) }

// VModelStatuses returns the statuses of VModels.
func (f *File) VModelStatuses() ([]VModelStatus, error) { return read[VModelStatus](f, moves) }

// Drains returns the drained endpoints.
func (f *File) Drains() ([]Drain, error) { return read[Drain](f, drains) }

func read[T any](f *File, bucket []byte) (all []T, err error) {
	err = f.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(k, value []byte) error {
			var v T
			if err := json.Unmarshal(value, &v); err != nil {
				return fmt.Errorf("%s: %s %q: %w", f.db.Path(), bucket, k, err)
			}
			all = append(all, v)
			return nil
		})
	})
	return all, err
}
