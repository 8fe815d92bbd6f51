package flow

import (
	"context"
	"errors"
	"io"
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
		gate: pick.Gate{On: true, Queue: pick.DefaultGateQueue, PerToken: pick.DefaultGatePerToken},
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
	if err := flood(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	if is := b.value(t, "times alone"); is > 3 {
		t.Errorf("TTFT is %.2f times that without a flood\n%s", is, out.String())
	}
	if is := b.value(t, "times victims first"); is > 2 {
		t.Errorf("TTFT is %.2f times that of the bound\n%s", is, out.String())
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
