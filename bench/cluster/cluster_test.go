//go:build linux

package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestUsageErrorsAreHelpful(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	for args, want := range map[string]string{
		"":                    "a command is missing",
		"init":                "bench cluster up to start",
		"status --dir " + dir: "bench cluster up starts it",
		"exec --dir " + dir:   "bench cluster up starts it",
		"up --no-such-flag":   "no-such-flag",
	} {
		err := Command(t.Context(), strings.Fields(args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bench cluster %s: %v, want it to say %q", args, err, want)
		}
	}
}

func TestClusterRunsWhileItsLockIsHeld(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "kubeconfig"), nil, 0o600),
		os.WriteFile(pidFile(dir), []byte("1"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, errNotUp) {
		t.Errorf("what an ended cluster left is taken for a cluster: %v", err)
	}
	lock, err := os.Create(lockFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if c, err := Open(dir); err != nil || c.PID != 1 {
		t.Errorf("with its lock held: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, errNotUp) {
		t.Errorf("after its lock is free: %v", err)
	}
}

func TestLogsOutliveTheCluster(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"audit.log", "kubeconfig", "var/lib/x"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, keep := range []bool{true, false} {
		if err := clean(dir, keep); err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if keep && (len(left) != 1 || left[0].Name() != "audit.log") || !keep && len(left) != 0 {
			t.Errorf("keeping logs %t left %v", keep, left)
		}
	}
}

func TestEachFolderHasCgroupsOfItsOwn(t *testing.T) {
	if cgroupName("/a") == cgroupName("/b") {
		t.Error("the cgroups of two clusters are the same")
	}
}

func TestEndedProcessIsGone(t *testing.T) {
	if gone(os.Getpid()) {
		t.Error("this process is gone")
	}
	if !gone(1 << 30) {
		t.Error("a process is there that cannot be")
	}
}

func TestEveryFileOfTheNodeIsFilledAndRead(t *testing.T) {
	entries, err := files.ReadDir("config")
	if err != nil {
		t.Fatal(err)
	}
	v := (&node{nodeConfig: nodeConfig{Dir: "/run-dir"}}).values()
	for _, e := range entries {
		text, err := render(e.Name(), v)
		if err != nil {
			t.Error(err)
			continue
		}
		if strings.Contains(string(text), "{{") || strings.Contains(string(text), "<no value>") {
			t.Errorf("%s is left open: %s", e.Name(), text)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			if err := yaml.UnmarshalStrict([]byte(document), new(any)); err != nil && filepath.Ext(e.Name()) != ".toml" {
				t.Errorf("%s: %v", e.Name(), err)
			}
		}
	}
}

func TestAwaitReportsWhetherTheConditionHeld(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if !within(patience, func() bool { return ctx.Err() != nil }) {
		t.Error("it holds")
	}
	if within(0, func() bool { return false }) {
		t.Error("it never holds")
	}
}
