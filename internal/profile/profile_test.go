package profile_test

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/profile"
)

func parseFile(t *testing.T, name string) profile.Profile {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The published profile must give back the measurements that it was fitted on.
func TestProfileAgreesWithItsSource(t *testing.T) {
	p := parseFile(t, "llama-2-70b-a100x4.yaml")
	if got := p.PrefillTime(512); math.Abs(got-0.137) > 0.001 {
		t.Errorf("prefill of 512 tokens takes %.4f s, want 0.137", got)
	}
	if got := p.StepTime(0, 16, 16*576); math.Abs(got-0.0497) > 0.0005 {
		t.Errorf("a decode step of 16 sequences takes %.4f s, want 0.0497", got)
	}
}

func TestAMixedStepPaysTheLargerBaseOnce(t *testing.T) {
	p := profile.Profile{
		Prefill: profile.Prefill{Base: 3, PerToken: 0.5},
		Decode:  profile.Decode{Base: 5, PerSequence: 0.25, PerKVToken: 0.125},
	}
	for _, c := range []struct {
		prefill, sequences, kv int
		want                   float64
	}{
		{0, 0, 0, 0},
		{10, 0, 0, 3 + 5},
		{0, 4, 8, 5 + 1 + 1},
		{10, 4, 8, 5 + 5 + 1 + 1},
	} {
		if got := p.StepTime(c.prefill, c.sequences, c.kv); got != c.want {
			t.Errorf("StepTime(%d, %d, %d) = %v, want %v", c.prefill, c.sequences, c.kv, got, c.want)
		}
	}
}

func TestAFaultyProfileIsRefusedByField(t *testing.T) {
	good, err := os.ReadFile("testdata/llama-2-70b-a100x4.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"perToken: 0.000242", "perToken: -1", "prefill.perToken is -1"},
		{"maxSequences: 256", "maxSequences: 0", "limits.maxSequences is 0: it must be at least 1"},
		{"hostAdapters: 16", "hostAdapters: 3", "limits.hostAdapters is 3: it must be at least 4"},
		{"prefill:", "prefil:", "prefil"},
	} {
		text := strings.Replace(string(good), c.old, c.new, 1)
		if _, err := profile.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %q the error is %v, want it to say %q", c.new, err, c.want)
		}
	}
}

// An engine that is half as fast takes twice as long, whatever it does.
func TestTimes(t *testing.T) {
	p := parseFile(t, "llama-2-70b-a100x4.yaml")
	twice := p.Times(2)
	for _, pair := range [][2]float64{
		{twice.PrefillTime(1000), 2 * p.PrefillTime(1000)},
		{twice.StepTime(0, 8, 4000), 2 * p.StepTime(0, 8, 4000)},
		{twice.StepTime(100, 8, 4000), 2 * p.StepTime(100, 8, 4000)},
		{twice.Load.Mean, 2 * p.Load.Mean},
		{twice.Load.StdDev, 2 * p.Load.StdDev},
		{twice.Slot.Mean, 2 * p.Slot.Mean},
		{twice.Slot.StdDev, 2 * p.Slot.StdDev},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-12 || pair[0] == 0 {
			t.Errorf("a time is %g, want %g", pair[0], pair[1])
		}
	}
	if twice.Limits != p.Limits || p.Times(1) != p {
		t.Error("the limits are others, or once as long is not as long")
	}
}
