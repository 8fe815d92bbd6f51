// Package queue keeps the requests that wait for models, in order. It is pure; package flow adds
// locks and clocks.
//
// Each model has a line of its own. When a copy of the model can take a request, the first in line
// is called. When that request has left, the next is called. So requests are decided in the order
// in which they came, each after the one before it is counted. A request that gives up, called or
// not, does not stop the line.
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
	// Waits means that no copy is usable, or that every copy is at its limit.
	Waits Verdict = iota
	// Ready means that a copy can take a request.
	Ready
	// Failed means that the model cannot be loaded.
	Failed
)

// Queue contains the waiting requests, each with a value of type H. It is not safe for concurrent
// use. Create it with [New].
type Queue[H any] struct {
	maxQueued int
	maxBytes  int64
	bytes     int64
	lines     map[objects.ModelKey]*line[H]
}

// line contains the requests that wait for one model, in order of arrival.
type line[H any] struct {
	key    objects.ModelKey
	places list.List // of *Place[H]
	open   bool      // the last verdict was Ready
}

// Place is the position of one waiting request, until it leaves.
type Place[H any] struct {
	Waiter H
	bytes  int64
	since  time.Time
	line   *line[H]
	at     *list.Element // nil after it has left
	called bool
}

// New returns a queue with at most maxHeld requests per model and at most maxBytes in all.
func New[H any](maxHeld int, maxBytes int64) *Queue[H] {
	return &Queue[H]{maxQueued: maxHeld, maxBytes: maxBytes, lines: make(map[objects.ModelKey]*line[H])}
}

// Join appends h, a request of this many bytes, to the line of a model.
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

// Leave removes a place, and returns the next one to call, if any. It does nothing if p has already
// left.
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

// Back records that a called request found no copy. It keeps its position and waits for the next
// call.
func (q *Queue[H]) Back(p *Place[H]) { p.called, p.line.open = false, false }

// Show sets the state of a model. It returns the request to call, if any. For Failed it removes all
// requests that have not been called, and returns them.
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

// call calls the first in line if the model is ready and this request was not called before.
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

// Named returns the models of this name that requests wait for, in any pool, sorted.
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
	Since    time.Time // arrival of the first of them
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

// Bytes returns the total size of waiting requests.
func (q *Queue[H]) Bytes() int64 { return q.bytes }
