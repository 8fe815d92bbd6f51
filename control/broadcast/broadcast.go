// Package broadcast gives the latest value of something, for example the World, to several
// followers.
package broadcast

import (
	"context"
	"sync"
)

// Value holds the latest value of something. Slow followers miss earlier values. It is safe for
// concurrent use. Make one with [New].
type Value[T any] struct {
	mu    sync.Mutex // guards the fields below
	value *T
	newer chan struct{} // closed when the next value is set
}

// New returns a Value without a value.
func New[T any]() *Value[T] { return &Value[T]{newer: make(chan struct{})} }

// Set replaces the value. The caller must not change *v afterwards.
func (l *Value[T]) Set(v *T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value = v
	close(l.newer)
	l.newer = make(chan struct{})
}

// Get returns the value (nil before the first), and a channel that is closed when the next value is
// set.
func (l *Value[T]) Get() (*T, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.newer
}

// Follow calls use with the present value and with later values, until ctx ends.
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
