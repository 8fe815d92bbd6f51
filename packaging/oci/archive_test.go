package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// unpack writes the files of an archive into a folder, as an OCI image layout.
func unpack(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		} else if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 1_790_000_000 {
			t.Errorf("%s is of %v", h.Name, h.ModTime)
		}
		content, err := io.ReadAll(r)
		to := filepath.Join(dir, h.Name)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// An archive has one index, with a valid image for each architecture.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	archive := Archive{
		Name: "example.com/program", Tag: "0.1.0", Created: time.Unix(1_790_000_000, 0),
		Annotations: map[string]string{"org.opencontainers.image.version": "0.1.0"},
	}
	for _, arch := range []string{"amd64", "arm64"} {
		archive.Images = append(archive.Images, Image{
			Name: "program", Arch: arch, Entrypoint: []string{"/program"},
			Files: map[string]string{"/program": program}, Links: map[string]string{"/other": "program"},
		})
	}
	var written [2][]byte
	for n := range written {
		file := filepath.Join(dir, "program.tar")
		if err := errors.Join(os.WriteFile(program, []byte("binary"), 0o700), archive.Write(file)); err != nil {
			t.Fatal(err)
		}
		var err error
		if written[n], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(written[0], written[1]) {
		t.Error("equal files gave different bytes")
	}
	top, err := layout.ImageIndexFromPath(unpack(t, written[0]))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := top.IndexManifest()
	if err != nil || len(entries.Manifests) != 1 || entries.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "0.1.0" {
		t.Fatalf("index.json is %+v, %v", entries, err)
	}
	if got := entries.Manifests[0].Annotations["io.containerd.image.name"]; got != "example.com/program:0.1.0" {
		t.Errorf("containerd names the image %q", got)
	}
	index, err := top.ImageIndex(entries.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	all, err := index.IndexManifest()
	if err != nil || len(all.Manifests) != 2 || all.Annotations["org.opencontainers.image.version"] != "0.1.0" {
		t.Fatalf("the index is %+v, %v", all, err)
	}
	for n, arch := range []string{"amd64", "arm64"} {
		if p := all.Manifests[n].Platform; p == nil || !p.Equals(v1.Platform{OS: "linux", Architecture: arch}) {
			t.Errorf("image %d is for %v", n, p)
		}
		img, err := index.Image(all.Manifests[n].Digest)
		if err != nil {
			t.Fatal(err)
		}
		// skopeo converts an image for Docker only if its layers have OCI's type, too.
		manifest, err := img.Manifest()
		if err != nil || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != types.OCILayer ||
			manifest.Config.MediaType != types.OCIConfigJSON {
			t.Errorf("%s: the manifest is %+v, %v", arch, manifest, err)
		}
		if config, err := img.ConfigFile(); err != nil || config.Architecture != arch || config.Created.Unix() != 1_790_000_000 {
			t.Errorf("%s: the configuration is %+v, %v", arch, config, err)
		}
	}
	archive.Images[0].Files["/gone"] = filepath.Join(dir, "gone")
	if err := archive.Write(filepath.Join(dir, "2.tar")); err == nil {
		t.Error("a file that does not exist is no error")
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if hidden, _ := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left)+len(hidden) != 2 {
		t.Errorf("a failed archive leaves %v %v", left, hidden)
	}
}
