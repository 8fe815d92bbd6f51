package stream

import (
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
)

// ask is what a request asks for, independent of its API.
type ask struct {
	// model is the client's name of the model; may be empty. Naming restricts it to models or
	// VModels.
	model  string
	naming naming
	// previous is the id of the response that the request continues; may be empty.
	previous string
	// stored means that the request needs a stored response: that of its path, or the previous one.
	stored bool
	stream bool
	// text is the parsed body of OpenAI's API. It locates the model's name, and reads the prompt.
	text openai.Request
}

// naming restricts what a name may refer to.
type naming uint8

const (
	anyName naming = iota
	modelName
	vmodelName
)

// api is the API of a request, as far as the format of errors depends on it.
type api uint8

const (
	openAI api = iota
	anthropic
	v2   // KServe's V2 by REST
	grpc // any service
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

// traits are what the dispatcher needs to know about the request's API. The zero traits are those
// of OpenAI's API.
type traits struct {
	call      bool   // it is a gRPC call
	method    string // the call's method
	messages  bool   // the data plane shows the call's messages
	tokenless bool   // the model may have no tokens: gRPC calls and V2 requests
	runs      bool   // the request runs an inference, whose service time is learned
	converts  bool   // the relay can make a gRPC call of it
	guess     bool   // the path is unknown, so the model in the body is only a hint
}
