package manage

import (
	"context"
	"sync"
)

// turns lets one call for a model run at a time. The zero turns is ready to use.
type turns struct {
	mu  sync.Mutex // guards the map and the turns in it
	all map[string]*turn
}

// turn is the queue of a model's calls.
type turn struct {
	taken chan struct{} // capacity 1: full during a call; never closed
	users int           // running and waiting calls
	// loads is the context of the loads that no unload has followed yet.
	loads  context.Context
	cancel context.CancelCauseFunc
}

// load waits for the turn of a load. The context that it returns ends with ctx, with other, and
// when a call of unload for the model begins. If load fails, that context has ended. Otherwise the
// caller must call leave at the end.
func (t *turns) load(ctx, other context.Context, id string) (within context.Context, leave func(), err error) {
	m := t.enter(id)
	t.mu.Lock()
	loads := m.loads
	t.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stops := []func() bool{
		context.AfterFunc(loads, func() { cancel(context.Cause(loads)) }),
		context.AfterFunc(other, func() { cancel(context.Cause(other)) }),
	}
	end := func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
		t.leave(id, m)
	}
	if err := m.take(ctx); err != nil {
		end()
		return ctx, nil, err
	}
	return ctx, func() { <-m.taken; end() }, nil
}

// unload cancels the loads of a model that have begun or wait, and waits for the turn of an unload.
func (t *turns) unload(ctx context.Context, id string) (leave func(), err error) {
	m := t.enter(id)
	t.mu.Lock()
	m.cancel(errUnloaded)
	m.loads, m.cancel = context.WithCancelCause(context.Background())
	t.mu.Unlock()
	if err := m.take(ctx); err != nil {
		t.leave(id, m)
		return nil, err
	}
	return func() { <-m.taken; t.leave(id, m) }, nil
}

// take waits until no other call runs. Calls are served in the order in which they came.
func (m *turn) take(ctx context.Context) error {
	select {
	case m.taken <- struct{}{}:
		if ctx.Err() == nil {
			return nil
		}
		<-m.taken
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

func (t *turns) enter(id string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.all[id]
	if m == nil {
		m = &turn{taken: make(chan struct{}, 1)}
		m.loads, m.cancel = context.WithCancelCause(context.Background())
		if t.all == nil {
			t.all = make(map[string]*turn)
		}
		t.all[id] = m
	}
	m.users++
	return m
}

func (t *turns) leave(id string, m *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.users--; m.users == 0 {
		m.cancel(nil)
		delete(t.all, id)
	}
}
