package files

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxName is the maximum length of the folder of a model. File systems allow 255 bytes.
const maxName = 200

// escape returns the name of a model's folder. Different ids have different names. Names that begin
// with "_" or "." are not those of models. Bytes other than letters, digits, "-", "_" and "."
// become % and two hexadecimal digits, as in URLs. Long names end in "%%" and a hash instead.
func escape(id string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	var b strings.Builder
	for i, c := range []byte(id) {
		if strings.IndexByte(plain, c) >= 0 || i > 0 && (c == '_' || c == '.') {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	if b.Len() == 0 {
		return "%%"
	}
	if b.Len() <= maxName {
		return b.String()
	}
	sum := sha256.Sum256([]byte(id))
	return b.String()[:maxName-66] + "%%" + hex.EncodeToString(sum[:])
}

// folderRecord is the content of a model's file in modelsDir.
type folderRecord struct {
	ID     string `json:"id"`
	Entry  string `json:"entry"` // name of the entry
	Path   string `json:"path"`  // relative to the folder of the Store
	Schema string `json:"schema,omitempty"`
	Bytes  int64  `json:"bytes"`
}

// link makes the folder of a model from an entry that the caller keeps in use. It builds the folder
// without holding folders, because a mount that hangs must not block other models.
func (s *Store) link(id string, e *entry) (Local, error) {
	name := escape(id)
	s.folders.Lock()
	local, is, err := s.linked(id, name, e)
	s.folders.Unlock()
	if is || err != nil {
		return local, err
	}
	temporary := s.temporary(linksDir)
	defer removeTree(temporary) // it does not exist if it became the model's folder
	r, err := s.build(temporary, name, e)
	if err != nil {
		return Local{}, err
	}
	r.ID = id
	s.folders.Lock()
	defer s.folders.Unlock()
	// Another call may have made the folder meanwhile.
	if local, is, err := s.linked(id, name, e); is || err != nil {
		return local, err
	}
	if err := s.unlink(id); err != nil {
		return Local{}, err
	}
	// The record comes first: a folder without one is not ours.
	if err := writeJSON(s.path(modelsDir, name+".json"), r); err != nil {
		return Local{}, err
	}
	if err := os.Rename(temporary, s.path(name)); err != nil {
		return Local{}, err
	}
	m := &model{entry: e, local: s.local(r)}
	s.mu.Lock()
	defer s.unlock()
	s.models[id] = m
	s.pin(e)
	return m.local, nil
}

// linked returns the paths of a model whose folder was made from an entry; false if it must be
// made. It fails if the folder is not the agent's. The caller holds folders.
func (s *Store) linked(id, name string, e *entry) (Local, bool, error) {
	s.mu.Lock()
	m := s.models[id]
	s.mu.Unlock()
	_, err := os.Lstat(s.path(name))
	switch {
	case err == nil && m == nil:
		return Local{}, false, fmt.Errorf("%s exists and is not the agent's; remove it", s.path(name))
	case err == nil && m.entry == e:
		return m.local, true, nil
	}
	return Local{}, false, nil
}

// temporary returns a new path in one of the folders of the Store.
func (s *Store) temporary(folder string) string {
	return s.path(folder, fmt.Sprintf("%d-%d", s.started, s.serial.Add(1)))
}

// local returns the paths of a model.
func (s *Store) local(r folderRecord) Local {
	l := Local{Path: s.path(r.Path), Bytes: r.Bytes}
	if r.Schema != "" {
		l.Schema = s.path(r.Schema)
	}
	return l
}

// build makes the content of a model's folder at a temporary place. It returns the record of the
// folder whose final name is name.
func (s *Store) build(temporary, name string, e *entry) (folderRecord, error) {
	r := folderRecord{Entry: e.Name, Path: name, Bytes: e.Model}
	source := s.path(sourcesDir, e.Name)
	err := linkTree(filepath.Join(source, "files"), temporary)
	if err == nil && e.Link != "" {
		r.Bytes, err = s.mount(temporary, e.Link)
	}
	switch {
	case err != nil:
		return r, err
	case e.Single && e.Link != "":
		r.Path = filepath.Join(name, filepath.Base(e.Link))
	case e.Single && !e.isArchive():
		r.Path = filepath.Join(name, e.Objects[0].Name)
	}
	if e.Schema != nil {
		beside := e.Schema.Name
		if _, err := os.Lstat(filepath.Join(temporary, beside)); err == nil {
			beside = filepath.Join("_schema", beside) // the model has a file of that name
		}
		r.Schema = filepath.Join(name, beside)
		to := filepath.Join(temporary, beside)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Link(filepath.Join(source, "schema", e.Schema.Name), to)); err != nil {
			return r, err
		}
	}
	return r, nil
}

// linkTree makes a copy of a folder in which the files are hard links.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		switch {
		case d.IsDir():
			return os.Mkdir(target, 0o755)
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(name)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		}
		return os.Link(name, target)
	})
}

// linkMount puts symbolic links to a mounted file, or to the content of a mounted folder, into a
// model's folder. It returns the size of the files. The folder is not itself a link, because
// engines need more files in it, which must not get into the mount.
func linkMount(folder, mounted string) (bytes int64, err error) {
	info, err := os.Stat(mounted)
	if err != nil {
		return 0, err
	}
	if !info.IsDir() {
		return info.Size(), os.Symlink(mounted, filepath.Join(folder, filepath.Base(mounted)))
	}
	children, err := os.ReadDir(mounted)
	if err != nil {
		return 0, err
	}
	for _, child := range children {
		path := filepath.Join(mounted, child.Name())
		if err := os.Symlink(path, filepath.Join(folder, child.Name())); err != nil {
			return 0, err
		}
		bytes += diskBytes(path)
		if info, err := os.Stat(path); err == nil && child.Type()&fs.ModeSymlink != 0 && info.Mode().IsRegular() {
			bytes += info.Size()
		}
	}
	return bytes, nil
}

// unlink removes the folder of a model, if it exists. The caller holds folders.
func (s *Store) unlink(id string) error {
	s.mu.Lock()
	defer s.unlock()
	m := s.models[id]
	if m == nil {
		return nil
	}
	name := escape(id)
	to := s.temporary(trashDir)
	if err := os.Rename(s.path(name), to); err == nil {
		s.garbage = append(s.garbage, to)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(s.path(modelsDir, name+".json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(s.models, id)
	s.unpin(m.entry)
	return nil
}
