package files

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/control/agent/fetch"
)

const (
	// bufferSize is the number of bytes that are written to disk at once.
	bufferSize = 256 << 10
	// stallTimeout is the time without a byte after which a request is tried again.
	stallTimeout = time.Minute
)

// counts are numbers of parts, one for each object.
type counts []atomic.Int32

// newCounts returns counts with these values.
func newCounts(values []int32) counts {
	c := make(counts, len(values))
	for i, n := range values {
		c[i].Store(n)
	}
	return c
}

// less subtracts one from a count, and reports whether more is left.
func (c counts) less(i int) bool { return c[i].Add(-1) > 0 }

// fetch fetches one part. It tries again after errors that may pass.
func (t *transfer) fetch(ctx context.Context, p part) error {
	file, err := t.root.OpenFile(t.file(p.object), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	err = t.flight.retry(ctx, func() error {
		select {
		case t.store.slots <- struct{}{}:
			defer func() { <-t.store.slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
		err := t.stream(ctx, p, file)
		if reasonOf(err) == fetch.NoRange && p.whole && t.journal.bytes(p.index) > 0 {
			if err := t.rewind(p); err != nil {
				return err
			}
			return t.stream(ctx, p, file)
		}
		return err
	})
	return errors.Join(err, file.Close())
}

// rewind discards what has arrived of a part.
func (t *transfer) rewind(p part) error {
	have := t.journal.bytes(p.index)
	t.flight.fetched.Add(-have)
	if p.length < 0 {
		if err := t.grow(-have); err != nil {
			return err
		}
	}
	return t.journal.set(p.index, 0, false)
}

// grow counts n more bytes than the listing announced.
func (t *transfer) grow(n int64) error { return t.store.reserve(t.partial, t.URI, n) }

// stream reads the rest of a part by one request.
func (t *transfer) stream(ctx context.Context, p part, file *os.File) error {
	o := t.objects[p.object]
	if versionOf(o) == "" && t.journal.bytes(p.index) > 0 {
		if err := t.rewind(p); err != nil {
			return err
		}
	}
	have := t.journal.bytes(p.index)
	if p.length >= 0 && have == p.length {
		return t.journal.set(p.index, have, true)
	}
	length := p.length - have
	if p.whole {
		length = -1
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled := atomic.Bool{}
	timer := time.AfterFunc(stallTimeout, func() { stalled.Store(true); cancel() })
	defer timer.Stop()
	body, err := t.remote.Open(ctx, o, p.offset+have, length)
	if err == nil {
		err = t.copy(p, file, &lively{body, timer})
		_ = body.Close() // what was needed has been read
	}
	if stalled.Load() {
		return fail(fetch.Busy, t.URI, "the server sent nothing for %v", stallTimeout)
	}
	return err
}

// copy writes the rest of a part to its file, and counts what it has written.
func (t *transfer) copy(p part, file *os.File, body io.Reader) error {
	buffer := t.store.buffers.Get().(*[]byte)
	defer t.store.buffers.Put(buffer)
	have := t.journal.bytes(p.index)
	for p.length < 0 || have < p.length {
		into := *buffer
		if p.length >= 0 {
			into = into[:min(int64(len(into)), p.length-have)]
		}
		n, err := io.ReadFull(body, into)
		if n > 0 {
			if p.length < 0 {
				if err := t.grow(int64(n)); err != nil {
					return err
				}
			}
			if _, err := file.WriteAt(into[:n], p.offset+have); err != nil {
				return err
			}
			have += int64(n)
			if err := t.journal.set(p.index, have, false); err != nil {
				return err
			}
			t.flight.fetched.Add(int64(n))
			t.store.meter.bytes.WithLabelValues(string(t.Scheme)).Add(float64(n))
		}
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		switch {
		case err == nil:
		case ended && p.length < 0:
			return t.journal.set(p.index, have, true)
		case ended && have == p.length:
		case reasonOf(err) != "" || errors.Is(err, context.Canceled):
			return err
		default:
			return fail(fetch.Busy, t.URI, "the connection broke after %s of %s", size(p.offset+have), size(t.objects[p.object].Size))
		}
	}
	if p.whole {
		if n, _ := io.ReadFull(body, (*buffer)[:1]); n > 0 {
			return fail(fetch.Changed, t.URI, "the server sends more than the %s that it announced", size(p.length))
		}
	}
	return t.journal.set(p.index, have, true)
}

// lively is a body that postpones a timeout whenever bytes arrive.
type lively struct {
	body  io.Reader
	timer *time.Timer
}

func (l *lively) Read(into []byte) (int, error) {
	n, err := l.body.Read(into)
	if n > 0 {
		l.timer.Reset(stallTimeout)
	}
	return n, err
}

// check compares the size and the digest of a complete object with those of the listing.
func (t *transfer) check(ctx context.Context, i int) error {
	o := t.objects[i]
	file, err := t.root.Open(t.file(i))
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if o.Size >= 0 && info.Size() != o.Size {
		return fail(fetch.Corrupt, t.URI, "%s has %d bytes instead of %d", shorten(o.Name), info.Size(), o.Size)
	}
	sum, want := fetch.NewHash(o.Digest)
	if sum == nil {
		return nil
	}
	buffer := t.store.buffers.Get().(*[]byte)
	defer t.store.buffers.Put(buffer)
	for {
		n, err := file.Read(*buffer)
		sum.Write((*buffer)[:n])
		switch {
		case errors.Is(err, io.EOF):
			if got := hex.EncodeToString(sum.Sum(nil)); got != strings.ToLower(want) {
				return fail(fetch.Corrupt, t.URI, "%s has the digest %s instead of %s; upload it again", shorten(o.Name), got, o.Digest)
			}
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}
