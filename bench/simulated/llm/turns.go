package llm

import "sync"

// turns lets the calls for one name follow each other, as vLLM 0.32.0 does with loads and unloads of an adapter: it has a
// lock for each name. Who waits is not disturbed by a client that leaves. The zero turns is ready; it is safe for
// concurrent use.
type turns struct {
	mu    sync.Mutex // guards waits
	waits map[string][]func(next func())
}

// do calls f when the calls for the name before it are over, at once if there are none, and else on a goroutine of its
// own. F calls next, once, when it is over itself.
func (t *turns) do(name string, f func(next func())) {
	t.mu.Lock()
	waiting, busy := t.waits[name]
	if busy {
		t.waits[name] = append(waiting, f)
		t.mu.Unlock()
		return
	}
	if t.waits == nil {
		t.waits = map[string][]func(func()){}
	}
	t.waits[name] = nil
	t.mu.Unlock()
	f(func() { t.over(name) })
}

func (t *turns) over(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waits[name]
	if len(waiting) == 0 {
		delete(t.waits, name)
		return
	}
	t.waits[name] = waiting[1:]
	go waiting[0](func() { t.over(name) })
}
