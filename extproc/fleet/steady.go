package fleet

import "time"

// began is the start of this process, the reference of [Steady].
var began = time.Now()

// Steady converts a time to a clock that is never set: the wall clock at the start of the process
// plus the monotonic time since. Backlogs use it. If the wall clock were set back, requests would
// otherwise wait for prompts that have long been computed.
func Steady(t time.Time) time.Time { return began.Add(t.Sub(began)) }
