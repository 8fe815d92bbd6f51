package limits

import "github.com/headgate/headgate/extproc/limits/bucket"

// Shared makes limits those of several processes together: this process may use nothing of a limit
// until Share is called. Call it before any other method.
func (b *Book) Shared() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shared, b.part = true, bucket.Part{}
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
	b.parts.Hear(bucket.Equal(index, processes), now)
	b.settle()
}

// settle puts the part of this process in force. The caller holds mu.
func (b *Book) settle() {
	if !b.shared {
		return
	}
	now := b.now()
	if part := b.parts.At(now); part != b.part {
		b.part = part
		for _, r := range b.routes {
			r.SetPart(part, now)
		}
	}
}
