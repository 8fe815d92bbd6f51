package cost

import (
	"testing"
	"time"
)

func TestBusy(t *testing.T) {
	for _, c := range []struct {
		stat string
		want time.Duration
		bad  bool
	}{
		{"cpu  100 20 30 5000 600 0 7 8 900 900\ncpu0 1 1 1 1 1 1 1 1 1 1\n", (100 + 20 + 30 + 7 + 8) * tick, false},
		{"cpu  100 20 30 5000 600 0 7 50 0 0\n", 207 * tick, false},
		{"cpu  100 20 30 5000 600\n", 0, true},
		{"cpu  100 20 x 5000 600 0 7 50 0 0\n", 0, true},
		{"intr 1 2 3 4 5 6 7 8 9 10\n", 0, true},
		{"", 0, true},
	} {
		if got, err := busy(c.stat); got != c.want && err == nil || (err != nil) != c.bad {
			t.Errorf("%q: %v, %v; want %v", c.stat, got, err, c.want)
		}
	}
}

func TestAnonymous(t *testing.T) {
	for _, c := range []struct {
		status string
		want   float64
		bad    bool
	}{
		{"Name:\tx\nVmRSS:\t    9000 kB\nRssAnon:\t    8000 kB\nRssFile:\t 1000 kB\n", 8000 * 1024, false},
		{"Name:\tx\nRssAnon:\t    many kB\n", 0, true},
		{"Name:\tx\nRssAnon:\t    8000 MB\n", 0, true},
		{"Name:\tRssAnon: 1 kB\n", 0, true},
		{"Name:\tx\nRssAnon:", 0, true},
	} {
		if got, err := anonymous(c.status); got != c.want && err == nil || (err != nil) != c.bad {
			t.Errorf("%q: %v, %v; want %v", c.status, got, err, c.want)
		}
	}
}

func TestProcessor(t *testing.T) {
	if got := processor("processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: other\n"); got != "AMD EPYC" {
		t.Errorf("the processor is %q", got)
	}
	if got := processor(""); got == "" {
		t.Error("there is no processor")
	}
}
