package place

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/loader"
)

// TestFailedUnloadsAreLoggedRarely checks that an unload that fails again and again for days does
// not fill the log.
func TestFailedUnloadsAreLoggedRarely(t *testing.T) {
	var out bytes.Buffer
	p := &Placer{Config: Config{Log: slog.New(slog.NewTextHandler(&out, nil))}, state: decide.New(decide.Config{})}
	s := &endpointWorker{placer: p, unloads: make(map[string]int)}
	no := loader.Answer{Model: "a", Unload: true, Err: &loader.Error{Outcome: loader.Unclear, Message: "busy"}}
	lines := func() (all []string) {
		for line := range strings.Lines(out.String()) {
			_, tries, _ := strings.Cut(strings.TrimSpace(line), "tries=")
			all = append(all, tries)
		}
		out.Reset()
		return all
	}
	for range 100 {
		s.answered(no)
	}
	if got, want := lines(), []string{"1", "2", "4", "8", "16", "32", "64"}; !slices.Equal(got, want) {
		t.Errorf("of 100 failed unloads these were logged: %q, want %q", got, want)
	}
	s.answered(loader.Answer{Model: "a", Unload: true})
	s.answered(no)
	if got, want := lines(), []string{"", "1"}; !slices.Equal(got, want) {
		t.Errorf("after one that succeeds: %q, want %q", got, want)
	}
}
