package survey

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// ModelPath is where a V2 server tells of a model.
func ModelPath(model string) string { return "/v2/models/" + url.PathEscape(model) }

// Tensor is an input of a model, as its metadata tells of it. Of a dimension below 0 it takes any size.
type Tensor struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

// fillings are what tensors of each datatype are filled with.
var fillings = map[string]string{
	"BOOL": "true", "BYTES": `"text"`,
	"INT8": "1", "INT16": "1", "INT32": "1", "INT64": "1", "UINT8": "1", "UINT16": "1", "UINT32": "1", "UINT64": "1",
	"FP16": "0.5", "FP32": "0.5", "FP64": "0.5",
}

// mostElements is how many elements of one row are filled in: beyond, JSON takes longer than any model.
const mostElements = 1 << 24

// OneRow is a V2 request of one row, of what the answer to a request for a model's metadata says of its inputs: the first dimension is that
// of the batch, and others of any size have the size 1. What it cannot fill is an error that says what to do.
func OneRow(metadata []byte) ([]byte, error) {
	var model struct {
		Inputs []Tensor `json:"inputs"`
	}
	if err := json.Unmarshal(metadata, &model); err != nil {
		return nil, fmt.Errorf("the model's metadata is not JSON of V2: %w", err)
	}
	if len(model.Inputs) == 0 {
		return nil, errors.New("the model's metadata names no inputs: write a request of one row into a file, and name it with --body")
	}
	var out strings.Builder
	out.WriteString(`{"inputs":[`)
	for i, in := range model.Inputs {
		filling, ok := fillings[in.Datatype]
		switch {
		case !ok:
			return nil, fmt.Errorf("input %q is %s, for which there are no numbers in JSON here: write a request of one row into a file, and name it with --body", in.Name, in.Datatype)
		case len(in.Shape) == 0:
			return nil, fmt.Errorf("input %q has no dimension, and so none of a batch: write a request of one row into a file, and name it with --body", in.Name)
		}
		shape, elements := slices.Clone(in.Shape), int64(1)
		for d := range shape {
			if shape[d] < 1 || d == 0 {
				shape[d] = 1
			}
			if elements *= shape[d]; elements > mostElements {
				return nil, fmt.Errorf("input %q has the shape %v, which is more than %d elements a row: write a request of one row into a file, and name it with --body", in.Name, in.Shape, mostElements)
			}
		}
		if i > 0 {
			out.WriteByte(',')
		}
		named, _ := json.Marshal(in.Name)
		sizes, _ := json.Marshal(shape)
		fmt.Fprintf(&out, `{"name":%s,"datatype":%q,"shape":%s,"data":[%s]}`, named, in.Datatype, sizes,
			strings.TrimSuffix(strings.Repeat(filling+",", int(elements)), ","))
	}
	out.WriteString("]}")
	return []byte(out.String()), nil
}

// Repeat is the body of a request of so many rows, made of one of one row: of V2, the first dimension of all inputs; of embeddings, the
// input. A body that cannot be repeated is an error that says why.
func Repeat(api API, body []byte, rows int) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, fmt.Errorf("the body is no JSON object: %w", err)
	}
	member, repeat := "inputs", repeatTensors
	if api != V2 {
		member, repeat = "input", repeatInput
	}
	if all[member] == nil {
		return nil, fmt.Errorf("the body has no %q", member)
	}
	repeated, err := repeat(all[member], rows)
	if err != nil {
		return nil, err
	}
	all[member] = repeated
	return json.Marshal(all)
}

func repeatTensors(inputs json.RawMessage, rows int) (json.RawMessage, error) {
	var tensors []map[string]json.RawMessage
	if err := json.Unmarshal(inputs, &tensors); err != nil || len(tensors) == 0 {
		return nil, errors.New(`"inputs" of the body is no list of tensors`)
	}
	for _, t := range tensors {
		var shape []int64
		var data []json.RawMessage
		if json.Unmarshal(t["shape"], &shape) != nil || len(shape) == 0 || shape[0] != 1 {
			return nil, fmt.Errorf("input %s of the body has the shape %s: its first dimension is that of the batch, and must be 1", t["name"], t["shape"])
		}
		if json.Unmarshal(t["data"], &data) != nil || len(data) == 0 {
			return nil, fmt.Errorf("input %s of the body has no list as data, which could be repeated", t["name"])
		}
		// Row by row, so that the rows of a tensor follow each other, whether they are lists of their own or not.
		shape[0] = int64(rows)
		t["shape"], _ = json.Marshal(shape)
		t["data"], _ = json.Marshal(slices.Repeat(data, rows))
	}
	return json.Marshal(tensors)
}

func repeatInput(input json.RawMessage, rows int) (json.RawMessage, error) {
	var list []json.RawMessage
	switch trimmed := bytes.TrimSpace(input); {
	case trimmed[0] == '"':
		list = []json.RawMessage{input}
	case json.Unmarshal(input, &list) != nil || len(list) == 0:
		return nil, errors.New(`"input" of the body is no text and no list`)
	case list[0][0] != '"' && list[0][0] != '[': // tokens of one text
		list = []json.RawMessage{input}
	case len(list) > 1:
		return nil, fmt.Errorf(`"input" of the body has %d texts: write one, which is repeated`, len(list))
	}
	return json.Marshal(slices.Repeat(list, rows))
}

// Digest tells requests to paths with bodies apart, in eight digits.
func Digest(path string, body []byte) string {
	sum := sha256.Sum256(append([]byte(path+"\n"), body...))
	return hex.EncodeToString(sum[:4])
}
