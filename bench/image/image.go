// Package image builds the container images of Headgate's programs as tarballs for containerd and
// Docker. An image has no base image: a single layer contains a binary and its shared libraries.
// Building needs neither a registry nor a daemon.
package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing/fstest"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// user is the user and group of images that do not run as root. It is numeric so that the kubelet
// can check that the user is not root. 65532 is commonly called nonroot.
const user = "65532:65532"

// Image describes an image.
type Image struct {
	// Name is the name in manifests, including the tag.
	Name string
	// Entrypoint is the path of the program in the image, followed by its fixed arguments.
	Entrypoint []string
	// Files maps paths in the image to files of this machine. In the image every user can read
	// them.
	Files map[string]string
	// Root makes the program run as root, which it may need for ports below 1024.
	Root bool
}

// Write writes the image to a tarball, atomically. The same files always give the same tarball.
func (i Image) Write(tarballPath string) error {
	reference, err := name.NewTag(i.Name)
	if err != nil {
		return err
	}
	img, err := i.build()
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	part := tarballPath + ".part"
	if err := tarball.WriteToFile(part, reference, img); err != nil {
		return fmt.Errorf("image %s: %w", i.Name, errors.Join(err, os.Remove(part)))
	}
	return os.Rename(part, tarballPath)
}

func (i Image) build() (v1.Image, error) {
	layer, err := i.layer()
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{Entrypoint: i.Entrypoint, User: user, WorkingDir: "/"}
	if i.Root {
		file.Config.User = "0:0"
	}
	return mutate.ConfigFile(img, file)
}

// layer returns the files as a layer, sorted by path and without modification times.
func (i Image) layer() (v1.Layer, error) {
	files := make(fstest.MapFS)
	for at, file := range i.Files {
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		files[strings.TrimPrefix(at, "/")] = &fstest.MapFile{Data: content, Mode: mode}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.AddFS(files), w.Close()); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	// The layer is cached, because it is read twice: for its digest and for its content.
	return tarball.LayerFromOpener(open, tarball.WithCompressedCaching)
}

// Static returns the image of a statically linked binary, which runs with args.
func Static(imageName, binary string, args ...string) Image {
	at := "/" + filepath.Base(binary)
	return Image{Name: imageName, Entrypoint: append([]string{at}, args...), Files: map[string]string{at: binary}}
}

// Dynamic returns the image of a dynamically linked binary with its loader and shared libraries. at
// is the path of the binary in the image.
func Dynamic(imageName, binary, at string) (Image, error) {
	i := Image{Name: imageName, Entrypoint: []string{at}, Files: map[string]string{at: binary}}
	libraries, err := libraries(binary)
	if err != nil {
		return Image{}, err
	}
	for _, l := range libraries {
		i.Files[l] = l
	}
	return i, nil
}
