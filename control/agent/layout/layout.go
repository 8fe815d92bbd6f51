// Package layout lays out a model's files for one engine: under the names, and with the
// configuration files, that Triton, MLServer, TorchServe, OpenVINO Model Server and TensorFlow
// Serving expect. The layouts are those of ModelMesh's built-in adapters
// (kserve/modelmesh-runtime-adapter). A layout consists of symlinks and small text files, so the
// model is not copied.
package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/atomicfile"
	"github.com/headgate/headgate/internal/engine"
)

// Model is a model whose files are on disk.
type Model struct {
	ID   string
	Type Type
	// Path is the absolute path of the model's folder, or of its only file.
	Path string
	// Schema is the absolute path of the schema file; empty if there is none.
	Schema string
}

// Error is the reason why a model's files cannot be laid out for an engine. Another attempt would
// not help. Its message is one sentence for operators.
type Error struct{ Message string }

func (e *Error) Error() string { return e.Message }

func refuse(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// stageFolder is the folder below the models folder in which layouts are prepared. It is not below
// the engine's folder, because MLServer searches that for models.
const stageFolder = "_layout"

// Layout is the folder of one engine's models. Calls for different models may run at the same time;
// calls for one model may not.
type Layout struct {
	kind                engine.Kind
	models, root, stage string
	config              []configFile
}

// configFile is a file that an engine waits for at its start, or reads there.
type configFile struct {
	path, text string
	keep       bool // keep an existing file
}

// For returns the layout of an engine kind below the folder of all models, which is an absolute
// path. It reports false if engines of that kind read models as they are stored.
func For(kind engine.Kind, models string) (*Layout, bool) {
	a, is := AdapterOf(kind)
	if !is {
		return nil, false
	}
	l := &Layout{
		kind: kind, models: models, root: filepath.Join(models, a.Folder), stage: filepath.Join(models, stageFolder),
	}
	switch kind {
	case engine.TorchServe:
		l.config = []configFile{{path: filepath.Join(l.root, torchConfig), text: torchProperties(l.root)}}
	case engine.OVMS:
		l.config = []configFile{{path: l.ConfigFile(), text: emptyModelList, keep: true}}
	}
	return l, true
}

// ConfigFile is the path of the file from which OpenVINO Model Server reads its list of models
// (--config_path).
func (l *Layout) ConfigFile() string { return filepath.Join(l.models, modelList) }

// Prepare makes the engine's folder and the files that the engine needs at its start, and removes
// what an interrupted Apply left. Call it before the other methods.
func (l *Layout) Prepare() error {
	if err := os.RemoveAll(l.stage); err != nil {
		return err
	}
	if err := makeFolder(l.root); err != nil {
		return err
	}
	for _, c := range l.config {
		if _, err := os.Stat(c.path); err == nil && c.keep {
			continue
		}
		if err := atomicfile.Write(c.path, []byte(c.text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Apply lays out a model, in place of an earlier layout of a model with the same id. It returns the
// source with which the engine loads the model: a file below the model store of TorchServe, or the
// model's folder. The layout is complete or absent, even if Apply is interrupted. An *[Error] means
// that the engine cannot load such files.
func (l *Layout) Apply(m Model) (source string, err error) {
	if err := engine.CheckStored(l.kind, m.ID); err != nil {
		return "", refuse("a model of %s cannot have the name %q: %v", l.kind, m.ID, err)
	}
	c, err := open(m)
	if err != nil {
		return "", err
	}
	p, err := planFor(l.kind, m, c)
	if err != nil {
		return "", err
	}
	work := filepath.Join(l.stage, l.top(m.ID))
	if err := os.RemoveAll(work); err != nil {
		return "", err
	}
	for _, e := range p.entries {
		if err := l.build(e, c); err != nil {
			return "", err
		}
	}
	at := filepath.Join(l.root, l.top(m.ID))
	if err := os.RemoveAll(at); err != nil {
		return "", err
	}
	if err := os.Rename(work, at); err != nil {
		return "", err
	}
	return l.source(m.ID), nil
}

// build makes one entry in the stage. A link has the target that it needs in the engine's folder.
// It is relative if the target is below the folder of all models, so that the engine may have
// mounted that folder at another path.
func (l *Layout) build(e entry, c content) error {
	at := filepath.Join(l.stage, filepath.FromSlash(e.name))
	if err := makeFolder(filepath.Dir(at)); err != nil {
		return err
	}
	if e.link == "" {
		return os.WriteFile(at, e.text, 0o644) //nolint:gosec // the engine, which may be another user, reads it
	}
	target := filepath.Join(c.root, filepath.FromSlash(e.link))
	if below, err := filepath.Rel(l.models, target); err == nil && filepath.IsLocal(below) {
		final := filepath.Dir(filepath.Join(l.root, filepath.FromSlash(e.name)))
		if target, err = filepath.Rel(final, target); err != nil {
			return err
		}
	}
	return os.Symlink(target, at)
}

// Remove removes the layout of a model. It returns nil if there is none.
func (l *Layout) Remove(id string) error {
	if engine.CheckStored(l.kind, id) != nil {
		return nil // a model with such a name was never laid out
	}
	return errors.Join(os.RemoveAll(filepath.Join(l.root, l.top(id))), os.RemoveAll(filepath.Join(l.stage, l.top(id))))
}

// Models returns the models that are laid out: the source of each by id.
func (l *Layout) Models() (map[string]string, error) {
	there, err := os.ReadDir(l.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	models := make(map[string]string)
	for _, e := range there {
		id, is := e.Name(), e.IsDir()
		if l.kind == engine.TorchServe {
			id, is = strings.CutSuffix(id, archiveSuffix)
			is = is && e.Type() == fs.ModeSymlink
		}
		if is && engine.CheckStored(l.kind, id) == nil {
			models[id] = l.source(id)
		}
	}
	return models, nil
}

// Clear removes the layouts of all models.
func (l *Layout) Clear() error {
	models, err := l.Models()
	for _, id := range slices.Sorted(maps.Keys(models)) {
		err = errors.Join(err, l.Remove(id))
	}
	return err
}

// top is the name of a model's link or folder in the engine's folder.
func (l *Layout) top(id string) string { return topOf(l.kind, id) }

// source is the source with which the engine loads a model.
func (l *Layout) source(id string) string {
	if l.kind == engine.TorchServe {
		return l.top(id) // TorchServe takes paths below its model store only
	}
	return filepath.Join(l.root, l.top(id))
}

func topOf(kind engine.Kind, id string) string {
	if kind == engine.TorchServe {
		return id + archiveSuffix
	}
	return id
}

// open returns the content of a model.
func open(m Model) (content, error) {
	is, err := os.Stat(m.Path)
	if err != nil {
		return content{}, err
	}
	c := content{root: m.Path, at: "."}
	if !is.IsDir() {
		c.root, c.at = filepath.Split(filepath.Clean(m.Path))
	}
	c.files = os.DirFS(c.root)
	if m.Schema == "" {
		return c, nil
	}
	if c.schemaText, err = os.ReadFile(m.Schema); err != nil {
		return content{}, err
	}
	if below, err := filepath.Rel(c.root, m.Schema); err == nil && filepath.IsLocal(below) {
		c.schema = path.Clean(filepath.ToSlash(below))
	}
	return c, nil
}

func makeFolder(at string) error {
	return os.MkdirAll(at, 0o755) //nolint:gosec // the engine, which may be another user, reads it
}
