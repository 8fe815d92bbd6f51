package stream

import (
	"errors"
	"time"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/processing"
	"github.com/headgate/headgate/internal/version"
)

// about answers calls about the gateway itself, without reading their message. It returns nil for
// any other call.
func (c *call) about(method string) responses {
	switch method {
	case kserve.V2 + "/ServerLive":
		return c.answerCall("live", kserve.AppendBool(nil, 1, true))
	case kserve.V2 + "/ServerReady":
		return c.answerCall("ready", kserve.AppendBool(nil, 1, c.scope.unwell() == nil))
	case kserve.V2 + "/ServerMetadata":
		return c.answerCall("server", kserve.AppendText(kserve.AppendText(nil, 1, serverMetadata.Name), 2, serverMetadata.Version))
	case "grpc.health.v1.Health/Check":
		const serving, notServing = 1, 2 // values of grpc.health.v1.HealthCheckResponse.ServingStatus
		status := uint64(serving)
		if c.scope.unwell() != nil {
			status = notServing
		}
		return c.answerCall("health", kserve.AppendNumber(nil, 1, status))
	}
	return nil
}

// readyMethod is V2's method that asks whether the model named in the message is ready.
const readyMethod = kserve.V2 + "/ModelReady"

// callReady replies whether calls for a model would be served. For an unknown model it replies
// false and not an error, because V2's clients expect that.
func (c *call) callReady(now time.Time) responses {
	a, err := c.asks()
	if err == nil {
		err = c.dispatcher.wouldAnswer(a, now)
	}
	if errors.Is(err, errNoID) {
		return c.fail(err, a.model)
	}
	return c.answerCall("ready", kserve.AppendBool(nil, 1, err == nil))
}

// answerCall answers a call with one message.
func (c *call) answerCall(code string, message []byte) responses {
	c.reply(200, code, nil)
	return responses{
		{Streamed: &processing.Streamed{Headers: []processing.Header{{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/grpc"}}}},
		{Streamed: &processing.Streamed{Body: kserve.AppendFrame(nil, message)}},
		{Streamed: &processing.Streamed{Trailers: []processing.Header{{Name: "grpc-status", Value: "0"}}}},
	}
}

// serverMetadata is the reply to V2's server metadata request.
var serverMetadata = struct {
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Extensions []string `json:"extensions"`
}{"headgate", version.Read().Program, []string{}}
