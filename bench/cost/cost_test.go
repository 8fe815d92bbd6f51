package cost

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/process"
)

// TestMain makes this test binary the program bench for processes that the command starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "cost" {
		if err := Command(context.Background(), os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench cost:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// A real Envoy alone, and the whole gateway, serve a few requests of two cells, and leave nothing
// behind.
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
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Chdir("../..")
	was := cells
	defer func() { cells = was }()
	cells = append([]cell(nil), was...)
	for i := range cells {
		cells[i].clients, cells[i].requests = 2, 4*shorter
	}
	var out, progress bytes.Buffer
	err := runCommand(t.Context(), []string{
		"--short", "--rounds", "1", "--part", "requests", "--variant", "alone,gateway", "--cell", "1KB-1,100KB-1",
		"--headgate", headgate,
	}, &out, &progress)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), progress.String())
	}
	for _, want := range []string{"medians of 1 rounds", "  Envoy alone ", "  our envoy.yaml, extproc ", "100 KB, 1 client "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}
