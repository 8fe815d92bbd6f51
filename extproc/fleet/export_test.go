package fleet

// Publish publishes a view of the current state, as Run would within a second.
func (f *Fleet) Publish() {
	f.locked(func() {
		f.state.Age()
		f.publish()
	})
}

// EndLeases ends expired leases, as Run would within a second.
func (f *Fleet) EndLeases() { f.endLeases() }
