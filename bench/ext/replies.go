package ext

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
)

// kind is the part of a request or response that a message has. It is the field's number in a
// ProcessingRequest.
type kind uint8

const (
	requestHeaders   kind = 2
	responseHeaders  kind = 3
	requestBody      kind = 4
	responseBody     kind = 5
	requestTrailers  kind = 6
	responseTrailers kind = 7
)

// passage is what a no-op remembers of a stream.
type passage struct {
	duplex   [2]bool // whether bodies are full duplex: of the request, and of the response
	ended    [2]bool // whether the last chunk of that body was passed on
	observed bool    // Envoy expects no replies
}

// configure stores the modes that Envoy states in a stream's first message.
func (p *passage) configure(request, response extprocfilterv3.ProcessingMode_BodySendMode) {
	for i, mode := range []extprocfilterv3.ProcessingMode_BodySendMode{request, response} {
		p.duplex[i] = mode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED || mode == extprocfilterv3.ProcessingMode_GRPC
	}
}

// echoes reports whether a chunk of a body has to be sent back, and remembers the last one. Envoy
// may deliver the end of a body twice (envoyproxy/envoy#46237); the second one is dropped.
func (p *passage) echoes(of kind, end bool) bool {
	i := of - requestBody
	if p.ended[i] {
		return false
	}
	p.ended[i] = end
	return true
}

// reply returns the reply that changes nothing; nil for an unknown kind.
func reply(to kind) *extprocv3.ProcessingResponse {
	switch to {
	case requestHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
			RequestHeaders: new(extprocv3.HeadersResponse),
		}}
	case responseHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
			ResponseHeaders: new(extprocv3.HeadersResponse),
		}}
	case requestBody:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: new(extprocv3.BodyResponse),
		}}
	case responseBody:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
			ResponseBody: new(extprocv3.BodyResponse),
		}}
	case requestTrailers:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
			RequestTrailers: new(extprocv3.TrailersResponse),
		}}
	case responseTrailers:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
			ResponseTrailers: new(extprocv3.TrailersResponse),
		}}
	}
	return nil
}

// replyTo returns the reply to a request's headers that names an endpoint, in the header and the
// metadata of the endpoint-picker protocol.
func replyTo(endpoint string) *extprocv3.ProcessingResponse {
	m := reply(requestHeaders)
	m.GetRequestHeaders().Response = &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
		SetHeaders: []*corev3.HeaderValueOption{{
			Header:       &corev3.HeaderValue{Key: wire.DestinationHeader, RawValue: []byte(endpoint)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
	}}
	one := &structpb.Struct{Fields: map[string]*structpb.Value{wire.DestinationHeader: structpb.NewStringValue(endpoint)}}
	m.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{wire.DestinationNamespace: structpb.NewStructValue(one)}}
	return m
}

// headerReplies returns a reply to a request's headers for each endpoint, or one that changes
// nothing.
func headerReplies(endpoints []string) (all []*extprocv3.ProcessingResponse) {
	for _, e := range endpoints {
		all = append(all, replyTo(e))
	}
	if len(all) == 0 {
		all = append(all, reply(requestHeaders))
	}
	return all
}

// echo returns the reply that passes on a chunk of a full duplex body.
func echo(to kind, chunk *extprocv3.HttpBody) *extprocv3.ProcessingResponse {
	m := reply(to)
	c := &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: chunk.GetBody(), EndOfStream: chunk.GetEndOfStream()},
	}}}
	if to == requestBody {
		m.GetRequestBody().Response = c
	} else {
		m.GetResponseBody().Response = c
	}
	return m
}

// destination returns the endpoint that a reply names, in a header or in metadata; empty if it
// names none.
func destination(m *extprocv3.ProcessingResponse) string {
	space := m.GetDynamicMetadata().GetFields()[wire.DestinationNamespace].GetStructValue()
	if to := space.GetFields()[wire.DestinationHeader].GetStringValue(); to != "" {
		return to
	}
	common := m.GetRequestHeaders().GetResponse()
	if common == nil {
		common = m.GetRequestBody().GetResponse()
	}
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		if is := h.GetHeader(); is.GetKey() == wire.DestinationHeader {
			if len(is.GetRawValue()) > 0 {
				return string(is.GetRawValue())
			}
			return is.GetValue()
		}
	}
	return ""
}
