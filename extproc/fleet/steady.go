package fleet

import "time"

// began is when this process did, from which on [Steady] tells time.
var began = time.Now()

// Steady is a time by a clock that nobody sets: that of the machine as it was when this process began. What requests still ask of endpoints is
// told by it. Were it told by a clock that is set, prompts that take a second would be waited for as long as it was set back.
func Steady(t time.Time) time.Time { return began.Add(t.Sub(began)) }
