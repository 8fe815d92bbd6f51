package fleet

// Publish publishes a view of the current state, which Run would do within a second.
func (f *Fleet) Publish() {
	f.locked(func() {
		f.state.Age()
		f.publish()
	})
}

// LogWaiting logs which pools wait for measurements, which Run would do within a second.
func (f *Fleet) LogWaiting() { f.locked(func() { f.states.waiting(f.view.Load(), f.state.Settings) }) }

// EndLeases ends expired leases, which Run would do within a second.
func (f *Fleet) EndLeases() { f.endLeases() }
