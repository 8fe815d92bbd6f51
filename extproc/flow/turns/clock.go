package turns

import "time"

// Clock converts the time of this process to that of the turn clock, which control sends. Messages
// take time, so the Clock follows the messages that took the least time. The zero Clock has the
// time of the process. It is not safe for concurrent use.
type Clock struct {
	offset, heard time.Duration
	known         bool
}

// drift limits how much faster than the turn clock the clock of this process may run: by 1/drift.
const drift = 1000

// Hear records that a message arrived at time now, and that control sent it at the time turn of its
// own clock.
func (c *Clock) Hear(turn, now time.Duration) {
	offset := turn - now
	if c.known {
		offset = max(offset, c.offset-(now-c.heard)/drift)
	}
	c.offset, c.heard, c.known = offset, now, true
}

// Forget makes the Clock follow the next message, which another control may send. Until then, the
// Clock keeps its offset.
func (c *Clock) Forget() { c.known = false }

// At returns the time of the turn clock at a time of this process.
func (c *Clock) At(now time.Duration) time.Duration { return now + c.offset }
