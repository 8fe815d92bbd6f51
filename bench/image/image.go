// Package image makes the images of Headgate's programs: one layer with a binary and what it is linked against, on an empty
// base, as a tarball that containerd and Docker import. No registry is asked and no daemon runs.
package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// user and group of every image that does not say otherwise: a number, so that the kubelet can see that it is not root, and the one that is called
// nonroot by most.
const user = "65532:65532"

// Image is what goes into one image.
type Image struct {
	// Name is what manifests call it, with its tag.
	Name string
	// Entrypoint is the program, by its path in the image, and the arguments that it always has.
	Entrypoint []string
	// Files of this machine by their path in the image. They are read by anybody there.
	Files map[string]string
	// Root says that the program runs as root, as some of others must, which ask for ports below 1024.
	Root bool
}

// Write puts an image into a tarball. The same files give the same bytes. It appears whole or not at all.
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
	// It is read for its digest and for its bytes, and compressed once.
	layer, err := tarball.LayerFromOpener(i.open, tarball.WithCompressedCaching)
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

// open streams the layer.
func (i Image) open() (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(i.layer(w)) }()
	return r, nil
}

// layer writes the files, each after the folders above it, in order and without times.
func (i Image) layer(w io.Writer) error {
	archive := tar.NewWriter(w)
	paths := make([]string, 0, len(i.Files))
	for p := range i.Files {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	made := make(map[string]bool)
	for _, p := range paths {
		for _, dir := range above(p) {
			if !made[dir] {
				made[dir] = true
				if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
					return err
				}
			}
		}
		if err := add(archive, strings.TrimPrefix(p, "/"), i.Files[p]); err != nil {
			return err
		}
	}
	return archive.Close()
}

// above are the folders that hold a path, the outermost first.
func above(p string) []string {
	var dirs []string
	for dir := path.Dir(strings.TrimPrefix(p, "/")); dir != "."; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}

func add(archive *tar.Writer, as, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	if info.Mode()&fs.ModeType != 0 {
		return fmt.Errorf("%s is no file", file)
	}
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: as, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, f)
	return err
}

// Static is the image of a statically linked binary.
func Static(imageName, binary string, args ...string) Image {
	at := "/" + filepath.Base(binary)
	return Image{Name: imageName, Entrypoint: append([]string{at}, args...), Files: map[string]string{at: binary}}
}

// Dynamic is the image of a binary as it is linked on this machine, with the libraries that it needs and what loads them.
// at is the binary's path in the image.
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
