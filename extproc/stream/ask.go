package stream

import (
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
)

// ask is what a request asks for, whichever API it is of.
type ask struct {
	// model is what its client calls it, empty where it names none. It is a model's name or a VModel's, unless naming says which.
	model  string
	naming naming
	// previous is the id of the answer that the request goes on from, empty if it begins anew.
	previous string
	// stored says that it needs a stored response: the one of its path, or the one that its body continues.
	stored bool
	stream bool
	// text is where the model stands in a body of OpenAI's API, and what its prompt is read by.
	text openai.Request
}

// naming is of what a name may be.
type naming uint8

const (
	anyName naming = iota
	modelName
	vmodelName
)

// api is which API a request is of, as far as it decides how an error is said.
type api uint8

const (
	openAI api = iota
	anthropic
	v2   // KServe's by REST
	grpc // any service
)

// api is the one of the request.
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

// traits are what the dispatcher knows of the API that a request speaks. The zero traits are those of OpenAI's API.
type traits struct {
	call      bool   // it is a gRPC call
	method    string // of that
	messages  bool   // whose messages are shown
	tokenless bool   // its model may have no tokens: gRPC calls and requests of V2
	runs      bool   // it runs its model: how long that takes is learned from such requests
	converts  bool   // the relay can make a gRPC call of it
	guess     bool   // its path is none of ours, so that the model that its body names is a hint and no more
}
