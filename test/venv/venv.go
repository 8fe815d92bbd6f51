// Package venv installs packages of PyPI for tests.
package venv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Python returns the interpreter of a virtual environment with the given requirement, such as
// "openai==3.52.0", which is in .cache/python-REQUIREMENT of the repository. The first call
// installs it, with Python 3 and its pip and venv; a lock excludes other processes. Extra has
// packages that the requirement lacks, each with its version.
func Python(t testing.TB, requirement string, extra ...string) string {
	t.Helper()
	dir := filepath.Join(cache(t), "python-"+requirement)
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	python, done := filepath.Join(dir, "venv", "bin", "python"), filepath.Join(dir, "installed")
	want := strings.Join(append([]string{requirement}, extra...), " ") + "\n"
	if have, err := os.ReadFile(done); err == nil && string(have) == want {
		return python
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("install %s (the test needs Python 3 with pip and venv): %v\n%s", requirement, err, out)
		}
	}
	run("python3", "-m", "venv", filepath.Join(dir, "venv"))
	run(python, append([]string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement}, extra...)...)
	if err := os.WriteFile(done, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
	return python
}

// cache returns the folder .cache of the repository.
func cache(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("there is no go.mod above the test's folder")
		}
	}
	dir = filepath.Join(dir, ".cache")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
