package query_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/internal/query"
)

// Only the addresses of a run that is still running count.
func TestAddressesOfTheRunInThisFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	usual := query.Local{Listen: "127.0.0.1:8080", Admin: "127.0.0.1:9901", Extproc: "127.0.0.1:9090", Control: "127.0.0.1:9091"}
	if got := query.InThisFolder(); got != usual {
		t.Errorf("without a run: %+v", got)
	}
	moved := query.Local{Listen: "127.0.0.1:18080", Admin: "127.0.0.1:19901", Extproc: "127.0.0.1:19090"}
	if err := moved.Write(query.RunDir); err != nil {
		t.Fatal(err)
	}
	if got := query.InThisFolder(); got != usual {
		t.Errorf("after a run that was killed: %+v", got)
	}
	// A lock that is a link is not followed, and its file not changed.
	lock := filepath.Join(query.RunDir, "lock")
	if err := errors.Join(os.WriteFile("text", []byte("text"), 0o644), os.Symlink("../text", lock)); err != nil {
		t.Fatal(err)
	}
	if got := query.InThisFolder(); got != usual {
		t.Errorf("with a link: %+v", got)
	}
	if text, err := os.ReadFile("text"); err != nil || string(text) != "text" {
		t.Errorf("the file is %q, %v", text, err)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	unlock, err := process.TryLock(lock)
	if err != nil {
		t.Fatal(err)
	}
	if got := query.InThisFolder(); got != moved {
		t.Errorf("during a run: %+v", got)
	}
	unlock()
	if got := query.InThisFolder(); got != usual {
		t.Errorf("after a run: %+v", got)
	}
	if err := moved.Write(".run"); err != nil {
		t.Fatal(err)
	}
	if unlock, err = process.TryLock(filepath.Join(".run", "lock")); err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if got := query.InThisFolder(); got != moved {
		t.Errorf("during make run: %+v", got)
	}
}
