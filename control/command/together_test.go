package command

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/api/mmesh"
	extproc "github.com/headgate/headgate/extproc/command"
)

// program is a running control or extproc.
type program struct {
	name    string
	metrics string // base URL of its metrics server
	stop    context.CancelFunc
	done    chan error
}

// runProgram runs a program with metrics on a port of host.
func runProgram(t *testing.T, name string, run func(context.Context, []string, io.Writer, io.Writer) error, port int,
	args ...string,
) program {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	p := program{fmt.Sprint(name, " ", port), fmt.Sprint("http://", host, ":", port), stop, make(chan error, 1)}
	args = append(args, "--metrics-host", host, "--metrics-port", strconv.Itoa(port))
	go func() { p.done <- run(ctx, args, io.Discard, io.Discard) }()
	return p
}

// await waits until the metrics page contains all texts, and returns the page.
func (p program) await(t *testing.T, texts ...string) string {
	t.Helper()
	page := ""
	for ctx := limited(t); ; {
		if r, err := http.Get(p.metrics + "/metrics"); err == nil { //nolint:noctx // at loopback
			all, _ := io.ReadAll(r.Body)
			_ = r.Body.Close()
			page = string(all)
		}
		missing := ""
		for _, text := range texts {
			if !strings.Contains(page, text) {
				missing = text
			}
		}
		if missing == "" {
			return page
		}
		select {
		case err := <-p.done:
			t.Fatalf("%s ended: %v", p.name, err)
		case <-ctx.Done():
			t.Fatalf("%s: the metrics lack %s:\n%s", p.name, missing, page)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// end stops a program and waits for its end.
func (p program) end(t *testing.T) {
	t.Helper()
	p.stop()
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	case <-limited(t).Done():
		t.Fatalf("%s does not stop", p.name)
	}
}

// One process can run several controls and extprocs with different arguments, end one of each, and
// run both again. They share no flags, metrics or log.
func TestProgramsRunTogether(t *testing.T) {
	logger := slog.Default()
	pairs := make([]struct {
		dir    string
		models int
	}, 2)
	start := func(n int) (control, picker program) {
		dir := pairs[n].dir
		folder, socket, pool := filepath.Join(dir, "objects"), "unix:"+dir+"/control", fmt.Sprint("p", n)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		object := fmt.Sprintf("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: %s}\n"+
			"spec: {selector: {matchLabels: {app: %[1]s}}, targetPorts: [{number: 8000}]}\n", pool)
		if err := os.WriteFile(filepath.Join(folder, "pool.yaml"), []byte(object), 0o644); err != nil {
			t.Fatal(err)
		}
		control = runProgram(t, "control", Run, 9101+n, "--objects", folder, "--listen", socket, "--mesh-pool", "default/"+pool)
		conn := dial(t, socket)
		awaitLeader(t, conn)
		pairs[n].models++
		for i := range pairs[n].models + n {
			_, err := mmesh.NewModelMeshClient(conn).RegisterModel(limited(t), &mmesh.RegisterModelRequest{
				ModelId: fmt.Sprint("m", i), ModelInfo: &mmesh.ModelInfo{Type: "lora", Path: "p"},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		_ = conn.Close() // otherwise control waits for the streams when it stops
		control.await(t, fmt.Sprintf("headgate_models{which=\"all\"} %d\n", pairs[n].models+n))
		picker = runProgram(t, "extproc", extproc.Run, 9111+n, "--objects", folder, "--listen", "unix:"+dir+"/extproc",
			"--control", socket, "--drain-timeout", "100ms")
		page := picker.await(t, fmt.Sprintf("headgate_endpoints{pool=\"default/%s\"} 0\n", pool), "headgate_control_connected 1\n")
		if other := fmt.Sprint("default/p", 1-n); strings.Contains(page, other) {
			t.Errorf("%s has metrics of %s", picker.name, other)
		}
		return control, picker
	}
	for n := range pairs {
		pairs[n].dir = t.TempDir()
	}
	control, picker := start(0)
	otherControl, otherPicker := start(1)
	picker.end(t)
	control.end(t)
	otherControl.await(t, "headgate_models{which=\"all\"} 2\n")
	otherPicker.await(t, "headgate_control_connected 1\n")
	control, picker = start(0)
	for _, p := range []program{picker, control, otherPicker, otherControl} {
		p.end(t)
	}
	if slog.Default() != logger || pflag.CommandLine.HasFlags() {
		t.Error("the programs changed the default log or the default flags")
	}
}
