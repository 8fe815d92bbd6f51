package process_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/headgate/headgate/internal/process"
)

// holder is an environment variable. If it is set, this test binary locks the file that it names,
// until the binary is killed.
const holder = "HEADGATE_TEST_LOCK"

func TestMain(m *testing.M) {
	path := os.Getenv(holder) //nolint:forbidigo // it is how the test tells its own binary
	if path == "" {
		os.Exit(m.Run())
	}
	if _, err := process.TryLock(path); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	child := exec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held beside", child.Process.Pid)
	select {}
}

// While a process holds a lock, the error names this process. The lock is free as soon as the
// process is dead, even if its children live.
func TestLockIsFreeWhenItsProcessIsDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "lock")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command(self)
	other.Env = append(os.Environ(), holder+"="+path)
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, bad := fmt.Sscanf(line, "held beside %d", &child); err != nil || bad != nil {
		t.Fatalf("%q, %v", line, errors.Join(err, bad))
	}
	defer func() {
		if p, err := os.FindProcess(child); err == nil {
			_ = p.Kill()
		}
	}()

	_, err = process.TryLock(path)
	if held, ok := errors.AsType[process.Held](err); !ok || held.PID != other.Process.Pid {
		t.Errorf("while process %d holds it: %v", other.Process.Pid, err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	unlock, err := process.TryLock(path)
	if err != nil {
		t.Fatalf("when it is dead: %v", err)
	}
	if _, err := process.TryLock(path); !errors.As(err, new(process.Held)) {
		t.Errorf("a second time within a process: %v", err)
	}
	unlock()
	if unlock, err = process.TryLock(path); err != nil {
		t.Fatalf("when it was unlocked: %v", err)
	}
	unlock()
}

// A process that only asks whether a lock is held, as headgate status does, does not prevent
// another process from taking it.
func TestQuestionsDoNotHoldALock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	done := make(chan struct{})
	var askers sync.WaitGroup
	for range 2 {
		askers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					process.Locked(path)
				}
			}
		})
	}
	for range 100 {
		unlock, err := process.TryLock(path)
		if err != nil {
			t.Error(err)
			break
		}
		if !process.Locked(path) {
			t.Error("the lock is held, and Locked returns false")
		}
		unlock()
	}
	close(done)
	askers.Wait()
}

// A lock file that is a link, as in a folder of somebody else, is not followed: its target would be
// truncated.
func TestLinksAreNotLocked(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "lock")
	if err := errors.Join(os.WriteFile(file, []byte("text"), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	if _, err := process.TryLock(link); err == nil {
		t.Error("a link is locked")
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "text" {
		t.Errorf("the link's target has %q, %v", text, err)
	}
}
