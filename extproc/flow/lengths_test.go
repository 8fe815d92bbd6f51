package flow

import (
	"math"
	"testing"
)

// The expected length is the mean of recent answers of the key. It is at most the request's limit,
// and what is predicted otherwise before the first answer. NaN, infinite and negative numbers do
// not count.
func TestLengths(t *testing.T) {
	l := new(lengths)
	for _, tokens := range []float64{100, 100, math.NaN(), math.Inf(1), -1, 260} {
		l.learn(1, tokens)
		l.learn(0, tokens)
	}
	for _, c := range []struct {
		key                    uint64
		otherwise, limit, want float64
	}{
		{1, 7, 0, 110},
		{1, 7, 50, 50},
		{1, 7, 500, 110},
		{2, 7, 0, 7},
		{2, 7, 5, 7}, // the prediction obeys the limit already
		{0, 7, 0, 7},
	} {
		if got := l.expected(c.key, c.otherwise, c.limit); got != c.want {
			t.Errorf("%+v: %v tokens", c, got)
		}
	}
	for range 200 {
		l.learn(1, 20)
	}
	if got := l.expected(1, 7, 0); got < 20 || got > 21 {
		t.Errorf("after 200 answers of 20 tokens, %v are expected", got)
	}
}

// A key that is used stays, however many others come.
func TestUsedLengthsStay(t *testing.T) {
	l := new(lengths)
	l.learn(5, 100)
	for i := range uint64(100 * lengthSets) {
		if l.learn(1000+i, 1); l.expected(5, 7, 0) != 100 {
			t.Fatalf("after %d other keys it is forgotten", i)
		}
	}
	if l.expected(1000, 7, 0) == 1 {
		t.Error("a key that was not used is not forgotten")
	}
}

// The answers of the latest requests are learned by the number of the request, whether it waited or
// not, without memory.
func TestAnswersAreLearnedByNumber(t *testing.T) {
	f := New(Config{})
	f.Sent(1, 10)
	f.Sent(2, 20)
	f.Answered(2, 200)
	f.Answered(1, 100)
	f.Answered(3, 300)
	for key, want := range map[uint64]float64{10: 100, 20: 200, 30: 7} {
		if got := f.lengths.expected(key, 7, 0); got != want {
			t.Errorf("key %d has %v tokens, want %v", key, got, want)
		}
	}
	f.Sent(1+maxSent, 30)
	f.Answered(1, 500)
	if got := f.lengths.expected(10, 7, 0); got != 100 {
		t.Errorf("a forgotten request was learned: %v", got)
	}
	n := uint64(0)
	if allocated := testing.AllocsPerRun(1000, func() {
		n++
		f.Sent(n, n)
		f.Answered(n, 5)
	}); allocated > 0 {
		t.Errorf("%v allocations", allocated)
	}
}
