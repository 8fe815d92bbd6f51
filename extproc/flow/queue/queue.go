// Package queue is who waits for which model, and in which order they go on. It is pure: package
// flow is its edge.
//
// Each model has a line of its own. When a copy of the model takes a request the first in line is
// called, and when that one has left, the next: so decisions are made in the order in which
// requests came, each after the one before it is counted. One that leaves without having gone on,
// called or not, lets the next be called all the same.
package queue

import (
	"container/list"
	"errors"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// ErrFull says that there is no place: too many wait for the model, or what all that wait hold is
// too large.
var ErrFull = errors.New("too many requests wait")

// Verdict is what is known of a model that is waited for.
type Verdict uint8

const (
	// Waits: there is no copy that can be used, or each has as many requests as it takes.
	Waits Verdict = iota
	// Ready: there is one.
	Ready
	// Failed: it cannot be loaded.
	Failed
)

// Queue holds those that wait, H each. It is not safe for concurrent use. Make one with [New].
type Queue[H any] struct {
	maxHeld  int
	maxBytes int64
	bytes    int64
	lines    map[objects.ModelKey]*line[H]
}

// line is those that wait for one model, first come first.
type line[H any] struct {
	key    objects.ModelKey
	places list.List // of *Place[H]
	open   bool      // the model is ready
}

// Place is the place of one that waits, until it leaves.
type Place[H any] struct {
	Holder H
	bytes  int64
	since  time.Time
	line   *line[H]
	at     *list.Element // nil when it has left
	called bool
}

// New returns a queue in which at most maxHeld wait for each model, and hold at most maxBytes
// together.
func New[H any](maxHeld int, maxBytes int64) *Queue[H] {
	return &Queue[H]{maxHeld: maxHeld, maxBytes: maxBytes, lines: make(map[objects.ModelKey]*line[H])}
}

// Join gives h, which holds bytes, the last place in the line of a model.
func (q *Queue[H]) Join(h H, key objects.ModelKey, bytes int64, now time.Time) (*Place[H], error) {
	l := q.lines[key]
	if l != nil && l.places.Len() >= q.maxHeld || q.maxHeld < 1 || q.bytes+bytes > q.maxBytes {
		return nil, ErrFull
	}
	if l == nil {
		l = &line[H]{key: key}
		q.lines[key] = l
	}
	p := &Place[H]{Holder: h, bytes: bytes, since: now, line: l}
	p.at = l.places.PushBack(p)
	q.bytes += bytes
	return p, nil
}

// Leave ends a place, and returns the one to call next, if there is one. A place that has left
// changes nothing.
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

// Back says that one that was called has found no copy: it waits on, before all others.
func (q *Queue[H]) Back(p *Place[H]) { p.called, p.line.open = false, false }

// Show says how it stands with a model, and returns those whom that concerns: the one to call, or
// with Failed all that have not been called, which have left then.
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

// call calls the first in line if the model is ready and it was not called before.
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

// Has says whether anyone waits for a model.
func (q *Queue[H]) Has(key objects.ModelKey) bool { return q.lines[key] != nil }

// Named returns the models of a name that anyone waits for, in whatever pools, in order.
func (q *Queue[H]) Named(name string) (keys []objects.ModelKey) {
	for key := range q.lines {
		if key.ID == name {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, objects.ModelKey.Compare)
	return keys
}

// Wanted is a model that requests wait for.
type Wanted struct {
	Key      objects.ModelKey
	Requests int
	Since    time.Time // when the first of them came
}

// Wanted returns every model that requests wait for, in order.
func (q *Queue[H]) Wanted() []Wanted {
	all := make([]Wanted, 0, len(q.lines))
	for key, l := range q.lines {
		all = append(all, Wanted{key, l.places.Len(), l.places.Front().Value.(*Place[H]).since})
	}
	slices.SortFunc(all, func(a, b Wanted) int { return a.Key.Compare(b.Key) })
	return all
}

// Bytes is how much those that wait hold.
func (q *Queue[H]) Bytes() int64 { return q.bytes }
