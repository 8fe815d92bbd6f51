package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/headgate/headgate/headgate/envoy/find"
)

// contents reads the tarball of an image. It returns the mode of each path, and the user and the
// entrypoint in the image's configuration.
func contents(t *testing.T, path, imageName string) (files map[string]int64, user string, entrypoint []string) {
	t.Helper()
	tag, err := name.NewTag(imageName)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(path, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	unpacked := mutate.Extract(img)
	defer unpacked.Close()
	files = make(map[string]int64)
	for archive := tar.NewReader(unpacked); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, config.Config.User, config.Config.Entrypoint
		} else if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = h.Mode
	}
}

func TestImage(t *testing.T) {
	dir := t.TempDir()
	binary, notes := filepath.Join(dir, "program"), filepath.Join(dir, "notes")
	if err := errors.Join(os.WriteFile(binary, []byte("binary"), 0o700), os.WriteFile(notes, []byte("text"), 0o600)); err != nil {
		t.Fatal(err)
	}
	i := Static("headgate.dev/program:dev", binary, "--serve")
	i.Files["/etc/program/notes"] = notes
	tarballs := []string{filepath.Join(dir, "1.tar"), filepath.Join(dir, "2.tar")}
	var written [][]byte
	for _, path := range tarballs {
		if err := i.Write(path); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		written = append(written, content)
	}
	if !bytes.Equal(written[0], written[1]) {
		t.Error("equal files gave different bytes")
	}
	files, user, entrypoint := contents(t, tarballs[0], i.Name)
	if user != "65532:65532" || !slices.Equal(entrypoint, []string{"/program", "--serve"}) {
		t.Errorf("it runs %v as %s", entrypoint, user)
	}
	if files["program"] != 0o755 || files["etc/program/notes"] != 0o644 || len(files) != 4 {
		t.Errorf("it holds %v", files)
	}

	i.Root = true
	if err := i.Write(tarballs[0]); err != nil {
		t.Fatal(err)
	}
	if _, user, _ := contents(t, tarballs[0], i.Name); user != "0:0" {
		t.Errorf("an image for root runs as %s", user)
	}

	i.Files["/gone"] = filepath.Join(dir, "gone")
	if err := i.Write(filepath.Join(dir, "3.tar")); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("with a file that does not exist: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "3.tar*")); len(left) > 0 {
		t.Errorf("a failed image leaves %v", left)
	}
}

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
