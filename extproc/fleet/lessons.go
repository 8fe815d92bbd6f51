package fleet

import "github.com/headgate/headgate/extproc/fleet/endpointstate"

// Lessons is what this process has learned of how long engines take, for others, as [endpointstate.State.Lessons].
func (f *Fleet) Lessons() (all []endpointstate.Lesson) {
	f.locked(func() { all = f.state.Lessons(f.Now()) })
	return all
}

// HearLessons takes what others have learned, as [endpointstate.State.HearLessons].
func (f *Fleet) HearLessons(told []endpointstate.Lesson) {
	f.soon(func() { f.state.HearLessons(told, f.Now()) })
}
