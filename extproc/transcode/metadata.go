package transcode

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/extproc/kserve"
)

// answerReady converts the response about a model's readiness. If the model is not ready, the REST
// response is an error with status 400, as in MLServer and Triton.
func answerReady(model string, message []byte) (Response, *kserve.Error) {
	ready := false
	err := fields(message, func(f field) error {
		if f.number == 1 {
			if f.wire != protowire.VarintType {
				return errMessage
			}
			ready = f.n != 0
		}
		return nil
	})
	switch {
	case err != nil:
		return Response{}, broken(err)
	case !ready:
		return Response{}, &kserve.Error{Code: kserve.FailedPrecondition, Reason: "The model " + quote(model) + " is not ready."}
	}
	return Response{Status: kserve.OK.HTTP(), Body: append(appendQuoted([]byte(`{"name":`), model), `,"ready":true}`...)}, nil
}

// metadata is a parsed ModelMetadataResponse. Some of its parts are already JSON.
type metadata struct {
	name, platform            string
	versions, inputs, outputs []byte // comma-separated items of JSON arrays
	parameters                parameters
}

// Numbers of MLServer's fields for the parameters of a model and of a tensor.
const (
	modelParameters  protowire.Number = 6
	tensorParameters protowire.Number = 4
)

// answerMetadata converts the response that describes a model's inputs and outputs.
func answerMetadata(message []byte) (Response, *kserve.Error) {
	m := metadata{parameters: make(parameters)}
	if err := fields(message, m.read); err != nil {
		return Response{}, broken(err)
	}
	body := appendQuoted([]byte(`{"name":`), m.name)
	body = append(append(append(body, `,"versions":[`...), m.versions...), ']')
	body = appendQuoted(append(body, `,"platform":`...), m.platform)
	body = append(append(append(body, `,"inputs":[`...), m.inputs...), ']')
	body = append(append(append(body, `,"outputs":[`...), m.outputs...), ']')
	return Response{Status: kserve.OK.HTTP(), Body: append(m.parameters.append(body), '}')}, nil
}

func (m *metadata) read(f field) (err error) {
	switch f.number {
	case 1:
		m.name, err = f.text()
	case 2:
		var version string
		version, err = f.text()
		m.versions = appendQuoted(appendComma(m.versions), version)
	case 3:
		m.platform, err = f.text()
	case 4:
		m.inputs, err = appendTensor(m.inputs, f)
	case 5:
		m.outputs, err = appendTensor(m.outputs, f)
	case modelParameters:
		err = m.parameters.read(f)
	}
	return err
}

// appendTensor appends a TensorMetadata as JSON. A dimension of -1 means any size.
func appendTensor(dst []byte, f field) ([]byte, error) {
	if f.wire != protowire.BytesType {
		return nil, errMessage
	}
	var name, datatype string
	var shape []int64
	p := make(parameters)
	err := fields(f.bytes, func(f field) (err error) {
		switch f.number {
		case 1:
			name, err = f.text()
		case 2:
			datatype, err = f.text()
		case 3:
			shape, err = appendDimensions(shape, f)
		case tensorParameters:
			err = p.read(f)
		}
		return err
	})
	dst = appendQuoted(append(appendComma(dst), `{"name":`...), name)
	dst = appendQuoted(append(dst, `,"datatype":`...), datatype)
	dst = appendShape(append(dst, `,"shape":`...), shape)
	return append(p.append(dst), '}'), err
}

func appendComma(dst []byte) []byte {
	if len(dst) > 0 {
		return append(dst, ',')
	}
	return dst
}
