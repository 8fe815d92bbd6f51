package inner

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
	mine, all := c.budget.mine.Add(int64(n)), c.budget.all.Add(int64(n))
	switch {
	case mine > 2*maxMessage:
		return n, status(kserve.ResourceExhausted, "A request that the gateway asks otherwise, with its answers, has more than 64 MiB.")
	case all > maxKept:
		return n, status(kserve.ResourceExhausted, "The gateway has too many such requests. Try again later.")
	}
	return n, err
}
