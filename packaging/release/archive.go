package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing/fstest"
	"time"
)

// member is a file of an archive, or a link.
type member struct {
	content    []byte
	executable bool
	link       string // the target; empty if the member is a file
}

func (m member) mode() fs.FileMode {
	switch {
	case m.link != "":
		return fs.ModeSymlink | 0o777
	case m.executable:
		return 0o755
	}
	return 0o644
}

// members are the files of an archive, by their paths.
type members map[string]member

// below adds the members to another archive, in a folder.
func (m members) below(folder string, to members) {
	for name, file := range m {
		to[path.Join(folder, name)] = file
	}
}

// tarball returns the members as a compressed tarball. It is sorted by path; everything belongs to
// root and has the same time.
func (m members) tarball(at time.Time) ([]byte, error) {
	all := fstest.MapFS{}
	for name, file := range m {
		content := file.content
		if file.link != "" {
			content = []byte(file.link)
		}
		all[name] = &fstest.MapFile{Data: content, Mode: file.mode(), ModTime: at}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			all[dir] = &fstest.MapFile{Mode: fs.ModeDir | 0o755, ModTime: at}
		}
	}
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	w := tar.NewWriter(compressed)
	err := errors.Join(w.AddFS(all), w.Close(), compressed.Close())
	return out.Bytes(), err
}

// shipped says whether a file in packaging/ is for users, and not a part of the release program.
func shipped(file string) bool {
	for _, ours := range []string{"packaging/release/", "packaging/oci/", "packaging/try/", "packaging/chart/", "packaging/check"} {
		if strings.HasPrefix(file, ours) {
			return false
		}
	}
	return !strings.HasSuffix(file, ".go") && !strings.Contains(file, "/testdata/")
}
