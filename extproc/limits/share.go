package limits

import (
	"time"

	"github.com/headgate/headgate/extproc/limits/bucket"
)

// alone is how long a new process waits for its part. Then control is away, and the process uses
// each whole limit until it hears of its part: rejecting all requests for the rest of the outage
// would be worse than a limit that is exceeded.
const alone = 10 * time.Second

// Shared makes limits those of several processes together: this process may use nothing of a limit
// until Share is called, or until control has been silent for alone. Call it before any other
// method.
func (b *Book) Shared() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shared, b.part, b.since = true, bucket.Part{}, b.now()
}

// Share records the index of this process among the processes that share limits, as control
// reported it. Each gets an equal part. While control is away, the last part holds.
func (b *Book) Share(index, processes int) {
	if processes < 1 || index < 0 || index >= processes {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.heard = true
	b.parts.Hear(bucket.Equal(index, processes), now)
	b.settle()
}

// settle puts the part of this process in force. The caller holds mu.
func (b *Book) settle() {
	if !b.shared {
		return
	}
	now := b.now()
	part := b.parts.At(now)
	if !b.heard && now-b.since >= alone {
		part = bucket.Whole()
	}
	if part != b.part {
		b.setPart(part, now)
	}
}
