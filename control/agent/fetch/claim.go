package fetch

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/headgate/headgate/control/agent/storage"
)

// claim is a file or folder of a mounted PersistentVolumeClaim.
type claim struct {
	src  storage.Source
	root string // the claim's folder without symbolic links
	path string // the model in it without symbolic links
}

// openClaim finds the files of a claim. It follows symbolic links, whose targets must be in the
// claim.
func openClaim(_ context.Context, src storage.Source, opts Options) (Remote, error) {
	if opts.ClaimsDir == "" {
		return nil, failure(src, NotFound, "this agent has no claims; mount them, and name their folder with --pvc-dir")
	}
	c := &claim{src: src}
	var err error
	if c.root, err = filepath.EvalSymlinks(filepath.Join(opts.ClaimsDir, src.Bucket)); err != nil {
		return nil, failure(src, NotFound, "no PersistentVolumeClaim %q is mounted beside this engine; add it to the pod", src.Bucket)
	}
	if c.path, err = c.resolve(src.Path); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *claim) Close() error { return nil }

// resolve returns the path of a file or folder without symbolic links.
func (c *claim) resolve(name string) (string, error) {
	at, err := filepath.EvalSymlinks(filepath.Join(c.root, filepath.FromSlash(name)))
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "", failure(c.src, Denied, "the agent may not read %q in the claim; correct the permissions of the volume", name)
	case err != nil:
		return "", failure(c.src, NotFound, "there is no %q in the claim; correct the source", name)
	case !c.contains(at):
		return "", failure(c.src, Unsafe, "%q leads out of the claim; replace the symbolic link by the file", name)
	}
	return at, nil
}

func (c *claim) contains(path string) bool {
	return path == c.root || strings.HasPrefix(path, strings.TrimSuffix(c.root, "/")+"/")
}

// List returns the path of the model. It fails if the model has no file, or if a symbolic link
// leads out of the claim.
func (c *claim) List(ctx context.Context) (Listing, error) {
	listing := Listing{Link: c.path}
	info, err := os.Stat(c.path)
	if err != nil {
		return Listing{}, c.fault(err)
	}
	listing.Single = !info.IsDir()
	files := 0
	err = filepath.WalkDir(c.path, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return c.fault(err)
		case ctx.Err() != nil:
			return ctx.Err()
		case entry.Type()&fs.ModeSymlink != 0:
			at, err := filepath.EvalSymlinks(path)
			if err != nil || !c.contains(at) {
				name, _ := filepath.Rel(c.root, path)
				return failure(c.src, Unsafe, "%q leads out of the claim, or nowhere; replace the symbolic link by the file", name)
			}
			files++
		case entry.Type().IsRegular():
			files++
		}
		return nil
	})
	if err != nil {
		return Listing{}, err
	}
	if files == 0 {
		return Listing{}, failure(c.src, Empty, "there is no file; correct the source, or copy the model into the volume")
	}
	if c.src.Schema != "" {
		at, err := c.resolve(c.src.Schema)
		if err != nil {
			return Listing{}, ofSchema(c.src, err)
		}
		info, err := os.Stat(at)
		if err != nil {
			return Listing{}, c.fault(err)
		}
		if !info.Mode().IsRegular() {
			return Listing{}, failure(c.src, Invalid, "the schema %q is no file; name a file", c.src.Schema)
		}
		version := info.ModTime().UTC().Format("20060102T150405.000000000")
		listing.Schema = &Object{Name: base(c.src.Schema), Key: at, Size: info.Size(), Version: version}
	}
	return listing, nil
}

// fault returns the Error for an error of the file system.
func (c *claim) fault(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failure(c.src, NotFound, "a file in the claim has disappeared; the load starts anew")
	case errors.Is(err, fs.ErrPermission):
		return failure(c.src, Denied, "the agent may not read the claim; correct the permissions of the volume")
	}
	return failure(c.src, Busy, "the volume of the claim does not answer as it should; the load is tried again")
}

// Open reads the schema. The model's own files are not copied.
func (c *claim) Open(_ context.Context, o Object, offset, length int64) (io.ReadCloser, error) {
	f, err := os.Open(o.Key)
	if err != nil {
		return nil, c.fault(err)
	}
	if length < 0 {
		length = 1<<63 - 1 - offset
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, offset, length), f}, nil
}
