package fleet

import "time"

// began is when this process started, the reference time of [Steady].
var began = time.Now()

// Steady converts a time to a clock that is never set: the wall clock at the start of the process
// plus the monotonic time since then. Backlogs use it: if the wall clock were set back, requests
// would seem to wait for prompts that were computed long ago.
func Steady(t time.Time) time.Time { return began.Add(t.Sub(began)) }
