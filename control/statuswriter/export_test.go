package statuswriter

// Remembered returns how many states of objects the Writer has: of their statuses, queued writes
// and Events.
func (r *Writer) Remembered() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.attached) + len(r.dirty) + len(r.logged) + r.events.Len()
}
