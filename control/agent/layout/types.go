package layout

import (
	"encoding/json"
	"path"
	"strings"

	"github.com/headgate/headgate/internal/engine"
)

// Type is the format of a model, such as sklearn, onnx or tensorflow, with its version. Both may be
// empty.
type Type struct{ Name, Version string }

// ParseType returns the type of a model in a load call. The key is JSON, and its field model_type
// is a name or an object with name and version. Without that field, the call's own type decides.
// KServe registers models there with labels of runtimes: "mt:NAME", "mt:NAME:VERSION" or
// "rt:RUNTIME", followed by "|pv:PROTOCOL" or not.
func ParseType(modelType, key string) Type {
	var fields struct {
		ModelType json.RawMessage `json:"model_type"`
	}
	if json.Unmarshal([]byte(key), &fields) == nil && fields.ModelType != nil {
		var t Type
		if json.Unmarshal(fields.ModelType, &t) == nil && t.Name != "" {
			return t
		}
		if json.Unmarshal(fields.ModelType, &t.Name) == nil && t.Name != "" {
			return t
		}
	}
	label, _, _ := strings.Cut(modelType, "|")
	switch prefix, rest, labelled := strings.Cut(label, ":"); {
	case labelled && prefix == "rt":
		return Type{}
	case labelled && prefix == "mt":
		label = rest
	}
	name, version, _ := strings.Cut(label, ":")
	return Type{name, version}
}

// formats are the formats of models whose type is not given, by the suffix of their only file.
var formats = map[string]string{
	".onnx": "onnx", ".plan": "tensorrt", ".pt": "pytorch", ".graphdef": "tensorflow", ".joblib": "sklearn", ".pkl": "sklearn",
	".ubj": "xgboost", ".bst": "xgboost", ".xml": "openvino_ir",
}

// formatOf returns the format of the model at a path in lower case: its type, if one is given. A
// type may have a version after a colon.
func formatOf(kind engine.Kind, t Type, c content, at string) string {
	name, _, _ := strings.Cut(t.Name, ":")
	switch suffix := path.Ext(at); {
	case name != "":
		return strings.ToLower(name)
	case c.folder(at) && c.savedModel(at):
		return "tensorflow"
	case c.folder(at):
		return ""
	case kind == engine.Triton && suffix == ".py":
		return "python"
	default:
		return formats[strings.ToLower(suffix)]
	}
}
