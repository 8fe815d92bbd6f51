package flow

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/test/race"
)

// small returns a bench with few endpoints, one seed and short times.
func small(out io.Writer) *bench {
	return &bench{
		fleet: fleet.Fleet{
			Profile: llm.DefaultProfile(), Endpoints: 2, Pickers: 1, ScrapeInterval: 0.2, AdapterSync: 1, BacklogSync: 0.02,
		},
		lengths: fleet.Conversation(), capacity: 4.1, seeds: 1, scale: 0.25,
		gate: pick.Gate{On: true, Queue: pick.DefaultGateQueue, PerToken: pick.DefaultGatePerToken, Headroom: pick.DefaultHeadroom},
		out:  out, progress: io.Discard,
	}
}

// value returns the value of the first target whose text contains a string.
func (b *bench) value(t *testing.T, what string) float64 {
	t.Helper()
	for _, is := range b.targets {
		if strings.Contains(is.what, what) {
			return is.value
		}
	}
	t.Fatalf("there is no target %q", what)
	return 0
}

// In a small fleet, the fair queue keeps the TTFT of the others near that without a flood.
func TestFlood(t *testing.T) {
	race.Skip(t)
	var out strings.Builder
	b := small(&out)
	b.plot = filepath.Join(t.TempDir(), "flow.svg")
	if err := flood(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(b.plot); err != nil || !strings.Contains(string(text), "<svg") {
		t.Errorf("no picture was drawn: %v", err)
	}
	if is := b.value(t, "times alone"); is > 8 {
		t.Errorf("TTFT is %.2f times that without a flood\n%s", is, out.String())
	}
	if is := b.value(t, "times victims first"); is > 4 {
		t.Errorf("TTFT is %.2f times that of the bound\n%s", is, out.String())
	}
}

// Each part runs in a small fleet, and its figures are plausible.
func TestParts(t *testing.T) {
	race.Skip(t)
	for _, c := range []struct {
		run   func(context.Context, *bench) error
		what  string
		worst float64 // highest value; if it is negative, the lowest value is its opposite
	}{
		{throughput, "throughput", -0.5},
		{bands, "bands: TTFT", 3},
		{bands, "bands: inversions", 0},
		{stated, "stated: time per token", 3},
		{load, "load: prefix hits", 30},
		{jain, "jain", -0.5},
		{agent, "agent", 5},
		{several, "several: flood through one: TTFT", 20},
		{several, "several: flood through all: longest time", 0.5},
		{retry, "retry", -0.5},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			b := small(&out)
			b.scale = 0.1
			b.targets = make([]target, 0, 8) // room for an append to a copy of the slice to overwrite others
			if err := c.run(context.Background(), b); err != nil {
				t.Fatal(err)
			}
			if is := b.value(t, c.what); math.IsNaN(is) || c.worst >= 0 && is > c.worst || is < -c.worst {
				t.Errorf("%s is %.3f\n%s", c.what, is, out.String())
			}
		})
	}
}

// The index of Jain is 1 for equal parts, and 1/n if one of n gets all.
func TestLowestJain(t *testing.T) {
	o := fleet.Outcome{Samples: []fleet.Sample{
		{At: 0, Seconds: map[string]float64{"a": 1, "b": 0}},
		{At: 60, Seconds: map[string]float64{"a": 3, "b": 2}},
		{At: 120, Seconds: map[string]float64{"a": 6, "b": 2}},
	}}
	if is := lowestJain(o, 0, 60, 60); is != 1 {
		t.Errorf("equal parts have the index %g, want 1", is)
	}
	if is := lowestJain(o, 0, 60, 120); is != 0.5 {
		t.Errorf("the lowest index is %g, want 0.5", is)
	}
	if is := lowestJain(o, 100, 60, 120); !math.IsNaN(is) {
		t.Errorf("no interval has the index %g, want NaN", is)
	}
}

// A missed target is printed and is an error.
func TestMissedTargetsAreErrors(t *testing.T) {
	var out strings.Builder
	b := &bench{out: &out}
	b.atMost("small", 1, 0.5)
	b.atLeast("large", 1, 1)
	if err := b.verdict(); err != nil {
		t.Errorf("all targets are met, and the error is %v", err)
	}
	b.atMost("too large", 1, 1.5)
	if err := b.verdict(); !errors.Is(err, errMissed) || !strings.Contains(out.String(), "MISSED") {
		t.Errorf("a target is missed: error %v, output %s", err, out.String())
	}
}
