package main

import (
	"context"
	"sync"

	"github.com/headgate/headgate/internal/objects"
)

// latest hands the World to those who follow it: what they miss while they are busy is none of their business. It is safe
// for concurrent use. Make one with [newLatest].
type latest struct {
	mu    sync.Mutex // guards the following
	world *objects.World
	newer chan struct{} // closed when there is another World
}

func newLatest() *latest { return &latest{newer: make(chan struct{})} }

func (l *latest) set(w *objects.World) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.world = w
	close(l.newer)
	l.newer = make(chan struct{})
}

// get returns the World, nil before the first, and what is closed when there is another.
func (l *latest) get() (*objects.World, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.world, l.newer
}

// follow calls use with the World and each later one, until ctx ends.
func (l *latest) follow(ctx context.Context, use func(*objects.World)) {
	for {
		world, newer := l.get()
		if world != nil {
			use(world)
		}
		select {
		case <-newer:
		case <-ctx.Done():
			return
		}
	}
}
