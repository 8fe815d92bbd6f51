package layout

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/engine"
)

// content is a model's files.
type content struct {
	files fs.FS  // contains the model
	root  string // path of files on disk
	at    string // path of the model in files: "." for all of it, or its only file
	// schema is the path of the schema file in files, which is not part of the model; empty if it
	// is elsewhere.
	schema     string
	schemaText []byte // nil if there is no schema
}

// entry is one thing to make in an engine's folder.
type entry struct {
	name string // path below the engine's folder, with slashes
	link string // path in the model's files to link to; empty for a text file
	text []byte
}

// plan is a layout of one model: the things to make for it.
type plan struct{ entries []entry }

func (p *plan) link(name, to string) { p.entries = append(p.entries, entry{name: name, link: to}) }
func (p *plan) write(name string, text []byte) {
	p.entries = append(p.entries, entry{name: name, text: text})
}

// planFor plans the layout of a model for engines of a kind. It reads files of the model through c
// alone.
func planFor(kind engine.Kind, m Model, c content) (p plan, err error) {
	if err := c.convertible(kind); err != nil {
		return plan{}, err
	}
	switch kind {
	case engine.Triton:
		err = planTriton(&p, m, c)
	case engine.MLServer:
		err = planMLServer(&p, m, c)
	case engine.OVMS, engine.TFServing:
		err = planVersions(&p, kind, m, c)
	case engine.TorchServe:
		err = planTorchServe(&p, m, c)
	default:
		err = refuse("models of %s have no layout", kind)
	}
	return p, err
}

// oldSchema is the name under which ModelMesh's first versions stored the schema file beside a
// model.
const oldSchema = "_schema.json"

// list returns the entries of a folder that are part of the model, sorted by name: without the
// schema file, and without hidden files such as .gitattributes.
func (c content) list(at string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(c.files, at)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(e fs.DirEntry) bool {
		return e.Name() == oldSchema || strings.HasPrefix(e.Name(), ".") || path.Join(at, e.Name()) == c.schema
	}), nil
}

// folder reports whether a path is a folder.
func (c content) folder(at string) bool {
	is, err := fs.Stat(c.files, at)
	return err == nil && is.IsDir()
}

// has reports whether a folder has a file.
func (c content) has(at, name string) bool {
	is, err := fs.Stat(c.files, path.Join(at, name))
	return err == nil && !is.IsDir()
}

// newest returns the folder of the model's highest version, and the name of that folder. A model
// has versions if it is a folder, all folders in it have numbers as names, and one is above 0.
// Otherwise, the model itself is version 1.
func (c content) newest() (at, version string, err error) {
	if !c.folder(c.at) {
		return c.at, "1", nil
	}
	entries, err := c.list(c.at)
	if err != nil {
		return "", "", err
	}
	highest := 0
	for _, e := range entries {
		if !c.folder(path.Join(c.at, e.Name())) {
			continue
		}
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return c.at, "1", nil
		}
		if n > highest {
			highest, version = n, e.Name()
		}
	}
	if highest == 0 {
		return c.at, "1", nil
	}
	return path.Join(c.at, version), version, nil
}

// only returns the only entry of a folder, or the folder itself if it has several entries or none.
func (c content) only(at string) (string, error) {
	if !c.folder(at) {
		return at, nil
	}
	entries, err := c.list(at)
	if err != nil || len(entries) != 1 {
		return at, err
	}
	return path.Join(at, entries[0].Name()), nil
}

// kerasSuffixes are the suffixes of Keras' own formats.
var kerasSuffixes = []string{".h5", ".hdf5", ".keras"}

// convertible refuses a model that its engine could load only after a conversion. ModelMesh's
// adapter for Triton converts Keras files, with TensorFlow in its image.
func (c content) convertible(kind engine.Kind) error {
	at, _, err := c.newest()
	if err != nil {
		return err
	}
	if at, err = c.only(at); err != nil {
		return err
	}
	if kind == engine.MLServer || c.folder(at) || !slices.Contains(kerasSuffixes, strings.ToLower(path.Ext(at))) {
		return nil // models of MLServer are loaded by libraries of Python
	}
	return refuse("%s is a file of Keras, which %s cannot load without a conversion: save the model as a SavedModel (model.export(FOLDER)), "+
		"and store that folder", path.Base(at), names[kind])
}

// names are the names of engines in messages.
var names = map[engine.Kind]string{
	engine.Triton: "Triton", engine.MLServer: "MLServer", engine.OVMS: "OpenVINO Model Server", engine.TFServing: "TensorFlow Serving",
	engine.TorchServe: "TorchServe",
}

// savedModel reports whether a folder is a SavedModel of TensorFlow.
func (c content) savedModel(at string) bool {
	return c.has(at, "saved_model.pb") || c.has(at, "saved_model.pbtxt")
}

// readAll reads a small file of the model.
func (c content) readAll(at string) ([]byte, error) {
	is, err := fs.Stat(c.files, at)
	if err != nil {
		return nil, err
	}
	if is.Size() > maxText {
		return nil, refuse("%s has more than %d bytes", path.Base(at), maxText)
	}
	return fs.ReadFile(c.files, at)
}

// maxText is the limit for a configuration file, in bytes.
const maxText = 4 << 20

// planVersions links a model as a version of OpenVINO Model Server or TensorFlow Serving: a folder
// with a number for its name.
func planVersions(p *plan, kind engine.Kind, m Model, c content) error {
	at, version, err := c.newest()
	if err != nil {
		return err
	}
	if kind == engine.TFServing {
		if !c.savedModel(at) {
			if at, err = c.only(at); err != nil {
				return err
			}
		}
		if !c.savedModel(at) {
			return refuse("TensorFlow Serving loads SavedModels, and the source has no saved_model.pb: store the folder that holds it")
		}
	}
	name := path.Join(m.ID, version)
	switch {
	case c.folder(at):
	case formatOf(kind, m.Type, c, at) == "onnx":
		name = path.Join(name, "model.onnx")
	default:
		name = path.Join(name, path.Base(at))
	}
	p.link(name, at)
	return nil
}

const (
	// modelList is the file from which OpenVINO Model Server reads its list of models.
	modelList      = "model_config_list.json"
	emptyModelList = `{"model_config_list": []}` + "\n"
)
