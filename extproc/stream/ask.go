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
	stream   bool
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

// asks is what a request of OpenAI's API asks for.
func asks(r openai.Request) ask {
	return ask{model: r.Model, previous: r.Previous, stream: r.Stream, text: r}
}

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
	case x.call != nil:
		return grpc
	case kserve.IsREST(x.in.path):
		return v2
	case openai.IsMessages(x.in.path):
		return anthropic
	}
	return openAI
}
