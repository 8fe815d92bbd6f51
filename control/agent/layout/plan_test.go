package layout

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/engine"
)

const schemaText = `{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]},
   {"name": "words", "datatype": "BYTES", "shape": [-1]}],
 "outputs": [{"name": "y", "datatype": "INT64", "shape": [-1]}]}`

// plans are the layouts of models: what a model consists of, and what is made for an engine. A file
// has a text after "=", and otherwise an empty one. A model is a folder, unless its files begin
// with a line "only".
var plans = []struct {
	name   string
	kind   engine.Kind
	of     string // type
	files  string
	schema string
	want   string
}{
	{
		"a bare file of scikit-learn", engine.MLServer, "sklearn", "only\niris.joblib", "",
		`m/iris.joblib -> iris.joblib
m/model-settings.json:
{
  "implementation": "mlserver_sklearn.SKLearnModel",
  "name": "m",
  "parameters": {
    "uri": "./iris.joblib"
  }
}
`,
	},
	{
		"a folder with one file, and a schema", engine.MLServer, "xgboost:1", "weights.ubj\n.gitattributes\nschema.json", schemaText,
		`m/weights.ubj -> weights.ubj
m/model-settings.json:
{
  "implementation": "mlserver_xgboost.XGBoostModel",
  "inputs": [
    {
      "name": "x",
      "datatype": "FP32",
      "shape": [
        -1,
        4
      ]
    },
    {
      "name": "words",
      "datatype": "BYTES",
      "shape": [
        -1
      ]
    }
  ],
  "name": "m",
  "outputs": [
    {
      "name": "y",
      "datatype": "INT64",
      "shape": [
        -1
      ]
    }
  ],
  "parameters": {
    "uri": "./weights.ubj"
  }
}
`,
	},
	{
		"a folder of a format with many files", engine.MLServer, "mlflow", "MLmodel\nmodel.pkl", "",
		`m/model -> .
m/model-settings.json:
{
  "implementation": "mlserver_mlflow.MLflowRuntime",
  "name": "m",
  "parameters": {
    "uri": "./model"
  }
}
`,
	},
	{
		"an unknown type", engine.MLServer, "ours", "a\nb", "",
		`m/model -> .
m/model-settings.json:
{
  "name": "m",
  "parameters": {
    "uri": "./model"
  }
}
`,
	},
	{
		"no type", engine.MLServer, "", "only\nmodel.joblib", "",
		`m/model.joblib -> model.joblib
m/model-settings.json:
{
  "implementation": "mlserver_sklearn.SKLearnModel",
  "name": "m",
  "parameters": {
    "uri": "./model.joblib"
  }
}
`,
	},
	{
		"settings of the model", engine.MLServer, "sklearn",
		`model-settings.json={"name": "other", "implementation": "own.Model", "parameters": {"uri": "/etc/../data/w.bin", "extra": {"n": 12345678901234567890}}}` +
			"\ndata/w.bin\nown.py", "",
		`m/data -> data
m/own.py -> own.py
m/model-settings.json:
{
  "implementation": "own.Model",
  "name": "m",
  "parameters": {
    "extra": {
      "n": 12345678901234567890
    },
    "uri": "./data/w.bin"
  }
}
`,
	},
	{
		"settings that lead out of the folder", engine.MLServer, "",
		`model-settings.json={"parameters": {"uri": "../../other/w.bin"}}`, "",
		`m/model-settings.json:
{
  "name": "m",
  "parameters": {
    "uri": "./other/w.bin"
  }
}
`,
	},
	{"settings that are no JSON", engine.MLServer, "", "model-settings.json=name: m", "", "model-settings.json of the model is no JSON object"},

	{"a bare file of ONNX", engine.Triton, "onnx", "only\niris.onnx", "", "m/1/model.onnx -> iris.onnx\n"},
	{
		"a file of ONNX with a schema beside it", engine.Triton, "ONNX", "iris.onnx\nschema.json", schemaText,
		`m/1/model.onnx -> iris.onnx
m/config.pbtxt:
name: "m"
backend: "onnxruntime"
input {
  name: "x"
  data_type: TYPE_FP32
  dims: [ -1, 4 ]
}
input {
  name: "words"
  data_type: TYPE_STRING
  dims: [ -1 ]
}
output {
  name: "y"
  data_type: TYPE_INT64
  dims: [ -1 ]
}
`,
	},
	{"ONNX with external weights", engine.Triton, "onnx", "model.onnx\nweights.bin", "", "m/1/model.onnx -> .\n"},
	{"a SavedModel", engine.Triton, "tensorflow", "saved_model.pb\nvariables/a", "", "m/1/model.savedmodel -> .\n"},
	{"a SavedModel without variables", engine.Triton, "tensorflow", "saved_model.pb", "", "m/1/model.savedmodel -> .\n"},
	{"a SavedModel in a folder", engine.Triton, "", "mine/saved_model.pb\nmine/variables/a", "", "m/1/model.savedmodel -> mine\n"},
	{"a SavedModel that Keras saved", engine.Triton, "keras", "saved_model.pb\nkeras_metadata.pb", "", "m/1/model.savedmodel -> .\n"},
	{"a frozen graph", engine.Triton, "tensorflow", "only\nfrozen.pb", "", "m/1/model.graphdef -> frozen.pb\n"},
	{"TorchScript", engine.Triton, "pytorch", "only\ncifar.pt", "", "m/1/model.pt -> cifar.pt\n"},
	{"a plan of TensorRT", engine.Triton, "tensorrt", "only\ncifar.engine", "", "m/1/model.plan -> cifar.engine\n"},
	{"a model in Python", engine.Triton, "python", "model.py\nhelp.py", "", "m/1 -> .\n"},
	{"OpenVINO's format", engine.Triton, "openvino_ir", "model.xml\nmodel.bin", "", "m/1 -> .\n"},
	{"an unknown type", engine.Triton, "ours", "only\nw.bin", "", "m/1/w.bin -> w.bin\n"},
	{
		"version folders, of which the highest counts", engine.Triton, "onnx", "2/a.onnx\n10/b.onnx\nREADME.md", "",
		"m/10/model.onnx -> 10/b.onnx\n",
	},
	{"folders of which not all are versions", engine.Triton, "pytorch", "1/a.pt\nb/a.pt", "", "m/1 -> .\n"},
	{
		"a repository of Triton", engine.Triton, "onnx",
		"config.pbtxt=name: \"other\", max_batch_size: 8\n1/model.onnx\n2/model.onnx\nlabels.txt", "",
		`m/1 -> 1
m/2 -> 2
m/labels.txt -> labels.txt
m/config.pbtxt:
name: "m", max_batch_size: 8`,
	},
	{
		"a repository whose description is wrong", engine.Triton, "", "config.pbtxt=input [ {\n1/model.onnx", "",
		"config.pbtxt of the model cannot be used: a bracket or a quotation mark is not closed",
	},
	{"a file of Keras", engine.Triton, "keras", "only\nmnist.h5", "", "mnist.h5 is a file of Keras, which Triton cannot load without a conversion: " +
		"save the model as a SavedModel (model.export(FOLDER)), and store that folder"},
	{"a file of Keras in a version folder", engine.TFServing, "", "1/mnist.keras", "", "mnist.keras is a file of Keras, which TensorFlow Serving " +
		"cannot load without a conversion: save the model as a SavedModel (model.export(FOLDER)), and store that folder"},
	{"a forest without a description", engine.Triton, "xgboost", "only\nw.json", "", "a model of type xgboost needs a config.pbtxt for Triton, " +
		"which the backend fil requires: store one in the model's folder, beside the folder 1"},
	{"a schema that is no JSON", engine.Triton, "onnx", "only\na.onnx", "x", "the schema file is no JSON with inputs and outputs: " +
		"invalid character 'x' looking for beginning of value"},
	{
		"a schema with an unknown datatype", engine.Triton, "onnx", "only\na.onnx", `{"inputs": [{"name": "x", "datatype": "float"}]}`,
		`the schema file has a tensor "x" of datatype "float": want a name, and a datatype of the V2 protocol such as FP32`,
	},

	{"ONNX", engine.OVMS, "onnx", "only\nmnist.onnx", "", "m/1/model.onnx -> mnist.onnx\n"},
	{"OpenVINO's format", engine.OVMS, "openvino_ir:opset1", "mnist.xml\nmnist.bin", "", "m/1 -> .\n"},
	{"version folders", engine.OVMS, "openvino_ir", "1/mnist.xml\n1/mnist.bin\n3/mnist.xml\n3/mnist.bin", "", "m/3 -> 3\n"},
	{"a file that keeps its name", engine.OVMS, "tflite", "only\nmnist.tflite", "", "m/1/mnist.tflite -> mnist.tflite\n"},

	{"a SavedModel", engine.TFServing, "tensorflow", "saved_model.pb\nvariables/a", "", "m/1 -> .\n"},
	{"a SavedModel in a version folder", engine.TFServing, "tensorflow", "7/saved_model.pb\n7/variables/a", "", "m/7 -> 7\n"},
	{"a SavedModel in a folder", engine.TFServing, "tensorflow", "mine/saved_model.pb", "", "m/1 -> mine\n"},
	{"no SavedModel", engine.TFServing, "tensorflow", "mine/graph.pb", "", "TensorFlow Serving loads SavedModels, and the source has no " +
		"saved_model.pb: store the folder that holds it"},

	{"an archive", engine.TorchServe, "pytorch-mar", "only\nmnist=PK\x03\x04", "", "m.mar -> mnist\n"},
	{"an archive in a folder", engine.TorchServe, "pytorch-mar", "mnist.mar=PK\x03\x04\nREADME.md", "", "m.mar -> mnist.mar\n"},
	{"two archives", engine.TorchServe, "pytorch-mar", "a.mar\nb.mar", "", "TorchServe loads one archive per model, and the source has 2 files " +
		"with the suffix .mar: name one of them in the source"},
	{"TorchScript", engine.TorchServe, "pytorch-mar", "only\na.pt=PK\x05\x06 ", "", "a.pt is no archive of TorchServe: pack the model with " +
		"torch-model-archiver, and store the file with the suffix .mar"},
}

func TestPlans(t *testing.T) {
	for _, test := range plans {
		t.Run(string(test.kind)+"/"+test.name, func(t *testing.T) {
			c := content{files: make(fstest.MapFS), root: "/models/m", at: "."}
			files, only := strings.CutPrefix(test.files, "only\n")
			for line := range strings.SplitSeq(files, "\n") {
				name, text, _ := strings.Cut(line, "=")
				c.files.(fstest.MapFS)[name] = &fstest.MapFile{Data: []byte(text)}
				if only {
					c.at = name
				}
			}
			if test.schema != "" {
				c.schema, c.schemaText = "schema.json", []byte(test.schema)
			}
			p, err := planFor(test.kind, Model{ID: "m", Type: Type{Name: test.of}}, c)
			got := p.String()
			if err != nil {
				if refused := (*Error)(nil); !errors.As(err, &refused) {
					t.Errorf("%v is no refusal", err)
				}
				got = err.Error()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func (p plan) String() string {
	var out strings.Builder
	for _, e := range p.entries {
		if e.link != "" {
			fmt.Fprintf(&out, "%s -> %s\n", e.name, e.link)
		} else {
			fmt.Fprintf(&out, "%s:\n%s", e.name, e.text)
		}
	}
	return out.String()
}

func TestConfigOfARepositoryIsChangedInItsNameAlone(t *testing.T) {
	batched, err := content{schemaText: []byte(schemaText)}.readSchema()
	if err != nil {
		t.Fatal(err)
	}
	inputs := schema{Inputs: batched.Inputs[:1]}
	for _, test := range []struct {
		name, config string
		with         schema
		want         string
	}{
		{"no name", "backend: \"python\"\n", schema{}, "backend: \"python\"\n"},
		{
			"all forms of values", `# of us
name: "o" 'ther' # two parts
platform:"onnxruntime_onnx";max_batch_size: 0x8,
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters: { key: "name: { \" }" value: < string_value: '}' > }
version_policy: { latest { num_versions: - 2 } } instance_group { # name: "no"
 name: "inner" }
name: "twice"`, schema{}, `# of us
name: "a \"b\"" # two parts
platform:"onnxruntime_onnx";max_batch_size: 0x8,
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters: { key: "name: { \" }" value: < string_value: '}' > }
version_policy: { latest { num_versions: - 2 } } instance_group { # name: "no"
 name: "inner" }
name: "a \"b\""`,
		},
		{
			"a schema in place of the inputs", "input [ { name: \"old\" } ]\nbackend: \"b\"\noutput { name: \"y\" }", inputs,
			"\nbackend: \"b\"\noutput { name: \"y\" }\ninput {\n  name: \"x\"\n  data_type: TYPE_FP32\n  dims: [ -1, 4 ]\n}\n",
		},
		{
			"a schema for a model with batches", "max_batch_size: 16\n", inputs,
			"max_batch_size: 16\ninput {\n  name: \"x\"\n  data_type: TYPE_FP32\n  dims: [ 4 ]\n}\n",
		},
		{
			"a schema without batches", "max_batch_size: 0\n", inputs,
			"max_batch_size: 0\ninput {\n  name: \"x\"\n  data_type: TYPE_FP32\n  dims: [ -1, 4 ]\n}\n",
		},
	} {
		got, err := reconfigure(test.config, `a "b"`, test.with)
		if err != nil || got != test.want {
			t.Errorf("%s: %v\n%s", test.name, err, cmp.Diff(test.want, got))
		}
	}
	for config, want := range map[string]string{
		"name":            "it ends where a value is missing",
		"name:":           "it ends where a value is missing",
		"name: }":         "'}' is where a name or a value is missing",
		"}":               "'}' is where a name or a value is missing",
		"input [ { } }":   "not closed",
		"input [ { ]":     "not closed",
		"name: \"a":       "not closed",
		"name: \"a\nb\"":  "not closed",
		"input { # }":     "not closed",
		"name: \"a\\":     "not closed",
		"input { a: \"b ": "not closed",
	} {
		if _, err := reconfigure(config, "m", schema{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", config, err, want)
		}
	}
	fixed := schema{Outputs: []tensor{{"y", "FP32", []int64{1, 4}}}}
	if _, err := reconfigure("max_batch_size: 1", "m", fixed); err == nil || !strings.Contains(err.Error(), `the schema's tensor "y" needs -1`) {
		t.Errorf("a schema without a batch: %v", err)
	}
}

func TestTypesOfLoadCalls(t *testing.T) {
	for _, test := range []struct {
		modelType, key string
		want           Type
	}{
		{"rt:ours", `{"model_type": {"name": "sklearn", "version": "0"}}`, Type{"sklearn", "0"}},
		{"rt:ours", `{"model_type": "onnx"}`, Type{"onnx", ""}},
		{"rt:ours", `{"model_type": 3}`, Type{}},
		{"rt:ours|pv:grpc-v2", `{}`, Type{}},
		{"mt:tensorflow:2|pv:grpc-v2", ``, Type{"tensorflow", "2"}},
		{"mt:onnx", `no JSON`, Type{"onnx", ""}},
		{"pytorch", ``, Type{"pytorch", ""}},
		{"", ``, Type{}},
	} {
		if got := ParseType(test.modelType, test.key); got != test.want {
			t.Errorf("%q, %q: %+v, want %+v", test.modelType, test.key, got, test.want)
		}
	}
}
