package main

import (
	"context"
	"sync"
)

// latest hands the latest value of a kind, such as the World, to those who follow it: what they miss while they are busy is none of
// their business. It is safe for concurrent use. Make one with [newLatest].
type latest[T any] struct {
	mu    sync.Mutex // guards the following
	value *T
	newer chan struct{} // closed when there is another value
}

func newLatest[T any]() *latest[T] { return &latest[T]{newer: make(chan struct{})} }

func (l *latest[T]) set(v *T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value = v
	close(l.newer)
	l.newer = make(chan struct{})
}

// get returns the value, nil before the first, and what is closed when there is another.
func (l *latest[T]) get() (*T, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.newer
}

// follow calls use with the value and each later one, until ctx ends.
func (l *latest[T]) follow(ctx context.Context, use func(*T)) {
	for {
		value, newer := l.get()
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
