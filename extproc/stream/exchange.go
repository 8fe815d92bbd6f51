package stream

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// exchange is one HTTP request on its way through Envoy, from its first message to the end of its stream.
type exchange struct {
	server *Server

	op          openai.Operation
	contentType string
	// length is whether the request stated its content length.
	length   bool
	inFlight *fleet.InFlight
}

// errProtocol is a message that Envoy should not have sent in the mode that we serve: a fault of its configuration.
type errProtocol string

func (e errProtocol) Error() string { return string(e) }

// answer returns what to say to a message, or an error that ends the stream.
func (x *exchange) answer(m *extprocv3.ProcessingRequest) (*extprocv3.ProcessingResponse, error) {
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if c := m.GetProtocolConfig(); c != nil && c.GetRequestBodyMode() != extprocfilterv3.ProcessingMode_BUFFERED {
			return nil, errProtocol(fmt.Sprintf("the request_body_mode of ext_proc is %s: set BUFFERED, as envoy.yaml does", c.GetRequestBodyMode()))
		}
		return x.requestHeaders(r.RequestHeaders), nil
	case *extprocv3.ProcessingRequest_RequestBody:
		return x.requestBody(r.RequestBody.GetBody()), nil
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}, nil
	}
	return nil, errProtocol(fmt.Sprintf("ext_proc sends %T: its processing_mode asks for more than envoy.yaml does", m.GetRequest()))
}

// requestHeaders turns away what needs no body to be turned away, before Envoy takes in the body.
func (x *exchange) requestHeaders(h *extprocv3.HttpHeaders) *extprocv3.ProcessingResponse {
	in := readHeaders(h.GetHeaders())
	op, model := openai.Find(in.method, in.path)
	switch op {
	case openai.None:
		return x.fail(errUnknownPath, "")
	case openai.ListModels:
		return x.listModels()
	case openai.RetrieveModel:
		return x.retrieveModel(model)
	}
	if in.encoding != "" && !strings.EqualFold(in.encoding, "identity") {
		return x.fail(errEncoded, "")
	}
	x.length = in.length != ""
	if n, err := strconv.ParseUint(in.length, 10, 64); err == nil && n > maxBody {
		return x.fail(errTooLarge, "")
	}
	x.op, x.contentType = op, in.contentType
	if h.GetEndOfStream() {
		return x.requestBody(nil)
	}
	return proceedHeaders
}

// proceedHeaders lets a request's headers wait for its body.
var proceedHeaders = &extprocv3.ProcessingResponse{
	Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
}

// requestBody decides where the request goes.
func (x *exchange) requestBody(body []byte) *extprocv3.ProcessingResponse {
	began := time.Now()
	if len(body) > maxBody {
		return x.fail(errTooLarge, "")
	}
	request, err := openai.Parse(x.op, x.contentType, body)
	if err != nil {
		return x.fail(err, "")
	}
	target, picks, err := x.server.decide(request.Model)
	if err != nil {
		return x.fail(err, request.Model)
	}
	decision, destination := picks[0], destination(picks)
	x.inFlight.End() // of a body that Envoy should not have sent twice
	x.inFlight = fleet.Begin(decision)
	x.server.meter.Decided(target.Pool.String(), decision.Reason, time.Since(began))

	common := &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
		SetHeaders: []*corev3.HeaderValueOption{header(wire.DestinationHeader, destination)},
	}}
	if decision.Model != request.Model {
		renamed := request.Rename(body, decision.Model)
		common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: renamed}}
		if x.length {
			common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, header("content-length", strconv.Itoa(len(renamed))))
		}
	}
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}},
		DynamicMetadata: metadata(target, decision, destination, request.Stream),
	}
}

// destination is the endpoints of the picks in the words of the endpoint-picker protocol. The body goes to all of them as
// it goes to the first: those whose engine knows the model by another name are left out.
func destination(picks []pick.Decision) string {
	if len(picks) == 1 {
		return picks[0].Endpoint.Address
	}
	addresses := make([]string, 0, len(picks))
	for _, d := range picks {
		if d.Model == picks[0].Model {
			addresses = append(addresses, d.Endpoint.Address)
		}
	}
	return strings.Join(addresses, ",")
}

// metadata is what the cluster reads to find the endpoint, and what comes back with the access log.
func metadata(t route.Target, d pick.Decision, destination string, stream bool) *structpb.Struct {
	return object(map[string]*structpb.Value{
		wire.DestinationNamespace: structpb.NewStructValue(object(map[string]*structpb.Value{
			wire.DestinationHeader: structpb.NewStringValue(destination),
		})),
		wire.PickNamespace: structpb.NewStructValue(object(map[string]*structpb.Value{
			wire.PickRoute:  structpb.NewStringValue(t.Route.String()),
			wire.PickPool:   structpb.NewStringValue(t.Pool.String()),
			wire.PickModel:  structpb.NewStringValue(d.Model),
			wire.PickReason: structpb.NewStringValue(d.Reason),
			wire.PickStream: structpb.NewBoolValue(stream),
		})),
	})
}

func object(fields map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: fields}
}

// fail is the reply with an error.
func (x *exchange) fail(err error, model string) *extprocv3.ProcessingResponse {
	e := describe(err, model)
	x.server.meter.Replied(e.status, e.Code)
	return e.response()
}

// modelJSON is a model as OpenAI's API lists it.
type modelJSON struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func describeModel(m objects.Model) modelJSON {
	j := modelJSON{ID: m.Name, Object: "model", OwnedBy: "headgate"}
	if !m.Created.IsZero() {
		j.Created = m.Created.Unix()
	}
	return j
}

func (x *exchange) listModels() *extprocv3.ProcessingResponse {
	list := struct {
		Object string      `json:"object"`
		Data   []modelJSON `json:"data"`
	}{"list", []modelJSON{}}
	for _, m := range x.server.fleet.View().World.Models() {
		list.Data = append(list.Data, describeModel(m))
	}
	return x.reply(list)
}

func (x *exchange) retrieveModel(escaped string) *extprocv3.ProcessingResponse {
	name, err := url.PathUnescape(escaped)
	if err != nil {
		return x.fail(errUnknownPath, "")
	}
	for _, m := range x.server.fleet.View().World.Models() {
		if m.Name == name {
			return x.reply(describeModel(m))
		}
	}
	return x.fail(route.ErrUnknownModel, strings.ToValidUTF8(name, "�"))
}

func (x *exchange) reply(v any) *extprocv3.ProcessingResponse {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	x.server.meter.Replied(200, "models")
	return immediate(200, "models", body)
}

// end counts the request as gone. It may be called at any time and more than once.
func (x *exchange) end() { x.inFlight.End() }

// inHeaders is what matters of a request's headers.
type inHeaders struct{ method, path, contentType, encoding, length string }

func readHeaders(m *corev3.HeaderMap) inHeaders {
	var in inHeaders
	for _, h := range m.GetHeaders() {
		value := string(h.GetRawValue())
		if value == "" {
			value = h.GetValue()
		}
		switch h.GetKey() {
		case ":method":
			in.method = value
		case ":path":
			in.path = value
		case "content-type":
			in.contentType = value
		case "content-encoding":
			in.encoding = value
		case "content-length":
			in.length = value
		}
	}
	return in
}
