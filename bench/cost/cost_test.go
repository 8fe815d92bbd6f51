package cost

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/ext"
	"github.com/headgate/headgate/internal/process"
)

// TestMain makes this test binary the program bench for processes that the command starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if run := map[string]func(context.Context, []string, io.Writer) error{"cost": Command, "ext": ext.Command}[os.Args[1]]; run != nil {
			if err := run(context.Background(), os.Args[2:], os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, "bench:", err)
				os.Exit(1)
			}
			return
		}
	}
	os.Exit(m.Run())
}

// set sets a variable until the test ends.
func set[T any](t *testing.T, variable *T, value T) {
	was := *variable
	t.Cleanup(func() { *variable = was })
	*variable = value
}

// Each part of the command measures real programs with few requests, endpoints and objects. It
// leaves nothing behind.
func TestMeasuresRealGateways(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds headgate and starts Envoy")
	}
	if _, err := process.CPUTime(os.Getpid()); err != nil {
		t.Skip(err)
	}
	headgate := filepath.Join(t.TempDir(), "headgate")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", headgate, "../../headgate")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	t.Chdir("../..")
	few := slices.Clone(cells)
	for i := range few {
		few[i].clients, few[i].requests = 2, 4*shorter
	}
	set(t, &cells, few)
	set(t, &switchCells, []cell{{"1KB-32", "1 KB, 32 clients", shape{size: 1 << 10}, 2, 12, false}})
	set(t, &fleets, []int{2, 3, 4})
	set(t, &memoryCounts, counts{3, 4, 8, 200})
	set(t, &warmScrapes, 300*time.Millisecond)
	set(t, &leastRest, 300*time.Millisecond)
	set(t, &decisionGroups, []decisionGroup{{setting{2, 3, 4}, []decisionCell{{1 << 10, 16}}, true}})
	set(t, &shapeTime, shorter*300*time.Millisecond)
	for part, wanted := range map[string][]string{
		"requests":  {"medians of 1 rounds", "Envoy alone", "our envoy.yaml, extproc", "1 KB, half of the highest rate"},
		"memory":    {"per route (3)", "per registered model (4)", "per request in flight (8)", "per queued request (200)", "GOGC=10"},
		"decisions": {"extproc 1 16 2 3 4 ", "no-op 1 16 – – – "},
		"switches":  {"price of a switch: 1 KB, 32 clients", "default 1.00", "--payload-processor, and"},
		"envoy":     {"without a part of envoy.yaml: 1 KB, 32 clients", "access log for people", "all of these"},
		"llm-d":     {"buffered, 400000 bytes, 98.7 requests a second", "cores answers", "35 to 46 cores", "its machines differ from this one"},
		"endpoints": {"page of 82 KB, idle", "page of 82 KB, busy", "extproc, each further endpoint, 4 / 2"},
	} {
		t.Run(part, func(t *testing.T) {
			temporary := t.TempDir()
			t.Setenv("TMPDIR", temporary)
			var out, progress bytes.Buffer
			err := runCommand(t.Context(), []string{
				"--short", "--rounds", "1", "--part", part, "--variant", "alone,gateway", "--cell", "1KB-1,half", "--headgate", headgate,
			}, &out, &progress)
			if err != nil {
				t.Fatalf("%v\n%s%s", err, out.String(), progress.String())
			}
			t.Log(out.String())
			for _, want := range wanted {
				if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
					t.Errorf("there is no %q in\n%s", want, out.String())
				}
			}
			if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
				t.Errorf("it leaves %v, %v", left, err)
			}
		})
	}
}
