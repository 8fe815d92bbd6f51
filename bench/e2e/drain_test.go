package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// An Envoy is drained before it stops. Responses in flight finish, connections that arrive during
// the drain are served and closed, and when Envoy then stops, no request is lost.
func TestDrainedEnvoyCutsNoStream(t *testing.T) { onBothPlanes(t, drainedEnvoyCutsNoStream) }

func drainedEnvoyCutsNoStream(t *testing.T) {
	s := start(t)
	bin := t.TempDir()
	if out, err := exec.Command(s.Programs.Headgate, "extproc", "install", bin).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	end := s.flow("a01", 1500)
	began := time.Now()
	drain := exec.Command(filepath.Join(bin, "extproc"), "drain", "--admin", s.Admin, "--delay", "10ms")
	drain.Stderr = os.Stderr
	if err := drain.Start(); err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- drain.Wait() }()
	sentAway := func() bool {
		response, err := s.open(t.Context(), completion("a02", 1, false))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("a request during the drain gets %d", response.StatusCode)
		}
		return response.Close
	}
	s.await("clients are told to go", sentAway)
	select {
	case err := <-drained:
		t.Fatalf("the drain ended after %v, with a stream in flight: %v", time.Since(began), err)
	case stream := <-end:
		if stream.err != nil {
			t.Errorf("the stream was cut: %v", stream.err)
		}
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// A drain ends after its time limit and reports how many requests remain.
func TestDrainHasALimit(t *testing.T) { onBothPlanes(t, drainHasALimit) }

func drainHasALimit(t *testing.T) {
	s := start(t)
	end := s.flow("a01", 1500)
	out, err := exec.Command(s.Programs.Headgate, "extproc", "drain", "--admin", s.Admin, "--delay", "0s", "--limit", "1s").CombinedOutput()
	if want := "headgate extproc: requests still in flight after 1s: 1; Envoy will cut them; set a longer --limit\n"; err == nil || string(out) != want {
		t.Errorf("%v, %q; want %q", err, out, want)
	}
	if stream := <-end; stream.err != nil {
		t.Error(stream.err)
	}
}
