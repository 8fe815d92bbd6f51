package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Archive is an OCI archive: one image for several architectures of Linux.
type Archive struct {
	// Name and Tag name the image, such as headgate.dev/headgate and 0.1.0.
	Name, Tag string
	// Created is the time in the images' configurations, and of each file in the archive.
	Created time.Time
	// Annotations are written into the index.
	Annotations map[string]string
	// Images has one image for each architecture.
	Images []Image
}

// Write writes the archive, atomically. The same archive always gives the same bytes.
func (a Archive) Write(path string) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".oci-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := a.layout(dir); err != nil {
		return fmt.Errorf("image %s: %w", a.Name, err)
	}
	part := path + ".part"
	if err := a.pack(dir, part); err != nil {
		return fmt.Errorf("image %s: %w", a.Name, errors.Join(err, os.Remove(part)))
	}
	return os.Rename(part, path)
}

// layout writes an OCI image layout, whose index.json has one entry: the index of all
// architectures. This is the form in which containerd, Docker and skopeo import an image for
// several of them.
func (a Archive) layout(dir string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range a.Images {
		img, err := i.build(types.OCILayer)
		if err != nil {
			return err
		}
		img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
		if img, err = mutate.CreatedAt(img, v1.Time{Time: a.Created.UTC()}); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: i.arch()}},
		})
	}
	annotated, ok := mutate.Annotations(index, a.Annotations).(v1.ImageIndex)
	if !ok {
		return errors.New("annotations make an index something else")
	}
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return to.AppendIndex(annotated, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": a.Tag,
		"io.containerd.image.name":          a.Name + ":" + a.Tag,
	}))
}

// pack writes the files of a directory into a tarball, sorted by path.
func (a Archive) pack(dir, path string) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return a.packFile(w, dir, file)
	})
	return errors.Join(err, w.Close(), out.Close())
}

func (a Archive) packFile(w *tar.Writer, dir, file string) error {
	name, err := filepath.Rel(dir, file)
	if err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h := tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Size: info.Size(), Mode: 0o644, ModTime: a.Created.UTC()}
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
