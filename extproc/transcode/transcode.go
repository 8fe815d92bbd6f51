// Package transcode converts a REST request of KServe's V2 protocol to gRPC, and the response back
// to REST, for runtimes that speak only gRPC. It only converts bytes and does no I/O.
//
// The REST format is defined by the Open Inference Protocol and by Triton's binary tensor data
// extension. Where these are ambiguous, the package does what MLServer and Triton do. Where
// MLServer and Triton differ, comments say which of them the package follows. Messages are read and
// written field by field, so that a tensor of megabytes never becomes a tree of values.
package transcode

import (
	"github.com/headgate/headgate/extproc/kserve"
)

// HeaderLength is the name of a header, defined by Triton's binary tensor data extension. Its value
// is the size of the JSON part of a body, which binary tensors follow. Without the header, the
// whole body is JSON.
const HeaderLength = "Inference-Header-Content-Length"

// Request is a converted request. It is safe for concurrent use.
type Request struct {
	// Method is the gRPC method to call, "package.Service/Method".
	Method string
	// Message is the encoded message to send.
	Message []byte

	rest   kserve.REST
	binary inBinary
}

// inBinary is which outputs the client wants in binary. The field all is the default for outputs
// that the request does not configure.
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
	// HeaderLength is the value of the header [HeaderLength]. 0 means that the header is omitted,
	// because the whole body is JSON.
	HeaderLength int
	Body         []byte
}

// ContentType returns the media type of the body. For a body with binary tensors, it is the type
// that Triton uses.
func (r Response) ContentType() string {
	if r.HeaderLength > 0 {
		return "application/octet-stream"
	}
	return "application/json"
}

// Read converts a REST request. HeaderLength is the value of the header [HeaderLength], or empty.
// The result keeps no reference to body.
//
// Every error is a [*kserve.Error]. Its code is InvalidArgument if the request is invalid, and
// Unimplemented if gRPC has no equivalent of the request.
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

// named encodes a message that contains only the model's name and version. ModelReadyRequest and
// ModelMetadataRequest have the same fields.
func named(r kserve.REST) []byte {
	return kserve.AppendText(kserve.AppendText(nil, 1, r.Model), 2, r.Version)
}

// Answer converts the response message of the gRPC call to REST. If the message is invalid, the
// result is an error with status 500.
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

// Failed returns the REST response for a gRPC call that failed, or for an error of [Read]. Its body
// is V2's {"error": words}.
func Failed(code kserve.Code, words string) Response {
	body := appendQuoted([]byte(`{"error":`), words)
	return Response{Status: code.HTTP(), Body: append(body, '}')}
}
