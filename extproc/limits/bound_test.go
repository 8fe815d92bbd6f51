package limits_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/limits"
)

// A number of tokens counts up to the bound, whether it settles the Ticket or its id. The bound is
// not asked for a small number.
func TestBound(t *testing.T) {
	for _, c := range []struct {
		reported, most, want int64
		asked                bool
	}{
		{100, 50, 100, false},
		{limits.Believed, 50, limits.Believed, false},
		{9000, 10_000, 9000, true},
		{1e8, 10_000, 10_000, true},
	} {
		for name, settle := range map[string]func(b *limits.Book, q *limits.Ticket){
			"Ticket": func(_ *limits.Book, q *limits.Ticket) { q.Settle(c.reported) },
			"id":     func(b *limits.Book, _ *limits.Ticket) { b.Settle("id", c.reported, true) },
		} {
			b := limits.New()
			q, _ := b.Admit(chat, tokens(20_000), 1, 0)
			asked := false
			q.Bound(func() int64 {
				b.Sweep() // no lock is held
				asked = true
				return c.most
			})
			q.Sent("id")
			settle(b, q)
			q.End()
			if _, a := b.Admit(chat, tokens(20_000), 1, 0); a.Tokens.Left != 20_000-c.want || asked != c.asked {
				t.Errorf("by %s, %d reported: %d are left, want %d; asked %v", name, c.reported, a.Tokens.Left, 20_000-c.want, asked)
			}
		}
	}
	var none *limits.Ticket
	none.Bound(nil)
}
