package fleet

// Publish puts the news in force now, as Run would a moment later.
func (f *Fleet) Publish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publish()
}
