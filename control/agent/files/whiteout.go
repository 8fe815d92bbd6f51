package files

import (
	"errors"
	"io/fs"
	"path"
	"strings"
)

// whiteout removes what earlier archives made: one name, or the content of a folder.
func (u *unpacker) whiteout(dir, base, prefix string) error {
	opaque := base == ".wh..wh..opq"
	target := dir
	if !opaque {
		target = path.Join(dir, strings.TrimPrefix(base, ".wh."))
	}
	if _, above := below(prefix, target); above && prefix != "" {
		return u.clear(".") // a folder above the model's, or that itself
	}
	name, inside := below(target, prefix)
	switch {
	case !inside:
		return nil
	case opaque || name == ".":
		return u.clear(name)
	case !u.written[name]:
		return u.remove(name)
	}
	if info, err := u.root.Lstat(name); err != nil || !info.IsDir() {
		return nil
	}
	return u.clear(name)
}

// clear removes the content of a folder, except what the current archive made.
func (u *unpacker) clear(dir string) error {
	file, err := u.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	children, err := file.Readdirnames(-1)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	for _, child := range children {
		name := path.Join(dir, child)
		if !u.written[name] {
			err = u.remove(name)
		} else if info, e := u.root.Lstat(name); e == nil && info.IsDir() {
			err = u.clear(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes a file or a folder, and counts the bytes that it frees.
func (u *unpacker) remove(name string) error {
	info, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 { // the walk would follow it
		return u.root.Remove(name)
	}
	freed := int64(0)
	_ = fs.WalkDir(u.root.FS(), name, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				freed += info.Size()
			}
		}
		return nil
	})
	if err := u.root.RemoveAll(name); err != nil {
		return err
	}
	return u.grow(-freed)
}
