package flow

import (
	"testing"

	"github.com/headgate/headgate/internal/objects"
)

// The expected length is the mean of recent answers of the route and tenant. It is at most the
// request's limit, and what is predicted otherwise before the first answer. The means are bounded.
func TestLengths(t *testing.T) {
	l := newLengths()
	route := objects.Name{Namespace: "ns", Name: "a"}
	own, other := lengthKey{route, 1}, lengthKey{route, 2}
	for _, tokens := range []float64{100, 100, 260} {
		l.learn(own, tokens)
	}
	for _, c := range []struct {
		key                    lengthKey
		otherwise, limit, want float64
	}{
		{own, 7, 0, 110},
		{own, 7, 50, 50},
		{own, 7, 500, 110},
		{other, 7, 0, 7},
		{other, 7, 5, 7}, // the prediction obeys the limit already
	} {
		if got := l.expected(c.key, c.otherwise, c.limit); got != c.want {
			t.Errorf("%+v: %v tokens", c, got)
		}
	}
	for range 200 {
		l.learn(own, 20)
	}
	if got := l.expected(own, 7, 0); got < 20 || got > 21 {
		t.Errorf("after 200 answers of 20 tokens, %v are expected", got)
	}
	for i := range uint64(2 * maxLengths) {
		l.learn(lengthKey{route, 10 + i}, 1)
	}
	if n := l.means.Len(); n != maxLengths {
		t.Errorf("%d means are kept", n)
	}
}
