package fleet

import "github.com/headgate/headgate/extproc/fleet/belief"

// Lessons is what this process has learned of how long engines take, for others, as [belief.State.Lessons].
func (f *Fleet) Lessons() (all []belief.Lesson) {
	f.locked(func() { all = f.state.Lessons(f.Now()) })
	return all
}

// HearLessons takes what others have learned, as [belief.State.HearLessons].
func (f *Fleet) HearLessons(told []belief.Lesson) {
	f.soon(func() { f.state.HearLessons(told, f.Now()) })
}
