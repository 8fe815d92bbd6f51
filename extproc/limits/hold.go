package limits

import "sync"

// Hold keeps the place that the request with a decision id has in the limits of concurrent
// requests, although its count as in flight ends: the relay sends it again. The caller calls
// release when the request is over, which may be done more than once. Hold ignores an unknown id.
func (b *Book) Hold(id string) (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.sent[id]
	if t == nil || t.over {
		return func() {}
	}
	t.holds++
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if t.holds--; t.holds == 0 && t.due {
			b.end(t, b.now())
		}
	})
}
