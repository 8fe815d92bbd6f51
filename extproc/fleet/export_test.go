package fleet

// Publish puts the news in force now, as Run would a moment later.
func (f *Fleet) Publish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publish()
}

// EndLeases ends those that ran out, as Run would within a second.
func (f *Fleet) EndLeases() { f.endLeases() }
