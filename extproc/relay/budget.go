package relay

import (
	"io"
	"sync/atomic"

	"github.com/headgate/headgate/extproc/kserve"
)

// budget is how many bytes are kept of one call, in the bounds for it and for all. It is safe for concurrent use.
type budget struct {
	mine atomic.Int64
	all  *atomic.Int64
}

// reader reads what counts.
func (b *budget) reader(r io.Reader) io.Reader { return &counted{b, r} }

// giveBack says that nothing is kept any more.
func (b *budget) giveBack() { b.all.Add(-b.mine.Load()) }

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

// take counts bytes, and says when they are too many.
func (b *budget) take(n int) error {
	mine, all := b.mine.Add(int64(n)), b.all.Add(int64(n))
	switch {
	case mine > maxOfOne:
		return status(kserve.ResourceExhausted, "The request and its answers together have more than 128 MiB here.")
	case all > maxKept:
		return status(kserve.ResourceExhausted, "The gateway has no memory for this request now. Try again later.")
	}
	return nil
}
