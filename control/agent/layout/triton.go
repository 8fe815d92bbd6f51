package layout

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// tritonConfig is the file that describes a model to Triton. Without it, Triton derives the
// description from the model, if the model's format allows that.
const tritonConfig = "config.pbtxt"

// savedModelFolder is the name under which Triton expects a SavedModel.
const savedModelFolder = "model.savedmodel"

// tritonFormat is how Triton stores models of one format in a version folder.
type tritonFormat struct {
	backend string
	file    string // name of a model that is a file; empty: keep its name
	folder  string // name of a model that is a folder; empty: it is the version folder
}

var tritonFormats = map[string]tritonFormat{
	"tensorflow":  {"tensorflow", "model.graphdef", savedModelFolder},
	"keras":       {"tensorflow", "", savedModelFolder},
	"tensorrt":    {"tensorrt", "model.plan", ""},
	"onnx":        {"onnxruntime", "model.onnx", "model.onnx"},
	"pytorch":     {"pytorch", "model.pt", ""},
	"python":      {"python", "model.py", ""},
	"openvino_ir": {"openvino", "model.xml", ""},
	"openvino":    {"openvino", "model.xml", ""},
}

// forests are the formats that Triton's backend fil loads. It needs a description of the model that
// no schema contains.
var forests = map[string]bool{"fil": true, "sklearn": true, "xgboost": true, "lightgbm": true}

// planTriton links a model as one version, under the name that Triton's backend expects. If the
// model has a config.pbtxt, planTriton links all entries of its folder, and changes only the name
// and the tensors in that file.
func planTriton(p *plan, m Model, c content) error {
	if c.folder(c.at) && c.has(c.at, tritonConfig) {
		return planNativeTriton(p, m, c)
	}
	at, version, err := c.newest()
	if err != nil {
		return err
	}
	if !c.folder(at) || !c.savedModel(at) {
		inner, err := c.only(at)
		if err != nil {
			return err
		}
		if _, known := tritonFormats[formatOf("triton", m.Type, c, inner)]; known {
			at = inner
		}
	}
	name := formatOf("triton", m.Type, c, at)
	if forests[name] {
		return refuse("a model of type %s needs a %s for Triton, which the backend fil requires: "+
			"store one in the model's folder, beside the folder 1", name, tritonConfig)
	}
	format := tritonFormats[name]
	link := path.Join(m.ID, version)
	switch {
	case c.folder(at):
		link = path.Join(link, format.folder)
	case format.file != "":
		link = path.Join(link, format.file)
	default:
		link = path.Join(link, path.Base(at))
	}
	p.link(link, at)
	if c.schemaText == nil {
		return nil
	}
	s, err := c.readSchema()
	if err != nil {
		return err
	}
	var config strings.Builder
	fmt.Fprintf(&config, "name: %s\n", quote(m.ID))
	if format.backend != "" {
		fmt.Fprintf(&config, "backend: %s\n", quote(format.backend))
	}
	writeTensors(&config, s)
	p.write(path.Join(m.ID, tritonConfig), []byte(config.String()))
	return nil
}

func planNativeTriton(p *plan, m Model, c content) error {
	config, err := c.readAll(path.Join(c.at, tritonConfig))
	if err != nil {
		return err
	}
	s, err := c.readSchema()
	if err != nil {
		return err
	}
	changed, err := reconfigure(string(config), m.ID, s)
	if err != nil {
		return refuse("%s of the model cannot be used: %v", tritonConfig, err)
	}
	entries, err := c.list(c.at)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != tritonConfig {
			p.link(path.Join(m.ID, e.Name()), path.Join(c.at, e.Name()))
		}
	}
	p.write(path.Join(m.ID, tritonConfig), []byte(changed))
	return nil
}

// reconfigure returns a config.pbtxt with the id in place of its name, because Triton wants the
// name of the model's folder there, and with the tensors of the schema. It changes nothing else.
//
// A schema has the batch as first dimension. With max_batch_size above 0, Triton adds that
// dimension itself, so reconfigure removes it.
func reconfigure(config, id string, s schema) (string, error) {
	fields, err := readFields(config)
	if err != nil {
		return "", err
	}
	batches := false
	for _, f := range fields {
		if n, err := strconv.ParseInt(f.value, 0, 64); f.name == "max_batch_size" && err == nil {
			batches = n > 0
		}
	}
	if batches {
		if s, err = s.withoutBatch(); err != nil {
			return "", err
		}
	}
	var out strings.Builder
	at := 0
	for _, f := range fields {
		out.WriteString(config[at:f.start])
		at = f.start
		switch {
		case f.name == "name":
			out.WriteString("name: " + quote(id))
		case f.name == "input" && s.Inputs != nil, f.name == "output" && s.Outputs != nil:
		default:
			continue
		}
		at = f.end
	}
	out.WriteString(config[at:])
	if s.Inputs != nil || s.Outputs != nil {
		if text := out.String(); text != "" && !strings.HasSuffix(text, "\n") {
			out.WriteByte('\n')
		}
		writeTensors(&out, s)
	}
	return out.String(), nil
}

// withoutBatch removes the first dimension of all tensors, which must be -1.
func (s schema) withoutBatch() (schema, error) {
	for _, of := range []*[]tensor{&s.Inputs, &s.Outputs} {
		var all []tensor
		for _, t := range *of {
			if len(t.Shape) == 0 || t.Shape[0] != -1 {
				return s, fmt.Errorf("it has max_batch_size above 0, so the schema's tensor %q needs -1 as its first dimension", t.Name)
			}
			t.Shape = t.Shape[1:]
			all = append(all, t)
		}
		*of = all
	}
	return s, nil
}

// writeTensors writes the tensors of a schema as fields of a config.pbtxt.
func writeTensors(out *strings.Builder, s schema) {
	for _, of := range []struct {
		field string
		all   []tensor
	}{{"input", s.Inputs}, {"output", s.Outputs}} {
		for _, t := range of.all {
			dims := make([]string, len(t.Shape))
			for i, n := range t.Shape {
				dims[i] = strconv.FormatInt(n, 10)
			}
			fmt.Fprintf(out, "%s {\n  name: %s\n  data_type: %s\n  dims: [ %s ]\n}\n", of.field, quote(t.Name), tritonTypes[t.Datatype],
				strings.Join(dims, ", "))
		}
	}
}
