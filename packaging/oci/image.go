// Package oci builds container images: as tarballs for containerd and Docker, and as OCI archives
// for several platforms. An image has no base image: a single layer contains a binary and its
// shared libraries. Building needs neither a registry nor a daemon.
package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
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
	"github.com/google/go-containerregistry/pkg/v1/types"
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
	// Links maps paths in the image to the targets of symbolic links.
	Links map[string]string
	// Arch is the architecture, such as arm64; empty means that of this program.
	Arch string
	// Root makes the program run as root, which it may need for ports below 1024.
	Root bool
}

// Write writes the image to a tarball, atomically. The same files always give the same tarball.
func (i Image) Write(tarballPath string) error {
	reference, err := name.NewTag(i.Name)
	if err != nil {
		return err
	}
	img, err := i.build(types.DockerLayer)
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	part := tarballPath + ".part"
	if err := tarball.WriteToFile(part, reference, img); err != nil {
		return fmt.Errorf("image %s: %w", i.Name, errors.Join(err, os.Remove(part)))
	}
	return os.Rename(part, tarballPath)
}

// build returns the image, with a layer of a media type.
func (i Image) build(layerType types.MediaType) (v1.Image, error) {
	layer, err := i.layer(layerType)
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
	file.OS, file.Architecture = "linux", i.arch()
	file.Config = v1.Config{Entrypoint: i.Entrypoint, User: user, WorkingDir: "/"}
	if i.Root {
		file.Config.User = "0:0"
	}
	return mutate.ConfigFile(img, file)
}

func (i Image) arch() string { return cmp.Or(i.Arch, runtime.GOARCH) }

// layer returns the files as a layer, sorted by path and without modification times.
func (i Image) layer(mediaType types.MediaType) (v1.Layer, error) {
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
	for at, target := range i.Links {
		files[strings.TrimPrefix(at, "/")] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.AddFS(files), w.Close()); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	// The layer is cached, because it is read twice: for its digest and for its content.
	return tarball.LayerFromOpener(open, tarball.WithCompressedCaching, tarball.WithMediaType(mediaType))
}

// Static returns the image of a statically linked binary, which runs with args.
func Static(imageName, binary string, args ...string) Image {
	at := "/" + filepath.Base(binary)
	return Image{Name: imageName, Entrypoint: append([]string{at}, args...), Files: map[string]string{at: binary}}
}
