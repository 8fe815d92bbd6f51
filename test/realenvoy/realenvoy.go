// Package realenvoy starts a real Envoy for a test.
package realenvoy

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/process"
)

// Start starts Envoy with a configuration, and waits until http://ADDRESS/healthz answers 200. The
// files are in dir. Envoy stops at the end of the test; if the test has failed, it logs what Envoy
// wrote last.
func Start(t *testing.T, binary, dir string, config []byte, address string, flags ...string) {
	t.Helper()
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		t.Fatal(err)
	}
	starter := process.NewStarter()
	cmd := exec.Command(binary, append([]string{"--config-path", file, "--disable-hot-restart", "--log-level", "warning"}, flags...)...)
	envoy, err := starter.Start("envoy", dir, cmd)
	if err != nil {
		close(starter)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		envoy.Stop(5 * time.Second)
		close(starter)
		if t.Failed() {
			t.Log(envoy.LastWords())
		}
	})
	if err := envoy.AwaitOK(t.Context(), "http://"+address+"/healthz"); err != nil {
		t.Fatal(err)
	}
}
