package adapters

import (
	"context"
	"sync"
)

// turns lets the calls for one adapter run one after another. Calls for different adapters run at
// once. It is safe for concurrent use.
type turns struct {
	mu     sync.Mutex // guards byName and the fields of its turns
	byName map[string]*turn
}

// turn is the turn of one adapter.
type turn struct {
	free  chan struct{} // has an element while no call runs
	users int           // calls that run or wait; the turn is removed with the last one
}

func newTurns() turns { return turns{byName: make(map[string]*turn)} }

// take waits until no other call for the adapter runs. The caller must call end. The error is that
// of ctx.
func (t *turns) take(ctx context.Context, name string) (end func(), err error) {
	own := t.join(name)
	select {
	case <-own.free:
		return func() {
			own.free <- struct{}{}
			t.leave(name, own)
		}, nil
	case <-ctx.Done():
		t.leave(name, own)
		return nil, ctx.Err()
	}
}

// idle reports whether no call for the adapter runs or waits.
func (t *turns) idle(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byName[name] == nil
}

func (t *turns) join(name string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.byName[name]
	if own == nil {
		own = &turn{free: make(chan struct{}, 1)}
		own.free <- struct{}{}
		t.byName[name] = own
	}
	own.users++
	return own
}

func (t *turns) leave(name string, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(t.byName, name)
	}
}
