// Package queue stores the requests that wait for models, in order of arrival. It has no locks and
// reads no clock; package flow adds both.
//
// Each model has its own line. When a copy of the model can serve a request, the first request in
// the line is called. When that request has left the line, the next one is called. So endpoints are
// chosen in order of arrival, and each choice sees the requests before it. A request that gives up
// does not block its line, whether it was called or not.
package queue

import (
	"container/list"
	"errors"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// ErrFull means that too many requests wait for the model, or that waiting requests use too much
// memory.
var ErrFull = errors.New("too many requests are queued")

// Verdict is the state of a model that requests wait for.
type Verdict uint8

const (
	// Waits means that no copy is usable, or that every usable copy is at its concurrency limit.
	Waits Verdict = iota
	// Ready means that a copy has room for another request.
	Ready
	// Failed means that the model cannot be loaded.
	Failed
)

// Queue contains the waiting requests and one value of type H for each. It is not safe for
// concurrent use. Create it with [New].
type Queue[H any] struct {
	maxQueued int
	maxBytes  int64
	bytes     int64
	lines     map[objects.ModelKey]*line[H]
}

// line contains the requests that wait for one model, in order of arrival.
type line[H any] struct {
	key    objects.ModelKey
	places list.List // elements are *Place[H]
	open   bool      // the model's last Verdict was Ready
}

// Place is the position of one waiting request in its line.
type Place[H any] struct {
	Waiter H
	bytes  int64
	since  time.Time
	line   *line[H]
	at     *list.Element // nil after the request has left the line
	called bool
}

// New returns an empty queue. It accepts at most maxHeld requests per model, and bodies of at most
// maxBytes for all models together.
func New[H any](maxHeld int, maxBytes int64) *Queue[H] {
	return &Queue[H]{maxQueued: maxHeld, maxBytes: maxBytes, lines: make(map[objects.ModelKey]*line[H])}
}

// Join appends a request to the end of its model's line, with the value h. Bytes is the size of its
// body.
func (q *Queue[H]) Join(h H, key objects.ModelKey, bytes int64, now time.Time) (*Place[H], error) {
	l := q.lines[key]
	if l != nil && l.places.Len() >= q.maxQueued || q.maxQueued < 1 || q.bytes+bytes > q.maxBytes {
		return nil, ErrFull
	}
	if l == nil {
		l = &line[H]{key: key}
		q.lines[key] = l
	}
	p := &Place[H]{Waiter: h, bytes: bytes, since: now, line: l}
	p.at = l.places.PushBack(p)
	q.bytes += bytes
	return p, nil
}

// Leave removes a request, and returns the next request to call; nil if there is none. It does
// nothing if p was removed before.
func (q *Queue[H]) Leave(p *Place[H]) (next *Place[H]) {
	if p.at == nil {
		return nil
	}
	p.line.places.Remove(p.at)
	p.at = nil
	q.bytes -= p.bytes
	if p.line.places.Len() == 0 {
		delete(q.lines, p.line.key)
		return nil
	}
	return p.line.call()
}

// Back records that a called request found no copy with room. The request keeps its position and
// waits to be called again.
func (q *Queue[H]) Back(p *Place[H]) { p.called, p.line.open = false, false }

// Show records the state of a model. For Ready it returns the request to call, if any. For Failed
// it removes and returns all requests that have not been called.
func (q *Queue[H]) Show(key objects.ModelKey, v Verdict) []*Place[H] {
	l := q.lines[key]
	if l == nil {
		return nil
	}
	l.open = v == Ready
	if v == Failed {
		var all []*Place[H]
		for e := l.places.Front(); e != nil; {
			p := e.Value.(*Place[H])
			if e = e.Next(); !p.called {
				all = append(all, p)
				q.Leave(p)
			}
		}
		return all
	}
	if next := l.call(); next != nil {
		return []*Place[H]{next}
	}
	return nil
}

// call marks the first request in the line as called, and returns it. It returns nil if the model
// is not ready or the request was called before.
func (l *line[H]) call() *Place[H] {
	first := l.places.Front()
	if !l.open || first == nil {
		return nil
	}
	p := first.Value.(*Place[H])
	if p.called {
		return nil
	}
	p.called = true
	return p
}

// Has reports whether any request waits for a model.
func (q *Queue[H]) Has(key objects.ModelKey) bool { return q.lines[key] != nil }

// Named returns, sorted, the models with this name that requests wait for, in all pools.
func (q *Queue[H]) Named(name string) (keys []objects.ModelKey) {
	for key := range q.lines {
		if key.ID == name {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, objects.ModelKey.Compare)
	return keys
}

// WaitingModel is a model that requests wait for.
type WaitingModel struct {
	Key      objects.ModelKey
	Requests int
	Since    time.Time // arrival of the first waiting request
}

// WaitingModels returns every model that requests wait for, sorted.
func (q *Queue[H]) WaitingModels() []WaitingModel {
	all := make([]WaitingModel, 0, len(q.lines))
	for key, l := range q.lines {
		all = append(all, WaitingModel{key, l.places.Len(), l.places.Front().Value.(*Place[H]).since})
	}
	slices.SortFunc(all, func(a, b WaitingModel) int { return a.Key.Compare(b.Key) })
	return all
}

// Bytes returns the total size of the bodies of all waiting requests.
func (q *Queue[H]) Bytes() int64 { return q.bytes }
