// Package keylock has locks by key: calls with the same key run one after another, and calls with
// different keys at once.
package keylock

import (
	"context"
	"sync"
)

// Locks has a lock for each key that is in use. The zero Locks is ready to use. It is safe for
// concurrent use, and must not be copied.
type Locks struct {
	mu    sync.Mutex // guards locks and their users
	locks map[string]*lock
}

// lock is the lock of one key.
type lock struct {
	taken chan struct{} // capacity 1: full while the lock is held; never closed
	users int           // running and waiting calls; the lock is removed with the last one
}

// Lock waits for the lock of a key. The caller must call unlock. The error is the cause of the end
// of ctx; then the lock is not held.
func (l *Locks) Lock(ctx context.Context, key string) (unlock func(), err error) {
	own := l.join(key)
	select {
	case own.taken <- struct{}{}:
		if ctx.Err() == nil {
			return func() { <-own.taken; l.leave(key, own) }, nil
		}
		<-own.taken
	case <-ctx.Done():
	}
	l.leave(key, own)
	return nil, context.Cause(ctx)
}

// Idle reports whether no call holds the lock of a key or waits for it.
func (l *Locks) Idle(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locks[key] == nil
}

func (l *Locks) join(key string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.locks[key]
	if own == nil {
		own = &lock{taken: make(chan struct{}, 1)}
		if l.locks == nil {
			l.locks = make(map[string]*lock)
		}
		l.locks[key] = own
	}
	own.users++
	return own
}

func (l *Locks) leave(key string, own *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(l.locks, key)
	}
}
