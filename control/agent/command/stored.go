package command

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/layout"
	"github.com/headgate/headgate/control/agent/manage"
	"github.com/headgate/headgate/control/agent/storage"
)

// stored is the storage of models: package storage says where the files are, and package files
// fetches them. It is a [manage.Storage].
type stored struct {
	files *files.Store // nil with --storage-helper=false
	dir   string       // folder of the mounted storage-config; empty for none
	log   *slog.Logger
}

// entries reads the entries of storage-config. Kubernetes replaces all files of a mounted Secret at
// once, by a symlink whose name begins with two dots.
func (s *stored) entries() (storage.Entries, error) {
	if s.dir == "" {
		return nil, nil
	}
	found, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	texts := make(map[string][]byte)
	for _, f := range found {
		if strings.HasPrefix(f.Name(), "..") {
			continue
		}
		at := filepath.Join(s.dir, f.Name())
		if info, err := os.Stat(at); err == nil && info.IsDir() {
			continue
		}
		text, err := os.ReadFile(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue // Kubernetes removes the link of a key a moment after the key itself
		}
		if err != nil {
			return nil, err
		}
		texts[f.Name()] = text
	}
	all, errs := storage.ReadEntries(texts)
	for _, err := range errs {
		s.log.Error("an entry of storage-config is ignored", "err", err)
	}
	return all, nil
}

// resolve returns where the files of a model are. It returns false if the engine reads the path.
func (s *stored) resolve(r storage.Request) (storage.Source, bool, error) {
	if s.files == nil {
		return storage.Source{}, false, nil
	}
	all, err := s.entries()
	if err != nil {
		return storage.Source{}, false, errors.New("the agent cannot read the files of --storage-config: check the volume of the Secret")
	}
	return storage.Resolve(r, all)
}

// Fetch fetches the files of a model, if the engine cannot read the path.
func (s *stored) Fetch(ctx context.Context, r manage.Request) (manage.Local, error) {
	q := storage.Request{ID: r.ID, Type: r.Type, Path: r.Path, Key: r.Key}
	source, fetched, err := s.resolve(q)
	switch {
	case err != nil:
		return manage.Local{}, &manage.FetchError{Message: err.Error()}
	case !fetched:
		return manage.Local{Path: r.Path, Key: r.Key}, nil
	}
	local, err := s.files.Fetch(ctx, r.ID, source)
	if err != nil {
		return manage.Local{}, fetchError(err)
	}
	path, key := storage.NextHop(q, folder(local.Path), local.Schema, local.Bytes)
	return manage.Local{Path: path, Schema: local.Schema, Key: key, Bytes: local.Bytes}, nil
}

// folder returns the path of a folder with a slash at its end, and that of a file as it is.
func folder(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() && !strings.HasSuffix(path, "/") {
		return path + "/"
	}
	return path
}

// fetchError converts an error of package files: it is transient if a later attempt may succeed.
func fetchError(err error) error {
	var failed *fetch.Error
	if !errors.As(err, &failed) {
		return &manage.FetchError{Message: err.Error(), Transient: true}
	}
	return &manage.FetchError{Message: failed.Message, Transient: failed.Reason == fetch.Busy || failed.Reason == fetch.Changed}
}

// Release removes the files of a model.
func (s *stored) Release(id string) error {
	if s.files == nil {
		return nil
	}
	return s.files.Release(id)
}

// Models returns the models that have files.
func (s *stored) Models() (ids []string) {
	if s.files == nil {
		return nil
	}
	for _, m := range s.files.Models() {
		ids = append(ids, m.ID)
	}
	return ids
}

// laidOut puts the files of models where an engine reads them. It is a [manage.Layout].
type laidOut struct{ *layout.Layout }

// Apply lays out a model. If its files cannot be laid out, another attempt does not help.
func (l laidOut) Apply(r manage.Request, at manage.Local) (string, error) {
	source, err := l.Layout.Apply(layout.Model{
		ID: r.ID, Type: layout.ParseType(r.Type, r.Key), Path: filepath.Clean(at.Path), Schema: at.Schema,
	})
	var refused *layout.Error
	switch {
	case errors.As(err, &refused):
		return "", &manage.FetchError{Message: refused.Message}
	case err != nil:
		words := "the files of the model cannot be laid out for the engine: " + err.Error()
		return "", &manage.FetchError{Message: words, Transient: true}
	}
	return source, nil
}
