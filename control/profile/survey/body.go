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

// ModelPath returns the path of the V2 metadata of a model.
func ModelPath(model string) string { return "/v2/models/" + url.PathEscape(model) }

// Tensor is an input tensor in the metadata of a model. A negative dimension is variable.
type Tensor struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

// fillings has the fill value of each datatype.
var fillings = map[string]string{
	"BOOL": "true", "BYTES": `"text"`,
	"INT8": "1", "INT16": "1", "INT32": "1", "INT64": "1", "UINT8": "1", "UINT16": "1", "UINT32": "1", "UINT64": "1",
	"FP16": "0.5", "FP32": "0.5", "FP64": "0.5",
}

// mostElements limits the elements of one item: encoding a larger JSON body takes longer than any
// model's inference.
const mostElements = 1 << 24

// OneRow returns a V2 request with one item, made from the metadata of a model. It sets the first
// dimension (the batch) and all variable dimensions to 1. Errors say what to do.
func OneRow(metadata []byte) ([]byte, error) {
	var model struct {
		Inputs []Tensor `json:"inputs"`
	}
	if err := json.Unmarshal(metadata, &model); err != nil {
		return nil, fmt.Errorf("the model metadata is not V2 JSON: %w", err)
	}
	if len(model.Inputs) == 0 {
		return nil, errors.New("the model metadata has no inputs: write a request with one item into a file and use --body")
	}
	var out strings.Builder
	out.WriteString(`{"inputs":[`)
	for i, in := range model.Inputs {
		filling, ok := fillings[in.Datatype]
		switch {
		case !ok:
			return nil,
				fmt.Errorf("input %q is %s, which cannot be filled automatically: write a request with one item into a file and use --body",
					in.Name, in.Datatype)
		case len(in.Shape) == 0:
			return nil, fmt.Errorf("input %q has no batch dimension: write a request with one item into a file and use --body", in.Name)
		}
		shape, elements := slices.Clone(in.Shape), int64(1)
		for d := range shape {
			if shape[d] < 1 || d == 0 {
				shape[d] = 1
			}
			if elements *= shape[d]; elements > mostElements {
				return nil,
					fmt.Errorf("input %q has the shape %v, which is more than %d elements per item: write a request with one item into a file and use --body",
						in.Name,
						in.Shape,
						mostElements)
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

// Repeat returns a request that contains the only item of body several times. In V2 it repeats
// along the first dimension of all inputs, and in embeddings it repeats the input. Errors say why a
// request cannot be repeated.
func Repeat(api API, body []byte, rows int) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, fmt.Errorf("the body is not a JSON object: %w", err)
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
			return nil, fmt.Errorf("input %s of the body has the shape %s: its first dimension is the batch and must be 1", t["name"],
				t["shape"])
		}
		if json.Unmarshal(t["data"], &data) != nil || len(data) == 0 {
			return nil, fmt.Errorf("input %s of the body has no list as data, so it cannot be repeated", t["name"])
		}
		// Append whole items, so that their elements stay in order whether the data is flat or
		// nested.
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
	case list[0][0] != '"' && list[0][0] != '[': // the list contains the token numbers of one text
		list = []json.RawMessage{input}
	case len(list) > 1:
		return nil, fmt.Errorf(`"input" of the body has %d texts: write one, which is repeated`, len(list))
	}
	return json.Marshal(slices.Repeat(list, rows))
}

// Digest returns eight hexadecimal digits that identify the path and body of a request.
func Digest(path string, body []byte) string {
	sum := sha256.Sum256(append([]byte(path+"\n"), body...))
	return hex.EncodeToString(sum[:4])
}
