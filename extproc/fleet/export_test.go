package fleet

// Publish puts in force what is known now, as Run would within a second.
func (f *Fleet) Publish() {
	f.locked(func() {
		f.state.Age()
		f.publish()
	})
}

// EndLeases ends those that ran out, as Run would within a second.
func (f *Fleet) EndLeases() { f.endLeases() }
