package relay

import (
	"io"
	"sync/atomic"

	"github.com/headgate/headgate/extproc/kserve"
)

// budget counts the bytes that are buffered for one call. It enforces the limit of the call and the
// limit of all calls together. It is safe for concurrent use.
type budget struct {
	used atomic.Int64
	all  *atomic.Int64
}

// reader returns a reader that adds the bytes read from r to the budget.
func (b *budget) reader(r io.Reader) io.Reader { return &counted{b, r} }

// giveBack subtracts the call's bytes from those of all calls. The call must be over.
func (b *budget) giveBack() { b.all.Add(-b.used.Load()) }

type counted struct {
	budget *budget
	from   io.Reader
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if full := c.budget.take(n); full != nil {
		return n, full
	}
	return n, err
}

// take adds n bytes. It returns an error if they exceed a limit.
func (b *budget) take(n int) error {
	mine, all := b.used.Add(int64(n)), b.all.Add(int64(n))
	switch {
	case mine > maxOfOne:
		return status(kserve.ResourceExhausted, "The request and its answers together exceed 128 MiB.")
	case all > maxKept:
		return status(kserve.ResourceExhausted, "The gateway has no memory for this request now. Try again later.")
	}
	return nil
}
