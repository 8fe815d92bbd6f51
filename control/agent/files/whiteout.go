package files

import (
	"errors"
	"io/fs"
	"path"
)

// whiteout removes the entries that earlier archives stored under a name.
func (u *unpacker) whiteout(name string) error {
	if !u.written[name] {
		return u.remove(name)
	}
	if info, err := u.root.Lstat(name); err != nil || !info.IsDir() {
		return nil //nolint:nilerr // the current archive stored a file of that name
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
