package stream

import (
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// maxChunk limits the part of a body in one message. Envoy recommends less than 64 KiB. Other
// endpoint pickers use 62,000 bytes.
const maxChunk = 62_000

// message is a message from extproc to the data plane.
type message = extprocv3.ProcessingResponse

// Answers that change nothing. All exchanges share them.
var (
	goOnHeaders        = answerHeaders(nil)
	goOnBody           = answerBody(nil)
	goOnTrailers       = &message{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
	goOnAnswer         = answerHeadersOfAnswer(nil)
	goOnAnswerBody     = &message{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}}
	goOnAnswerTrailers = &message{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}

	// askForBody makes the data plane send the body to extproc, which it otherwise would not.
	askForBody = goOnIn(&extprocfilterv3.ProcessingMode{
		RequestHeaderMode: extprocfilterv3.ProcessingMode_SEND,
		RequestBodyMode:   modeBuffered,
	})
	// askForOwnBody is askForBody for Headgate's own Envoys. A mode override replaces the whole
	// mode, so it also repeats which parts of responses these Envoys send to extproc.
	askForOwnBody = goOnIn(&extprocfilterv3.ProcessingMode{
		RequestHeaderMode: extprocfilterv3.ProcessingMode_SEND, RequestBodyMode: modeBuffered,
		RequestTrailerMode: extprocfilterv3.ProcessingMode_SEND,
		ResponseHeaderMode: extprocfilterv3.ProcessingMode_SKIP, ResponseTrailerMode: extprocfilterv3.ProcessingMode_SEND,
	})
)

// goOnIn returns an answer to the headers that sets which parts the data plane sends next.
func goOnIn(mode *extprocfilterv3.ProcessingMode) *extprocv3.ProcessingResponse {
	m := answerHeaders(nil)
	m.ModeOverride = mode
	return m
}

func answerHeaders(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &message{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: c}}}
}

func answerBody(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &message{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: c}}}
}

func answerHeadersOfAnswer(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &message{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: c}}}
}

func replaceBody(body []byte) *extprocv3.BodyMutation {
	return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}
}

// chunks returns the messages that forward a request's body in pieces. If end is true, the last
// message ends the body. Without end, an empty body yields no message.
func chunks(body []byte, end bool) responses {
	return cut(body, end, func(b *extprocv3.BodyResponse) *extprocv3.ProcessingResponse {
		return &message{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: b}}
	})
}

// answerChunks is like chunks, but for a response's body.
func answerChunks(body []byte, end bool) responses {
	return cut(body, end, func(b *extprocv3.BodyResponse) *extprocv3.ProcessingResponse {
		return &message{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: b}}
	})
}

func cut(body []byte, end bool, wrap func(*extprocv3.BodyResponse) *extprocv3.ProcessingResponse) responses {
	out := make(responses, 0, len(body)/maxChunk+1)
	for len(body) > 0 || end {
		n := min(len(body), maxChunk)
		out = append(out, wrap(&extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
			BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
				StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body[:n], EndOfStream: end && n == len(body)},
			}},
		}}))
		if body = body[n:]; len(body) == 0 {
			break
		}
	}
	return out
}
