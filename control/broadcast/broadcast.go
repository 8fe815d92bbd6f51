// Package broadcast hands the latest value of something, such as the World, to those who follow it.
package broadcast

import (
	"context"
	"sync"
)

// Value is the latest one: what its followers miss while they are busy is none of their business. It is safe for concurrent use. Make
// one with [New].
type Value[T any] struct {
	mu    sync.Mutex // guards the following
	value *T
	newer chan struct{} // closed when there is another value
}

// New returns a Value that has none yet.
func New[T any]() *Value[T] { return &Value[T]{newer: make(chan struct{})} }

// Set replaces the value, which nobody may change any more.
func (l *Value[T]) Set(v *T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value = v
	close(l.newer)
	l.newer = make(chan struct{})
}

// Get returns the value, nil before the first, and what is closed when there is another.
func (l *Value[T]) Get() (*T, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.newer
}

// Follow calls use with the value and each later one, until ctx ends.
func (l *Value[T]) Follow(ctx context.Context, use func(*T)) {
	for {
		value, newer := l.Get()
		if value != nil {
			use(value)
		}
		select {
		case <-newer:
		case <-ctx.Done():
			return
		}
	}
}
