package files

import (
	"archive/tar"
	"bufio"
	"compress/bzip2"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/headgate/headgate/control/agent/fetch"
)

const (
	// maxEntries is the maximum number of entries of all archives of a source.
	maxEntries = 100_000
	// maxRatio is the maximum size of an unpacked archive, relative to the archive. Weights of
	// models hardly compress.
	maxRatio = 100
	// alwaysUnpacked is the number of bytes that any archive may unpack to.
	alwaysUnpacked = 64 << 20
	// maxWindow is the memory in bytes that a zstd archive may need.
	maxWindow = 32 << 20
	// reserveStep is the number of bytes that are reserved at once for unpacked files.
	reserveStep = 4 << 20
)

// unpackAll unpacks the archives of a source in their order. Later archives change what earlier
// ones made, as the layers of an image do.
func (t *transfer) unpackAll(ctx context.Context) error {
	if err := errors.Join(t.root.RemoveAll("files"), t.root.Mkdir("files", 0o755)); err != nil {
		return err
	}
	root, err := t.root.OpenRoot("files")
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root, uri: t.URI, grow: t.grow, buffer: t.store.buffers.Get().(*[]byte)}
	defer t.store.buffers.Put(u.buffer)
	for i, o := range t.Objects {
		if err := t.unpack(ctx, u, i, o.Archive); err != nil {
			return err
		}
	}
	if err := t.grow(-u.ahead); err != nil {
		return err
	}
	return u.check()
}

// unpack unpacks one archive.
func (t *transfer) unpack(ctx context.Context, u *unpacker, i int, a *fetch.Archive) error {
	file, err := t.root.Open(t.file(i))
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	u.left += maxRatio*info.Size() + alwaysUnpacked
	u.budget = u.left
	err = u.archive(&interruptible{ctx, file}, info.Size(), a)
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil || reasonOf(err) != "" || isNoSpace(err):
		return err
	case errors.As(err, &p), errors.As(err, &l), errors.Is(err, zstd.ErrWindowSizeExceeded):
		// A name that leads through a file or out of the folder, a name that is too long, and the
		// like: the archive is the cause.
		return fail(fetch.Unsafe, u.uri, "the archive cannot be unpacked at %q: %v", shorten(u.name), withoutPath(err))
	}
	return fail(fetch.Corrupt, u.uri, "the archive is damaged: %v; upload it again", err)
}

// interruptible is a file that cannot be read after its context has ended.
type interruptible struct {
	ctx  context.Context
	file *os.File
}

func (i *interruptible) Read(into []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.file.Read(into)
}

func (i *interruptible) ReadAt(into []byte, offset int64) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.file.ReadAt(into, offset)
}

// decompress returns the plain bytes of a compressed stream. The caller calls the function at the
// end.
func decompress(r io.Reader, compression string) (io.Reader, func(), error) {
	switch compression {
	case "":
		return r, func() {}, nil
	case "gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { _ = z.Close() }, nil // the reader has reported errors
	case "bzip2":
		return bzip2.NewReader(r), func() {}, nil
	case "zstd":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return nil, nil, errors.New("unknown compression " + compression)
}

// unpacker unpacks archives into a folder. Nothing that it makes leads out of the folder.
type unpacker struct {
	root    *os.Root
	uri     string
	grow    func(int64) error // reserves room on the disk
	buffer  *[]byte
	left    int64           // bytes that may still be read of the unpacked archive
	budget  int64           // bytes that may still be written; more than are read if files are sparse
	ahead   int64           // bytes that are reserved but not yet written
	entries int             // of all archives
	name    string          // of the entry that is being unpacked
	written map[string]bool // names that the current archive made, with their folders
}

// unsafe returns an error about the current entry.
func (u *unpacker) unsafe(why string) error {
	return fail(fetch.Unsafe, u.uri, "the archive holds %q, which %s; remove it from the archive", shorten(u.name), why)
}

// archive unpacks the entries of an archive that has length bytes.
func (u *unpacker) archive(file *interruptible, length int64, a *fetch.Archive) error {
	u.written = make(map[string]bool)
	switch a.Format {
	case "tar", "":
		plain, done, err := decompress(bufio.NewReaderSize(file, bufferSize), a.Compression)
		if err != nil {
			return err
		}
		defer done()
		return u.tar(plain, a)
	case "zip":
		return u.zip(file, length, a)
	}
	return errors.New("unknown format " + a.Format)
}

// count counts one more entry.
func (u *unpacker) count() error {
	if u.entries++; u.entries > maxEntries {
		return u.tooMany()
	}
	return nil
}

// tooMany returns the error for archives with too many entries.
func (u *unpacker) tooMany() error {
	return fail(fetch.Unsafe, u.uri, "the archive has more than %d entries; upload its files instead", maxEntries)
}

// tar unpacks the entries of a tar.
func (u *unpacker) tar(r io.Reader, a *fetch.Archive) error {
	counted := &counter{r: r, left: &u.left}
	for in := tar.NewReader(counted); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = errors.Join(u.count(), u.entry(h, in, a))
		}
		if counted.exceeded {
			return u.tooLarge()
		}
		if err != nil {
			return err
		}
	}
}

// zip unpacks the entries of a zip.
func (u *unpacker) zip(file *interruptible, length int64, a *fetch.Archive) error {
	in, err := u.zipReader(file, length)
	if err != nil {
		return err
	}
	for _, f := range in.File {
		h, err := tar.FileInfoHeader(f.FileInfo(), "")
		if err != nil {
			u.name = f.Name
			return u.unsafe("is no file, folder or link")
		}
		h.Name = f.Name // the header has only the last element
		body, err := f.Open()
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeSymlink {
			target, err := io.ReadAll(io.LimitReader(body, 4096))
			if err != nil {
				return errors.Join(err, body.Close())
			}
			h.Linkname = string(target)
		}
		if err := errors.Join(u.count(), u.entry(h, body, a), body.Close()); err != nil {
			return err
		}
	}
	return nil
}

// tooLarge returns the error for an archive that inflates without end.
func (u *unpacker) tooLarge() error {
	return fail(fetch.Unsafe, u.uri, "the archive unpacks to more than %d times its size; upload its files instead", maxRatio)
}

// counter ends a stream that is longer than it may be.
type counter struct {
	r        io.Reader
	left     *int64
	exceeded bool
}

func (c *counter) Read(into []byte) (int, error) {
	if *c.left <= 0 {
		c.exceeded = true
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.r.Read(into[:min(int64(len(into)), *c.left)])
	*c.left -= int64(n)
	return n, err
}

// entry unpacks one entry of an archive.
func (u *unpacker) entry(h *tar.Header, in io.Reader, a *fetch.Archive) error {
	u.name = h.Name
	name, action := a.Entry(h.Name)
	switch {
	case action == fetch.Refuse:
		return u.unsafe("leaves the folder")
	case action == fetch.Skip:
		return nil
	case !isSafe(name) && name != ".":
		return u.unsafe("is no name of a file")
	case action == fetch.Clear:
		return u.clear(name)
	case action == fetch.Remove:
		return u.whiteout(name)
	case h.Typeflag == tar.TypeXGlobalHeader:
		return nil
	case name == "." && h.Typeflag != tar.TypeDir:
		return u.unsafe("is not a folder but stands in the place of one")
	case name == ".":
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.folder(name)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		if h.Mode&0o6000 != 0 {
			return u.unsafe("has the setuid or setgid bit")
		}
		return u.file(name, h, in)
	case tar.TypeSymlink:
		return u.symlink(name, h.Linkname)
	case tar.TypeLink:
		old, action := a.Entry(h.Linkname)
		if action != fetch.Store || !isSafe(old) {
			return u.unsafe("is a link that leaves the folder")
		}
		return u.hardLink(name, old)
	}
	return u.unsafe("is no file, folder or link")
}

// mark records that the current archive made a name and the folders above it.
func (u *unpacker) mark(name string) {
	for ; name != "."; name = path.Dir(name) {
		u.written[name] = true
	}
}

// parents makes the folders above a name.
func (u *unpacker) parents(name string) error {
	if dir := path.Dir(name); dir != "." {
		return u.root.MkdirAll(dir, 0o755)
	}
	return nil
}

// folder makes a folder, or keeps the one that is there.
func (u *unpacker) folder(name string) error {
	if info, err := u.root.Lstat(name); err == nil && !info.IsDir() {
		if err := u.remove(name); err != nil {
			return err
		}
	}
	u.mark(name)
	return u.root.MkdirAll(name, 0o755)
}

// file unpacks a file. It replaces an earlier entry with the same name.
func (u *unpacker) file(name string, h *tar.Header, in io.Reader) error {
	if err := errors.Join(u.remove(name), u.parents(name)); err != nil {
		return err
	}
	u.mark(name)
	file, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644|fs.FileMode(h.Mode)&0o111)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(&roomy{u, file}, in, *u.buffer)
	return errors.Join(err, file.Close())
}

// roomy is a file that reserves room before it is written. A sparse file in an archive is long but
// has few bytes in it: its zeros count, too.
type roomy struct {
	u    *unpacker
	file *os.File
}

func (r *roomy) Write(p []byte) (int, error) {
	n := int64(len(p))
	if r.u.budget -= n; r.u.budget < 0 {
		return 0, r.u.tooLarge()
	}
	if r.u.ahead < n {
		if err := r.u.grow(reserveStep); err != nil {
			// Less may be enough for the last file.
			if err := r.u.grow(n - r.u.ahead); err != nil {
				return 0, err
			}
			r.u.ahead = n
		} else {
			r.u.ahead += reserveStep
		}
	}
	r.u.ahead -= n
	return r.file.Write(p)
}

// symlink makes a symbolic link whose target is in the folder.
func (u *unpacker) symlink(name, target string) error {
	if path.IsAbs(target) || !isSafe(path.Join(path.Dir(name), target)) {
		return u.unsafe("is a link that leaves the folder")
	}
	if err := errors.Join(u.remove(name), u.parents(name)); err != nil {
		return err
	}
	u.mark(name)
	return u.root.Symlink(target, name)
}

// hardLink links a name to a file that an archive made before.
func (u *unpacker) hardLink(name, old string) error {
	if old == name {
		return nil
	}
	info, err := u.root.Lstat(old)
	if err != nil || !info.Mode().IsRegular() {
		return u.unsafe("is a link to no file")
	}
	if err := errors.Join(u.remove(name), u.parents(name), u.grow(info.Size())); err != nil {
		return err
	}
	u.mark(name)
	return u.root.Link(old, name)
}

// check checks the finished folder: it has a file, and each symbolic link leads to a path in it. It
// checks the links together, because a chain of harmless links can lead out of the folder.
func (u *unpacker) check() error {
	empty := true
	err := fs.WalkDir(u.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		empty = false
		if d.Type()&fs.ModeSymlink == 0 {
			return nil
		}
		if _, err := u.root.Stat(name); err != nil {
			u.name = name
			return u.unsafe("is a link to nothing in the folder")
		}
		return nil
	})
	if err == nil && empty {
		return fail(fetch.Empty, u.uri, "the archives hold no files of a model; check the path")
	}
	return err
}
