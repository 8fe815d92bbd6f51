package placementproto

import "time"

// LimitsLease is how long an extproc counts on control to refill limits after it sent a probe that
// control echoed. Then the extproc does so by itself, and control refills that much less.
const LimitsLease = 3 * time.Second
