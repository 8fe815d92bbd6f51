// Package transcode converts a REST request of KServe's V2 to gRPC and the response back, for
// runtimes that speak only gRPC. It is pure: bytes in, bytes out.
//
// The REST format is defined by the Open Inference Protocol and Triton's binary tensor data
// extension. Where they are ambiguous, the package does what MLServer and Triton do; where these
// differ, comments say which one it follows. It reads and writes messages field by field, so that a
// tensor of megabytes is never a tree of values.
package transcode

import (
	"github.com/headgate/headgate/extproc/kserve"
)

// HeaderLength is the header with the size of the JSON part of a body, if binary tensors follow it
// (Triton's binary tensor data extension). Without it the whole body is JSON.
const HeaderLength = "Inference-Header-Content-Length"

// Request is a REST request that was converted to gRPC. It is safe for concurrent use.
type Request struct {
	// Method is the method to call, "package.Service/Method".
	Method string
	// Message is the message to send.
	Message []byte

	rest   kserve.REST
	binary inBinary
}

// inBinary is the client's choice of outputs in binary: by name, and all is the default.
type inBinary struct {
	all    bool
	output map[string]bool
}

func (b inBinary) wants(output string) bool {
	if said, is := b.output[output]; is {
		return said
	}
	return b.all
}

// Response is a REST response.
type Response struct {
	// Status is the HTTP status.
	Status int
	// HeaderLength is the value of the header [HeaderLength]; 0 means that the body is JSON only
	// and the header is omitted.
	HeaderLength int
	Body         []byte
}

// ContentType is the type of the body, as Triton names it.
func (r Response) ContentType() string {
	if r.HeaderLength > 0 {
		return "application/octet-stream"
	}
	return "application/json"
}

// Read converts a request. HeaderLength is the value of the header [HeaderLength], or empty. The
// request keeps no reference to body.
//
// Every error is a [*kserve.Error]: InvalidArgument describes a faulty request, and Unimplemented
// means that gRPC has no equivalent.
func Read(r kserve.REST, headerLength string, body []byte) (Request, error) {
	switch r.Op {
	case kserve.ModelReady:
		return Request{Method: kserve.V2 + "/ModelReady", Message: named(r), rest: r}, nil
	case kserve.ModelMetadata:
		return Request{Method: kserve.V2 + "/ModelMetadata", Message: named(r), rest: r}, nil
	case kserve.Infer:
		message, wanted, err := readInfer(r, headerLength, body)
		if err != nil {
			return Request{}, err
		}
		return Request{Method: kserve.V2 + "/ModelInfer", Message: message, rest: r, binary: wanted}, nil
	}
	return Request{}, &kserve.Error{
		Code:   kserve.Unimplemented,
		Reason: "The server of this model serves gRPC. By REST, the gateway supports POST /v2/models/{model}/infer, GET /v2/models/{model} and GET /v2/models/{model}/ready.",
	}
}

// named encodes a message that only names a model: ModelReadyRequest and ModelMetadataRequest have
// the same fields.
func named(r kserve.REST) []byte {
	return kserve.AppendText(kserve.AppendText(nil, 1, r.Model), 2, r.Version)
}

// Answer converts the response message of the call. If the message is invalid, the response is 500.
func (r Request) Answer(message []byte) Response {
	answer, err := r.answer(message)
	if err != nil {
		return Failed(err.Code, err.Reason)
	}
	return answer
}

func (r Request) answer(message []byte) (Response, *kserve.Error) {
	switch r.rest.Op {
	case kserve.ModelReady:
		return answerReady(r.rest.Model, message)
	case kserve.ModelMetadata:
		return answerMetadata(message)
	}
	return answerInfer(message, r.binary)
}

// Failed returns the response for a failed call, or for an error of [Read]: V2's {"error": words}.
func Failed(code kserve.Code, words string) Response {
	body := appendQuoted([]byte(`{"error":`), words)
	return Response{Status: code.HTTP(), Body: append(body, '}')}
}
