package llm

import "sync"

// turns serializes the calls for each name, like vLLM 0.32.0, which has a lock for each adapter
// name. Disconnected clients do not disturb waiting calls. The zero value is ready to use. It is
// safe for concurrent use.
type turns struct {
	mu    sync.Mutex // guards waits
	waits map[string][]func(next func())
}

// do calls f after all earlier calls for the name have ended: immediately if there are none,
// otherwise on a new goroutine. f must call next once, when it ends.
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
