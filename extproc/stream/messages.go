package stream

import (
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/extproc/processing"
)

// maxChunk limits the part of a body in one message. Envoy recommends less than 64 KiB. Other
// endpoint pickers use 62,000 bytes.
const maxChunk = 62_000

// message is a message from extproc to the data plane.
type message = processing.Response

// Answers that change nothing. All exchanges share them.
var (
	goOnHeaders        = (&message{Part: processing.RequestHeaders}).Encode()
	goOnBody           = (&message{Part: processing.RequestBody}).Encode()
	goOnTrailers       = (&message{Part: processing.RequestTrailers}).Encode()
	goOnAnswer         = (&message{Part: processing.ResponseHeaders}).Encode()
	goOnAnswerBody     = (&message{Part: processing.ResponseBody}).Encode()
	goOnAnswerTrailers = (&message{Part: processing.ResponseTrailers}).Encode()

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
func goOnIn(mode *extprocfilterv3.ProcessingMode) *message {
	return (&message{Part: processing.RequestHeaders, Mode: encodeMode(mode)}).Encode()
}

// encodeMode encodes which parts a data plane sends.
func encodeMode(mode *extprocfilterv3.ProcessingMode) []byte {
	encoded, err := proto.Marshal(mode)
	if err != nil {
		panic(err) // marshaling numbers never fails
	}
	return encoded
}

// chunks returns the messages that forward a request's body in pieces. If end is true, the last
// message ends the body. Without end, an empty body yields no message.
func chunks(body []byte, end bool) responses { return cut(processing.RequestBody, body, end) }

// answerChunks is like chunks, but for a response's body.
func answerChunks(body []byte, end bool) responses { return cut(processing.ResponseBody, body, end) }

func cut(of processing.Part, body []byte, end bool) responses {
	out := make(responses, 0, len(body)/maxChunk+1)
	for len(body) > 0 || end {
		n := min(len(body), maxChunk)
		last := n == len(body)
		out = append(out, &message{Part: of, Changes: &processing.Changes{Streams: true, Body: body[:n], End: end && last}})
		if body = body[n:]; last {
			break
		}
	}
	return out
}
