package stream

import (
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
)

// ask is what a request asks for, in a form that is the same for all APIs.
type ask struct {
	// model is the client's name of the model; may be empty. naming states whether the name must be
	// that of a model or of a VModel.
	model  string
	naming naming
	// previous is the ID of the response that the request continues; empty if it continues none.
	previous string
	// stored means that the request needs a stored response: the one in its path, or previous.
	stored bool
	stream bool
	// text is the parsed body of a request of OpenAI's API. It is used to replace the model's name
	// and to read the prompt.
	text openai.Request
}

// naming restricts what a model name may refer to.
type naming uint8

const (
	anyName naming = iota
	modelName
	vmodelName
)

// api is the API of a request. The format of errors depends on it.
type api uint8

const (
	openAI api = iota
	anthropic
	v2   // KServe's V2 over REST
	grpc // calls of any gRPC service
)

// api returns the API of the request.
func (x *exchange) api() api {
	switch {
	case x.dispatcher.traits.call:
		return grpc
	case kserve.IsREST(x.in.path):
		return v2
	case openai.IsMessages(x.in.path):
		return anthropic
	}
	return openAI
}

// traits are the properties of a request's API that the dispatcher needs. The zero traits are those
// of OpenAI's API.
type traits struct {
	call      bool   // the request is a gRPC call
	method    string // method of the gRPC call
	messages  bool   // the data plane sends the call's messages to extproc
	tokenless bool   // tokens may not exist or are unknown: gRPC calls and V2 requests
	runs      bool   // the request runs an inference, whose service time is learned
	converts  bool   // the relay can convert the request to a gRPC call
	guess     bool   // the path is unknown, so the model in the body is only a hint
}
