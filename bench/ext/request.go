package ext

import (
	"fmt"
	"maps"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
)

// mode is what Envoy sends of a request.
type mode string

const (
	buffered mode = "buffered" // the headers, and after their reply the whole body
	duplex   mode = "duplex"   // the headers and chunks of the body, without waiting for replies
	headers  mode = "headers"  // only the headers; the metadata has the model, as Envoy's body parser sets it
)

// bodyModes maps modes to what Envoy states in the first message.
var bodyModes = map[mode]extprocfilterv3.ProcessingMode_BodySendMode{
	buffered: extprocfilterv3.ProcessingMode_BUFFERED,
	duplex:   extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
	headers:  extprocfilterv3.ProcessingMode_NONE,
}

// chunkSize is the size of a full duplex body's chunks: the most that Envoy reads at once from a
// connection of HTTP/1.1.
const chunkSize = 64 << 10

// idOf returns the id of a request in the form of Envoy's.
func idOf(id uint64) string {
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", uint32(id>>48), id&(1<<48-1))
}

// headersOf returns the first message of a request: the headers that envoy.yaml forwards.
func headersOf(m mode, id, model string, size int) *extprocv3.ProcessingRequest {
	r := &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":method", RawValue: []byte("POST")},
				{Key: ":path", RawValue: []byte("/v1/chat/completions")},
				{Key: "content-type", RawValue: []byte("application/json")},
				{Key: "content-length", RawValue: strconv.AppendInt(nil, int64(size), 10)},
				{Key: "x-request-id", RawValue: []byte(id)},
			}},
		}},
		MetadataContext: new(corev3.Metadata),
		ProtocolConfig:  &extprocv3.ProtocolConfiguration{RequestBodyMode: bodyModes[m]},
	}
	if m != buffered {
		// Else the end of the stream would not be the end of the request: Envoy ends such a stream
		// early if the picker needs nothing of the response.
		r.ProtocolConfig.ResponseBodyMode = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	}
	if m == headers {
		r.MetadataContext.FilterMetadata = map[string]*structpb.Struct{wire.RequestNamespace: {Fields: map[string]*structpb.Value{
			wire.RequestModel: structpb.NewStringValue(model),
		}}}
	}
	return r
}

// bodyOf returns a message with a body, or with a chunk of it.
func bodyOf(chunk []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{
		Request:         &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: chunk, EndOfStream: end}},
		MetadataContext: new(corev3.Metadata),
	}
}

// responseBodyOf is the body of an engine's response.
const responseBodyOf = `{"id":"chatcmpl-8b1ef7290cff4433","object":"chat.completion","choices":[{"index":0,"message":` +
	`{"role":"assistant","content":"The quick brown fox jumps."},"finish_reason":"length"}],` +
	`"usage":{"prompt_tokens":250,"total_tokens":256,"completion_tokens":6}}`

// responseOf returns the messages with an engine's response to a request with a full duplex body.
func responseOf() []*extprocv3.ProcessingRequest {
	return []*extprocv3.ProcessingRequest{
		{
			Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
				Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
					{Key: ":status", RawValue: []byte("200")},
					{Key: "content-type", RawValue: []byte("application/json")},
					{Key: "content-length", RawValue: strconv.AppendInt(nil, int64(len(responseBodyOf)), 10)},
				}},
			}},
			MetadataContext: new(corev3.Metadata),
		},
		{
			Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{
				Body: []byte(responseBodyOf), EndOfStream: true,
			}},
			MetadataContext: new(corev3.Metadata),
		},
	}
}

// answer is a picker's answer to a request.
type answer struct {
	to     string // the endpoint that it names; empty if it names none
	status int    // of its own reply to the client; 0 if the request may pass
}

// replies checks the replies to one request as Envoy does.
type replies struct {
	mode     mode
	headers  bool // whether the headers have their reply
	answer   answer
	metadata map[string]*structpb.Struct // dynamic metadata, by namespace; only if it is not nil

	responseHeaders, responseEnd bool // whether these parts of the response have their replies
}

// take reads a reply. It is true if the request may pass now, or is rejected.
func (r *replies) take(m *extprocv3.ProcessingResponse) (done bool, err error) {
	if to := destination(m); to != "" {
		r.answer.to = to
	}
	if r.metadata != nil {
		r.remember(m.GetDynamicMetadata())
	}
	switch is := m.GetResponse().(type) {
	case nil: // a longer timeout, or another mode
		return false, nil
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		r.answer.status = int(is.ImmediateResponse.GetStatus().GetCode())
		return true, nil
	case *extprocv3.ProcessingResponse_RequestHeaders:
		if r.headers {
			return false, fmt.Errorf("a second reply to the headers: %w", errProtocol)
		}
		r.headers = true
		if mode := m.GetModeOverride(); r.mode == headers && mode.GetRequestBodyMode() != extprocfilterv3.ProcessingMode_NONE {
			return false, fmt.Errorf("the picker asks for the body: use --mode %s or %s: %w", buffered, duplex, errProtocol)
		}
		return r.mode == headers, nil
	case *extprocv3.ProcessingResponse_RequestBody:
		streamed := is.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
		switch {
		case !r.headers:
			return false, fmt.Errorf("a reply to the body before that to the headers: %w", errProtocol)
		case r.mode == headers:
			return false, fmt.Errorf("a reply to a body that was not sent: %w", errProtocol)
		case (streamed != nil) != (r.mode == duplex):
			return false, fmt.Errorf("a reply to the body in the form of another mode: %w", errProtocol)
		}
		return r.mode == buffered || streamed.GetEndOfStream(), nil
	}
	return false, fmt.Errorf("a reply to a part that was not sent: %w", errProtocol)
}

// remember merges dynamic metadata as Envoy does: later keys of a namespace replace earlier ones.
func (r *replies) remember(m *structpb.Struct) {
	for namespace, value := range m.GetFields() {
		to := r.metadata[namespace]
		if to == nil {
			to = &structpb.Struct{Fields: make(map[string]*structpb.Value)}
			r.metadata[namespace] = to
		}
		maps.Copy(to.Fields, value.GetStructValue().GetFields())
	}
}

// takeResponse reads a reply to a part of the response.
func (r *replies) takeResponse(m *extprocv3.ProcessingResponse) error {
	switch is := m.GetResponse().(type) {
	case nil, *extprocv3.ProcessingResponse_ImmediateResponse:
		return nil
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		if r.responseHeaders {
			return fmt.Errorf("a second reply to the response's headers: %w", errProtocol)
		}
		r.responseHeaders = true
		return nil
	case *extprocv3.ProcessingResponse_ResponseBody:
		streamed := is.ResponseBody.GetResponse().GetBodyMutation().GetStreamedResponse()
		switch {
		case !r.responseHeaders:
			return fmt.Errorf("a reply to the response's body before that to its headers: %w", errProtocol)
		case streamed == nil || r.responseEnd:
			return fmt.Errorf("a reply to the response's body in the form of another mode, or after its end: %w", errProtocol)
		}
		r.responseEnd = streamed.GetEndOfStream()
		return nil
	}
	return fmt.Errorf("after the response: a reply to a part that was not sent: %w", errProtocol)
}
