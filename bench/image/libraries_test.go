package image

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgate/envoy/find"
)

// The libraries found are those that the loader itself lists. This is tested with Envoy, which
// needs few libraries, and with other binaries of this machine.
func TestLibraries(t *testing.T) {
	found, err := find.Envoy(t.Context(), "../../.cache", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	binaries := []string{found}
	for _, name := range []string{"apt-get", "curl", "git", "ip", "tar"} {
		if path, err := exec.LookPath(name); err == nil {
			binaries = append(binaries, path)
		}
	}
	for _, binary := range binaries {
		loader := loaderOf(t, binary)
		if loader == "" {
			continue // the file is a static binary or a script
		}
		out, err := exec.Command(loader, "--list", binary).Output()
		if err != nil {
			t.Fatal(err)
		}
		want := []string{filepath.Base(loader)}
		for line := range strings.Lines(string(out)) {
			if soname, _, found := strings.Cut(strings.TrimSpace(line), " => "); found && filepath.Base(soname) != want[0] {
				want = append(want, filepath.Base(soname))
			}
		}
		files, err := libraries(binary)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, file := range files {
			got = append(got, filepath.Base(file))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: found %v, the loader finds %v", binary, got, want)
		}
	}
}

func loaderOf(t *testing.T, binary string) string {
	t.Helper()
	f, err := elf.Open(binary)
	if err != nil {
		return ""
	}
	defer f.Close()
	loader, err := interpreter(f)
	if err != nil {
		t.Fatal(err)
	}
	return loader
}
