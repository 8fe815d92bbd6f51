package layout

import (
	"encoding/json"
)

// schema is a schema file: the inputs and outputs of a model, as in the metadata of the V2
// protocol.
type schema struct {
	Inputs  []tensor `json:"inputs"`
	Outputs []tensor `json:"outputs"`
}

type tensor struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

// stringType is the datatype that schema files of ModelMesh may use for BYTES.
const stringType = "STRING"

// tritonTypes are Triton's names for the datatypes of the V2 protocol.
var tritonTypes = map[string]string{
	"BOOL": "TYPE_BOOL", "UINT8": "TYPE_UINT8", "UINT16": "TYPE_UINT16", "UINT32": "TYPE_UINT32", "UINT64": "TYPE_UINT64",
	"INT8": "TYPE_INT8", "INT16": "TYPE_INT16", "INT32": "TYPE_INT32", "INT64": "TYPE_INT64", "FP16": "TYPE_FP16",
	"FP32": "TYPE_FP32", "FP64": "TYPE_FP64", "BF16": "TYPE_BF16", "BYTES": "TYPE_STRING", stringType: "TYPE_STRING",
}

// readSchema reads the schema file; the zero schema if there is none.
func (c content) readSchema() (s schema, err error) {
	if c.schemaText == nil {
		return s, nil
	}
	if err := json.Unmarshal(c.schemaText, &s); err != nil {
		return s, refuse("the schema file is no JSON with inputs and outputs: %v", err)
	}
	for _, of := range [][]tensor{s.Inputs, s.Outputs} {
		for _, t := range of {
			if t.Name == "" || tritonTypes[t.Datatype] == "" {
				return s, refuse("the schema file has a tensor %q of datatype %q: want a name, and a datatype of the V2 protocol such as FP32",
					t.Name, t.Datatype)
			}
		}
	}
	return s, nil
}

// metadata returns tensors as MLServer's settings have them.
func (schema) metadata(of []tensor) []tensor {
	all := make([]tensor, len(of))
	for i, t := range of {
		if t.Datatype == stringType {
			t.Datatype = "BYTES"
		}
		if t.Shape == nil {
			t.Shape = []int64{}
		}
		all[i] = t
	}
	return all
}
