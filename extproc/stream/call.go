package stream

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// call is a gRPC call, whose messages are seen only where one of them is to be read or changed. It is decided by its headers, or by its
// first message; of every other one that is seen the model must be the same.
type call struct {
	method string
	rule   kserve.Rule
	named  kserve.Named // by its headers

	messages *kserve.Messages // nil while none is seen
	pending  []kserve.Message // that wait for the decision, and to be sent on
	read     bool             // a message was
	model    string           // that messages name, empty if they name none
	inject   kserve.Path      // where the engine takes the model in each message; nil if in none
	opened   bool             // its headers were sent on
	ended    bool             // no further message comes
	trailers bool             // and trailers have said so
}

// askForMessages has the data plane show the body as it comes, before the headers go on: Envoy 1.40 takes it alone, before any answer. The
// stream ends with the request: in this mode Envoy fails a call whose stream breaks, so that a crash of extproc would fail all that are open.
var askForMessages = &extprocv3.ProcessingResponse{ModeOverride: &extprocfilterv3.ProcessingMode{
	RequestHeaderMode: extprocfilterv3.ProcessingMode_SEND, RequestBodyMode: modeDuplex, RequestTrailerMode: extprocfilterv3.ProcessingMode_SEND,
	ResponseHeaderMode: extprocfilterv3.ProcessingMode_SKIP, ResponseTrailerMode: extprocfilterv3.ProcessingMode_SKIP,
}}

// showNoMore makes the data plane send nothing more of a call, which ends its ext_proc stream.
var showNoMore = &extprocfilterv3.ProcessingMode{
	RequestHeaderMode: extprocfilterv3.ProcessingMode_SEND, RequestTrailerMode: extprocfilterv3.ProcessingMode_SKIP,
	ResponseHeaderMode: extprocfilterv3.ProcessingMode_SKIP, ResponseTrailerMode: extprocfilterv3.ProcessingMode_SKIP,
}

// soon is how long a request on a vanished engine may go on before extproc ends it: two of Envoy's periodic records.
const soon = 20 * time.Second

// endsSoon reports whether Envoy ends the call at its deadline no later than extproc would if the engine vanished. Then the ext_proc stream need not
// stay open to the end of the answer, which saves the message with the answer's trailers.
func (x *exchange) endsSoon() bool {
	own := grpcTimeout(x.in.header("grpc-timeout"))
	return x.front == Own && x.mode == modeNone && own > 0 && own <= soon
}

// beginCall turns a call away that may not pass, answers one that is about the server, and decides one whose headers name its model.
func (x *exchange) beginCall(end bool, now time.Time) responses {
	c := new(call)
	x.call = c
	method, ok := kserve.MethodOf(x.in.path)
	if answer := x.about(method); ok && answer != nil {
		return answer
	}
	if ok && kserve.Manages(method) && x.server.Manages && !x.atGateway() && x.innerServes(objects.Name{}) {
		return x.sendInner(relaytoken.Manage)
	}
	if !ok || kserve.Closed(method) || x.in.method != "POST" {
		return x.fail(errNoMethod, "")
	}
	c.method, c.rule, c.ended = method, x.ruleOf(method), end
	var err error
	if c.named, err = kserve.Read(x.in.ids); err != nil {
		return x.fail(err, "")
	}
	if len(c.named.IDs) > 1 {
		return x.sendToEach()
	}
	if c.rule.Path != nil && !end {
		return x.wantMessages()
	}
	return x.decideCall(now)
}

// ruleOf is where the model stands in the messages of a method: as the pools say that the call may be for, else as by default.
func (x *exchange) ruleOf(method string) kserve.Rule {
	if x.errand != nil {
		return kserve.Rule{}
	}
	view := x.server.Fleet.View()
	offer, err := x.offer(view)
	if err != nil {
		return kserve.RuleOf(method) // the call is refused for it, once it is decided
	}
	given, _ := x.given(view.World)
	if own, said := view.World.RPC(method, x.counts(offer, given)); said {
		return kserve.Rule{Path: own.Path, VModel: own.VModel}
	}
	return kserve.RuleOf(method)
}

// wantMessages has the messages shown, if they are not.
func (x *exchange) wantMessages() responses {
	x.call.messages = kserve.NewMessages(x.in.header("grpc-encoding"), maxBody)
	switch {
	case x.mode == modeDuplex:
		return nil
	case x.mode == modeNone && x.front == Own:
		x.mode = modeDuplex
		return responses{askForMessages}
	}
	return x.fail(errHidden, x.call.model)
}

// asks is what the call asks for, by what is known of it. What a message says comes before what headers say.
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

// decideCall decides a call of which enough is known, and sends on what has come of it.
func (x *exchange) decideCall(now time.Time) responses {
	c := x.call
	if c.method == readyMethod {
		return x.callReady(now)
	}
	a, err := c.asks()
	if errors.Is(err, errNoID) && !x.inferenceOnly() {
		err = nil // a route decides what passes, and any endpoint of its pool will do
	}
	if err == nil {
		err = x.send(a, nil, now)
	}
	if err != nil {
		return x.missed(err, a.model, c.bytes(), now, x.decideCall)
	}
	if a.model == "" {
		c.inject = nil
	}
	if c.inject != nil && c.messages == nil && !c.ended {
		return x.wantMessages()
	}
	return x.passOn(now)
}

// bytes is how long the messages are that wait.
func (c *call) bytes() int {
	n := 0
	for _, m := range c.pending {
		n += max(len(m.Frame), len(m.Bytes))
	}
	return n
}

// callChunk takes the next piece of a call's messages.
func (x *exchange) callChunk(chunk []byte, end bool, now time.Time) responses {
	c := x.call
	c.messages.Add(chunk)
	c.ended = end
	err := c.next()
	if err == nil {
		err = x.keep(c.messages.Kept())
	}
	if err != nil {
		return x.failCall(err, now)
	}
	switch {
	case x.inFlight != nil:
		return x.passOn(now)
	case !c.read && !end:
		return nil
	}
	return x.decideCall(now)
}

// failCall ends a call for one of its messages. If its answer has begun, Envoy could only reset it: then the engine's half ends here, nothing more
// is sent on, and a filter of the cluster puts the error into the trailers with which the engine ends.
func (x *exchange) failCall(err error, now time.Time) responses {
	c := x.call
	if !c.opened || !x.hints.answered || c.trailers {
		return x.fail(err, c.model)
	}
	e := describe(err, c.model)
	code, words := e.callStatus()
	_ = x.keep(0)
	c.pending = nil
	x.phase, x.sentAt = sent, now // the access log counts the call, by its final status
	out := chunks(nil, true)
	out[0].DynamicMetadata = object(map[string]*structpb.Value{wire.PickNamespace: structpb.NewStructValue(object(map[string]*structpb.Value{
		wire.PickRefused: structpb.NewStringValue(strconv.Itoa(int(code))),
		wire.PickWords:   structpb.NewStringValue(url.PathEscape(words)),
	}))})
	return out
}

// maxKept bounds the total bytes buffered: incomplete messages, decoded bodies, and bodies of requests that wait for control's answer.
const maxKept = 512 << 20

// keep records how many bytes of the request are buffered: an incomplete message, a decoded body, or its body while it waits for control's answer.
func (x *exchange) keep(bytes int) error {
	if bytes == x.kept {
		return nil
	}
	all := x.server.kept.Add(int64(bytes - x.kept))
	if x.kept = bytes; all > maxKept && bytes > 0 {
		return errCrowded
	}
	return nil
}

// callEnds takes the trailers of a call, which are the end of its messages.
func (x *exchange) callEnds(now time.Time) responses {
	c := x.call
	c.trailers, c.ended = true, true
	if c.messages == nil {
		return responses{goOnTrailers} // it was decided without them
	}
	if err := c.next(); err != nil {
		return x.failCall(err, now)
	}
	if x.inFlight == nil {
		return x.decideCall(now)
	}
	return x.passOn(now)
}

// next reads the messages that are whole.
func (c *call) next() error {
	for {
		m, ok, err := c.messages.Next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := c.look(m); err != nil {
			return err
		}
		c.pending = append(c.pending, m)
	}
	if c.ended && c.messages.Partial() {
		return kserve.ErrPartial
	}
	return nil
}

// look reads the model that a message names.
func (c *call) look(m kserve.Message) error {
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

// passOn sends on what has come of a call that is decided: its headers first, then its messages, with the engine's name of the model where
// the engine takes it in them.
func (x *exchange) passOn(now time.Time) responses {
	c := x.call
	var body []byte
	owned := false
	for _, m := range c.pending {
		frame := m.Frame
		if c.inject != nil {
			written, err := kserve.Inject(m.Bytes, c.inject, x.model)
			if err != nil {
				return x.failCall(err, now)
			}
			if len(written) != len(m.Bytes) || len(written) > 0 && &written[0] != &m.Bytes[0] {
				frame = kserve.AppendFrame(nil, written)
			}
		}
		switch {
		case body == nil:
			body = frame
		case !owned: // the first is not ours
			body, owned = append(append(make([]byte, 0, 2*(len(body)+len(frame))), body...), frame...), true
		default:
			body = append(body, frame...)
		}
	}
	c.pending = nil
	var out responses
	if !c.opened {
		c.opened, x.phase = true, passing
		common := x.common()
		if c.messages != nil {
			x.resize(common, 0)
		}
		answer := answerHeaders(common)
		if c.messages == nil && x.endsSoon() {
			answer.ModeOverride = showNoMore
		}
		out = append(out, x.withMetadata(answer))
	}
	if c.messages != nil {
		out = append(out, chunks(body, c.ended && !c.trailers)...)
	}
	if c.trailers {
		out = append(out, goOnTrailers)
	}
	if c.ended || c.messages == nil && x.mode != modeDuplex {
		x.phase, x.sentAt = sent, now
	}
	return out
}

// takes finds where engines take the model in the call's messages, and leaves picks out: those before the first whose engine takes the method at
// all, and those whose engines take the model elsewhere than that one, for a message goes to all as it goes to the first. An engine that says
// which methods it has takes no others.
func (x *exchange) takes(view *endpointstate.View) error {
	first := 0
	for ; first < len(x.picks); first++ {
		path, ok := x.injection(view, &x.picks[first])
		if ok {
			x.call.inject = path
			break
		}
	}
	if first == len(x.picks) {
		return errNoMethod
	}
	end := first + 1
	for end < len(x.picks) {
		if other, ok := x.injection(view, &x.picks[end]); !ok || !slices.Equal(other, x.call.inject) {
			break
		}
		end++
	}
	x.picks = x.picks[first:end]
	return nil
}

// injection is where the engine of a pick wants the model in the messages of the call's method, and whether it takes the method: as a model
// runtime says; other engines want it where V2 has it. One that is not known to speak gRPC takes none, unless a route says that its pool does.
func (x *exchange) injection(view *endpointstate.View, d *pick.Decision) (kserve.Path, bool) {
	if x.inferenceOnly() && !view.World.SpeaksGRPC(d.Endpoint.Address) {
		return nil, false
	}
	if methods, said := view.Methods[d.Endpoint.Address]; said {
		path, takes := methods.Takes(x.call.method)
		return path, takes
	}
	if view.World.KindAt(d.Endpoint.Address) == engine.ModelRuntime {
		return nil, true
	}
	return kserve.InV2(x.call.method), true
}

// timeout is how the engine is told of what remains of a call's time (gRPC over HTTP2, Timeout).
func timeout(left time.Duration) string {
	if ms := left.Milliseconds(); ms < 1e8 {
		return strconv.FormatInt(max(1, ms), 10) + "m"
	}
	return strconv.FormatInt(int64(left/time.Second), 10) + "S"
}
