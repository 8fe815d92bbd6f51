package stream

import (
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// No retry goes to a copy with a concurrency limit, because extproc counts a request only at its
// first pick.
func TestNoCopyWithALimitIsNamedForARetry(t *testing.T) {
	free, limited := pick.Decision{Copy: &pick.Copy{}}, pick.Decision{Copy: &pick.Copy{Limited: true}}
	for i, c := range []struct {
		picks []pick.Decision
		want  int
	}{
		{nil, 0},
		{[]pick.Decision{limited}, 1},
		{[]pick.Decision{free, free, free}, 3},
		{[]pick.Decision{limited, free, free}, 3},
		{[]pick.Decision{free, limited, free}, 1},
		{[]pick.Decision{limited, limited}, 1},
		{[]pick.Decision{free, free, limited}, 2},
	} {
		if got := unlimited(c.picks); len(got) != c.want {
			t.Errorf("%d: %d picks, want %d", i, len(got), c.want)
		}
	}
}
