package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// contents reads the tarball of an image. It returns the mode of each path with the target of a
// link, and the user and the entrypoint in the image's configuration.
func contents(t *testing.T, path, imageName string) (files map[string]string, user string, entrypoint []string) {
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
	files = make(map[string]string)
	for archive := tar.NewReader(unpacked); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, config.Config.User, config.Config.Entrypoint
		} else if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = strings.TrimSpace(fmt.Sprintf("%o %s", h.Mode, h.Linkname))
	}
}

func TestImage(t *testing.T) {
	dir := t.TempDir()
	binary, notes := filepath.Join(dir, "program"), filepath.Join(dir, "notes")
	if err := errors.Join(os.WriteFile(binary, []byte("binary"), 0o700), os.WriteFile(notes, []byte("text"), 0o600)); err != nil {
		t.Fatal(err)
	}
	i := Static("headgate.dev/program:dev", binary, "--serve")
	i.Files["/etc/program/notes"], i.Links = notes, map[string]string{"/other": "program"}
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
	if files["program"] != "755" || files["etc/program/notes"] != "644" || files["other"] != "777 program" || len(files) != 5 {
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
