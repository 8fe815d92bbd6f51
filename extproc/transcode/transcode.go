// Package transcode turns a request of KServe's V2 by REST into the same by gRPC, and the answer back, for a runtime that speaks gRPC alone.
// It is pure: bytes in, bytes out.
//
// What REST says is in the Open Inference Protocol and in Triton's binary tensor data extension; where they leave something open, the package
// does what MLServer and Triton do, and where these differ, its comments say whom it follows. Messages are written and read field by field,
// so that a tensor of megabytes is never a tree of values.
package transcode

import (
	"github.com/headgate/headgate/extproc/kserve"
)

// HeaderLength is the header that says how many bytes of a body are JSON, where tensors in binary follow it (Triton's binary tensor data
// extension). Without it all of the body is JSON.
const HeaderLength = "Inference-Header-Content-Length"

// Request is a request by REST, to be asked by gRPC. It may be used by several goroutines at once.
type Request struct {
	// Method is the method to call, "package.Service/Method".
	Method string
	// Message is what to send.
	Message []byte

	rest   kserve.REST
	binary inBinary
}

// inBinary is which outputs a client wants in binary: those that it says so of, and the others if all.
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

// Response is the answer by REST.
type Response struct {
	// Status is HTTP's.
	Status int
	// HeaderLength is the value of the header [HeaderLength]; 0 if the body is JSON alone, which has no such header.
	HeaderLength int
	Body         []byte
}

// ContentType is the type of the body, as Triton has it.
func (r Response) ContentType() string {
	if r.HeaderLength > 0 {
		return "application/octet-stream"
	}
	return "application/json"
}

// Read reads a request. HeaderLength is the value of the header [HeaderLength], empty if there is none. The request keeps nothing of body.
//
// Every error is a [*kserve.Error]: InvalidArgument is a request that says what is wrong with it, Unimplemented one that has no like in gRPC.
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
	return Request{}, &kserve.Error{Code: kserve.Unimplemented, Reason: "The server of this model speaks gRPC: by REST it takes POST /v2/models/{model}/infer, GET /v2/models/{model} and GET /v2/models/{model}/ready."}
}

// named is what a request says that only names a model: ModelReadyRequest and ModelMetadataRequest have the same fields.
func named(r kserve.REST) []byte {
	return kserve.AppendText(kserve.AppendText(nil, 1, r.Model), 2, r.Version)
}

// Answer is the response to what the call returned. A message that is not what the protocol says is answered with 500.
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

// Failed is the response to a call that ended with a code and its words, and to an error of [Read]: V2's, {"error": words}.
func Failed(code kserve.Code, words string) Response {
	body := appendQuoted([]byte(`{"error":`), words)
	return Response{Status: code.HTTP(), Body: append(body, '}')}
}
