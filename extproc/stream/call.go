package stream

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/processing"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/internal/objects"
)

// call is a gRPC call. The data plane sends its messages to extproc only if extproc has to read or
// change them. The headers or the first message name the model. Later messages must name the same
// model.
type call struct {
	*exchange
	rule  kserve.Rule
	named kserve.Named // models that the headers name

	messages *kserve.Messages // reader of the messages; nil if extproc gets none
	pending  []kserve.Message // messages that were read but not forwarded
	read     bool             // at least one message was read
	model    string           // model that the messages name; may be empty
	inject   kserve.Path      // where to write the model into the messages; nil: nowhere
	opened   bool             // the headers were forwarded
	ended    bool             // no more messages follow
	trailed  bool             // trailers ended the messages
}

// askForMessages makes the data plane send the body in chunks before it forwards the headers. Envoy
// 1.40 accepts this mode override only as a message of its own, before any other answer. The
// ext_proc stream then lasts as long as the request. Envoy fails the call if the stream breaks, so
// a crash of extproc fails all calls in this mode.
var askForMessages = (&message{Mode: encodeMode(&extprocfilterv3.ProcessingMode{
	RequestHeaderMode: extprocfilterv3.ProcessingMode_SEND, RequestBodyMode: modeDuplex,
	RequestTrailerMode: extprocfilterv3.ProcessingMode_SEND,
	ResponseHeaderMode: extprocfilterv3.ProcessingMode_SKIP, ResponseTrailerMode: extprocfilterv3.ProcessingMode_SKIP,
})}).Encode()

// showNoMore makes the data plane send nothing more of a call to extproc, which ends the ext_proc
// stream.
var showNoMore = encodeMode(&extprocfilterv3.ProcessingMode{
	RequestHeaderMode: extprocfilterv3.ProcessingMode_SEND, RequestTrailerMode: extprocfilterv3.ProcessingMode_SKIP,
	ResponseHeaderMode: extprocfilterv3.ProcessingMode_SKIP, ResponseTrailerMode: extprocfilterv3.ProcessingMode_SKIP,
})

// soon is how long a request may run on a vanished engine before extproc ends it. Envoy writes two
// periodic access-log records in that time.
const soon = 20 * time.Second

// endsSoon reports whether the call's own deadline is so short that extproc would not end the call
// earlier if the engine vanished. The ext_proc stream may then end before the response, which saves
// one message for the response's trailers.
func (c *call) endsSoon() bool {
	own := grpcTimeout(c.in.header("grpc-timeout"))
	return c.scope.front == Own && c.scope.mode == modeNone && own > 0 && own <= soon
}

// begin handles the headers of a call. It rejects calls that are not allowed, answers calls about
// the server, and decides calls whose headers name the model.
func (c *call) begin(end bool, now time.Time) responses {
	method, ok := kserve.MethodOf(c.in.path)
	if answer := c.about(method); ok && answer != nil {
		return answer
	}
	if ok && kserve.Manages(method) && c.server.Manages && !c.scope.atGateway() && c.scope.relayServes(objects.Name{}) {
		return c.sendToRelay(relaytoken.Manage)
	}
	if !ok || kserve.Closed(method) || c.in.method != "POST" {
		return c.fail(errNoMethod, "")
	}
	t := &c.dispatcher.traits
	t.method, t.runs = method, kserve.Runs(method)
	c.rule, c.ended = c.ruleOf(method), end
	var err error
	if c.named, err = kserve.Read(c.in.ids); err != nil {
		return c.fail(err, "")
	}
	if len(c.named.IDs) > 1 {
		return c.sendToEach()
	}
	if c.rule.Path != nil && !end {
		return c.wantMessages()
	}
	return c.decideCall(now)
}

// ruleOf returns where the messages of a method name the model. The pools that the call may use
// define that; if none does, V2's rule applies.
func (c *call) ruleOf(method string) kserve.Rule {
	if c.scope.relayed != nil {
		return kserve.Rule{}
	}
	view := c.server.Fleet.View()
	offer, err := c.scope.offer(view)
	if err != nil {
		return kserve.RuleOf(method) // decideCall will return the same error
	}
	given, _ := c.scope.given(view.World)
	if own, said := view.World.RPC(method, c.scope.counts(offer, given)); said {
		return kserve.Rule{Path: own.Path, VModel: own.VModel}
	}
	return kserve.RuleOf(method)
}

// wantMessages makes the data plane send the messages to extproc, unless it already does.
func (c *call) wantMessages() responses {
	c.dispatcher.traits.messages = true
	c.messages = kserve.NewMessages(c.in.header("grpc-encoding"), maxBody)
	switch {
	case c.scope.mode == modeDuplex:
		return nil
	case c.scope.mode == modeNone && c.scope.front == Own:
		c.scope.mode = modeDuplex
		return responses{askForMessages}
	}
	return c.fail(errHidden, c.model)
}

// asks returns what the call asks for. A model in a message takes precedence over a model in the
// headers.
func (c *call) asks() (ask, error) {
	switch {
	case c.model != "" && c.rule.VModel:
		return ask{model: c.model}, nil
	case c.model != "":
		return ask{model: c.model, naming: modelName}, nil
	case len(c.named.IDs) == 0:
		return ask{}, errNoID
	case c.named.VModel:
		return ask{model: c.named.IDs[0], naming: vmodelName}, nil
	}
	return ask{model: c.named.IDs[0], naming: modelName}, nil
}

// decideCall decides the call, and forwards the messages that have arrived.
func (c *call) decideCall(now time.Time) responses {
	if c.dispatcher.traits.method == readyMethod {
		return c.callReady(now)
	}
	a, err := c.asks()
	if errors.Is(err, errNoID) && !c.scope.inferenceOnly() {
		err = nil // the gateway's route admits the call, so any endpoint of the pool may serve it
	}
	if err == nil {
		err = c.dispatcher.send(a, nil, now)
	}
	if err != nil {
		return c.queueOrReply(err, a.model, c.bytes(), now, c.decideCall)
	}
	if c.inject = c.dispatcher.inject; a.model == "" {
		c.inject = nil
	}
	if c.inject != nil && c.messages == nil && !c.ended {
		return c.wantMessages()
	}
	return c.passOn(now)
}

// bytes returns the size of the messages that were read but not forwarded.
func (c *call) bytes() int {
	n := 0
	for _, m := range c.pending {
		n += max(len(m.Frame), len(m.Bytes))
	}
	return n
}

// chunk handles the next piece of the messages. It returns false if extproc does not read them.
func (c *call) chunk(piece []byte, end bool, now time.Time) (responses, bool) {
	if c.messages == nil {
		return nil, false
	}
	return c.nextPiece(piece, end, now), true
}

// whole is never called: a call is decided by its headers, or by messages that arrive in chunks.
func (c *call) whole([]byte, ending, time.Time) responses { return c.fail(errHidden, c.model) }

func (c *call) nextPiece(chunk []byte, end bool, now time.Time) responses {
	c.messages.Add(chunk)
	c.ended = end
	err := c.next()
	if err == nil {
		err = c.keep(c.messages.Kept())
	}
	if err != nil {
		return c.failCall(err, now)
	}
	switch {
	case c.dispatcher.inFlight != nil:
		return c.passOn(now)
	case !c.read && !end:
		return nil
	}
	return c.decideCall(now)
}

// failCall ends a call because of an error in one of its messages. If the response has begun, Envoy
// could only reset the stream. In that case failCall ends the request to the engine, and a filter
// in the cluster writes the error into the response's trailers.
func (c *call) failCall(err error, now time.Time) responses {
	if !c.opened || !c.scope.hints.answered || c.trailed {
		return c.fail(err, c.model)
	}
	e := describe(err, c.model)
	code, words := e.callStatus()
	_ = c.keep(0)
	c.pending = nil
	c.phase, c.dispatcher.sentAt = sent, now // the access log reports the call with its final status
	out := chunks(nil, true)
	to := &out[0].Metadata
	pick := to.Begin(wire.PickNamespace)
	to.Text(wire.PickRefused, strconv.Itoa(int(code)))
	to.Text(wire.PickWords, url.PathEscape(words))
	to.End(pick)
	return out
}

// trailers handles the trailers of the call, which end its messages.
func (c *call) trailers(now time.Time) (responses, bool) {
	if c.phase == sent {
		return nil, false
	}
	return c.messagesEnd(now), true
}

func (c *call) messagesEnd(now time.Time) responses {
	c.trailed, c.ended = true, true
	if c.messages == nil {
		return responses{goOnTrailers} // the call was decided by its headers
	}
	if err := c.next(); err != nil {
		return c.failCall(err, now)
	}
	if c.dispatcher.inFlight == nil {
		return c.decideCall(now)
	}
	return c.passOn(now)
}

// next reads all complete messages that have arrived.
func (c *call) next() error {
	for {
		m, ok, err := c.messages.Next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := c.readModel(m); err != nil {
			return err
		}
		c.pending = append(c.pending, m)
	}
	if c.ended && c.messages.Partial() {
		return kserve.ErrPartial
	}
	return nil
}

// readModel reads the model that a message names, and checks that all messages name the same model.
func (c *call) readModel(m kserve.Message) error {
	first := !c.read
	c.read = true
	if c.rule.Path == nil {
		return nil
	}
	model, named, err := kserve.Extract(m.Bytes, c.rule.Path)
	if err != nil {
		return err
	}
	if named = named && model != ""; named {
		if err := kserve.CheckID(model); err != nil {
			return err
		}
	}
	switch {
	case first:
		c.model = model
	case named && model != c.model && (c.model != "" || !slices.Contains(c.named.IDs, model)):
		return errAnotherModel
	}
	return nil
}

// passOn forwards the headers of a decided call, then its messages. If the engine expects the model
// in the messages, passOn writes the engine's name of the model into each message.
func (c *call) passOn(now time.Time) responses {
	var body []byte
	owned := false
	for _, m := range c.pending {
		frame := m.Frame
		if c.inject != nil {
			written, err := kserve.Inject(m.Bytes, c.inject, c.dispatcher.model)
			if err != nil {
				return c.failCall(err, now)
			}
			if len(written) != len(m.Bytes) || len(written) > 0 && &written[0] != &m.Bytes[0] {
				frame = kserve.AppendFrame(nil, written)
			}
		}
		switch {
		case body == nil:
			body = frame
		case !owned: // body still points into a received message, which must not be changed
			body, owned = append(append(make([]byte, 0, 2*(len(body)+len(frame))), body...), frame...), true
		default:
			body = append(body, frame...)
		}
	}
	c.pending = nil
	var out responses
	if !c.opened {
		c.opened, c.phase = true, passing
		common := c.dispatcher.common()
		if c.messages != nil {
			c.resize(common, 0)
		}
		answer := &message{Part: processing.RequestHeaders, Changes: common}
		if c.messages == nil && c.endsSoon() {
			answer.Mode = showNoMore
		}
		out = append(out, c.withMetadata(answer))
	}
	if c.messages != nil {
		out = append(out, chunks(body, c.ended && !c.trailed)...)
	}
	if c.trailed {
		out = append(out, goOnTrailers)
	}
	if c.ended || c.messages == nil && c.scope.mode != modeDuplex {
		c.phase, c.dispatcher.sentAt = sent, now
	}
	return out
}

// timeout formats the remaining time of a call as the grpc-timeout header.
func timeout(left time.Duration) string {
	if ms := left.Milliseconds(); ms < 1e8 {
		return strconv.FormatInt(max(1, ms), 10) + "m"
	}
	return strconv.FormatInt(int64(left/time.Second), 10) + "S"
}
