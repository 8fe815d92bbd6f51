package stream

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/internal/objects"
)

// exchange is one HTTP request on its way through a data plane: messages in, messages out. What it does to the world it
// does by choose, count, finish and end, in the files beside this one. It is owned by one goroutine.
//
// A request is decided as soon as it can be and not before: by its headers where no body is shown or none matters, else
// when the model is known. Until then nothing is let through: what was not decided cannot be changed any more.
type exchange struct {
	server *Server
	caller

	phase phase
	mode  mode // of the request's body
	shown mode // of the answer's body
	// announced says that the data plane announced its modes.
	announced bool
	hints     hints
	in        request
	op        openai.Operation
	rest      kserve.REST        // of a request of V2 by REST
	call      *call              // of a gRPC call
	errand    *relaytoken.Errand // of a request that the inner server sends; nil of all others
	chunks    []byte             // the body so far, where it comes in chunks
	watched   bool               // the stop of the Server ends it
	out       sender
	open      bool             // it is among the open exchanges of the Server
	vacant    outcome.Progress // of the last record, if its endpoint was vacant; the Server's
	late      late
	kept      int // bytes of it that count in Server.kept
	encoded

	held
	picked
	answered
}

// phase is how far the request has come.
type phase uint8

const (
	// fresh: nothing has come.
	fresh phase = iota
	// reading: the headers have come, and the rest is waited for.
	reading
	// passing: it is decided, and the rest of its body goes through as it comes.
	passing
	// sent: it is decided and whole.
	sent
	// dropping: extproc will answer it itself, and drops its body until then.
	dropping
	// replied: extproc answered it itself.
	replied
)

// mode is how a data plane shows a body.
type mode = extprocfilterv3.ProcessingMode_BodySendMode

const (
	modeNone     = extprocfilterv3.ProcessingMode_NONE
	modeStreamed = extprocfilterv3.ProcessingMode_STREAMED
	modeBuffered = extprocfilterv3.ProcessingMode_BUFFERED
	modePartial  = extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL
	modeDuplex   = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// errProtocol is a message that a data plane should not have sent: a fault of its configuration.
type errProtocol string

func (e errProtocol) Error() string { return string(e) }

func newExchange(s *Server, c caller) *exchange { return &exchange{server: s, caller: c} }

type responses = []*extprocv3.ProcessingResponse

// receive returns what to say to a message that came at a time, or an error that ends the stream.
func (x *exchange) receive(m *extprocv3.ProcessingRequest, now time.Time) (responses, error) {
	x.hints.read(m.GetMetadataContext())
	x.overridden = false
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if x.phase != fresh {
			return nil, errProtocol("ext_proc sends the headers of a request twice")
		}
		if err := x.configure(m.GetProtocolConfig()); err != nil {
			return nil, err
		}
		x.phase = reading
		x.began = now
		x.in = readRequest(r.RequestHeaders.GetHeaders())
		if err := x.openErrand(); err != nil {
			return x.fail(err, ""), nil
		}
		if x.in.written = x.in.path; x.rewrite != nil {
			x.in.path = x.rewrite.Path(x.in.path)
		}
		return x.requestHeaders(r.RequestHeaders.GetEndOfStream(), now), nil
	case *extprocv3.ProcessingRequest_RequestBody:
		return x.requestBody(r.RequestBody.GetBody(), r.RequestBody.GetEndOfStream(), now)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return x.requestTrailers(now)
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return x.responseHeaders(r.ResponseHeaders, now), nil
	case *extprocv3.ProcessingRequest_ResponseBody:
		return x.responseBody(r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream(), now), nil
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return x.responseTrailers(now), nil
	}
	return nil, errProtocol(fmt.Sprintf("ext_proc sends %T, which extproc does not know", m.GetRequest()))
}

// configure takes the modes that the data plane announces. One that announces none shows the request as it comes, which
// is what endpoint pickers are asked with: see requestHeaders for when it shows no body.
func (x *exchange) configure(c *extprocv3.ProtocolConfiguration) error {
	x.mode, x.shown = modeDuplex, modeDuplex
	if c == nil {
		return nil
	}
	x.announced = true
	x.mode, x.shown = c.GetRequestBodyMode(), c.GetResponseBodyMode()
	switch x.mode {
	case modeNone, modeBuffered, modePartial, modeDuplex:
		return nil
	case modeStreamed:
		return errProtocol("the request_body_mode of ext_proc is STREAMED, in which the headers are gone before the model is known: set FULL_DUPLEX_STREAMED, BUFFERED or NONE")
	}
	return errProtocol(fmt.Sprintf("the request_body_mode of ext_proc is %s: set FULL_DUPLEX_STREAMED, BUFFERED or NONE", x.mode))
}

// endable says whether the request needs its exchange no more: it is decided and whole, and nothing is shown of the answer.
func (x *exchange) endable() bool {
	return x.front == Own && (x.phase == sent && x.announced && x.shown == modeNone || x.phase == replied)
}

// leftAlone says whether the exchange ends because the Server stops, and not because its request has: that goes on, and counts on.
func (x *exchange) leftAlone() bool { return x.watched && x.server.stopping.Err() != nil }

// requestHeaders turns away what needs no body to be turned away, and decides what needs no body to be decided.
func (x *exchange) requestHeaders(end bool, now time.Time) responses {
	if kserve.IsCall(x.in.contentType) && (x.front == Own && x.mode == modeNone || x.front != Own && x.in.ids != nil) {
		return x.beginCall(end, now)
	}
	if v2 := kserve.Find(x.in.method, x.in.path); v2.Op != kserve.None && (x.inferenceOnly() || v2.Op.Names()) {
		return x.beginREST(v2, end, now)
	}
	op, name := openai.Find(x.in.method, x.in.path)
	if op == openai.Health && !x.inferenceOnly() {
		op = openai.None // the engines' own
	}
	x.op = op
	large := x.tooLarge()
	switch {
	case large && op != openai.None && op != openai.Health:
		return x.failLate(errTooLarge)
	case op == openai.None && x.inferenceOnly() && kserve.IsREST(x.in.path):
		return x.fail(errUnknownV2, "")
	case op == openai.None && x.inferenceOnly():
		return x.fail(errUnknownPath, "")
	case op == openai.None && openai.Closed(x.in.path):
		return x.fail(errClosedPath, "")
	case op == openai.Health:
		return x.health()
	case op == openai.ListModels, op == openai.RetrieveModel:
		if reply := x.models(name); reply != nil {
			return reply
		}
		if openai.Closed(x.in.path) {
			return x.fail(errClosedPath, "") // a name that is a way to another path
		}
		return x.pass("", end, now) // the pool's engines give no list that could be given on
	case op == openai.Stored:
		return x.pass(name, end, now)
	case op == openai.None && (end || x.in.method != "POST" || !isJSON(x.in.contentType)):
		return x.pass("", end, now)
	}
	if err := x.readEncoding(); err != nil && op != openai.None {
		return x.fail(err, "")
	}
	if large { // on a path that is none of ours
		return x.failLate(errTooLarge)
	}
	switch {
	case x.codings != nil && x.mode == modeNone && !end:
		return x.askForBody()
	case x.mode == modeNone:
		return x.named(now)
	case x.hints.model != "" && !x.announced && !end:
		return x.named(now)
	case end:
		x.phase = sent
		return x.whole(nil, endHeaders, now)
	case x.mode == modeDuplex:
		return nil
	}
	return responses{goOnHeaders}
}

// tooLarge says whether the headers announce a body that is too large, where extproc may see a whole one.
func (x *exchange) tooLarge() bool {
	n, err := strconv.ParseUint(x.in.length, 10, 64)
	return err == nil && n > maxBody && (x.mode != modeNone || x.front == Own) && x.mode != modePartial
}

// requestBody takes the body, or the next of its chunks.
func (x *exchange) requestBody(chunk []byte, end bool, now time.Time) (responses, error) {
	switch {
	case x.phase == fresh:
		return nil, errProtocol("ext_proc sends a body before its headers: set request_header_mode to SEND")
	case x.phase == replied:
		return nil, nil // it was under way when the reply was given
	case x.phase == dropping && !end:
		return nil, nil
	case x.phase == dropping:
		x.failNow()
		return nil, nil
	case x.mode == modeDuplex:
		return x.chunk(chunk, end, now), nil
	case x.phase == passing:
		x.phase, x.sentAt = sent, now
		return responses{goOnBody}, nil
	case x.phase != reading:
		return responses{goOnBody}, nil
	case x.mode == modePartial && !end:
		return x.prefix(chunk, now), nil
	}
	x.phase = sent
	if err := x.decode(&chunk); err != nil {
		return x.fail(err, ""), nil
	}
	if x.rest.Op != kserve.None {
		return x.decideREST(x.restAsk(), chunk, endBuffered, now), nil
	}
	return x.whole(chunk, endBuffered, now), nil
}

// chunk takes a chunk of a body that is shown as it comes. After its end there may come another end (envoy #46237).
func (x *exchange) chunk(chunk []byte, end bool, now time.Time) responses {
	switch {
	case x.phase == sent:
		return nil
	case x.call != nil && x.call.messages != nil:
		return x.callChunk(chunk, end, now)
	case x.phase == passing:
		if end {
			x.phase = sent
			x.sentAt = now
		}
		return chunks(chunk, end)
	}
	if len(x.chunks)+len(chunk) > maxBody {
		return x.fail(errTooLarge, "")
	}
	x.chunks = append(x.chunks, chunk...)
	if !end {
		return nil
	}
	x.phase = sent
	return x.whole(x.chunks, endChunk, now)
}

// requestTrailers come after a body that said nothing of its end.
func (x *exchange) requestTrailers(now time.Time) (responses, error) {
	switch {
	case x.phase == fresh:
		return nil, errProtocol("ext_proc sends trailers before headers: set request_header_mode to SEND")
	case x.phase == replied:
		return nil, nil
	case x.phase == dropping:
		x.failNow()
		return nil, nil
	case x.call != nil && x.phase != sent:
		return x.callEnds(now), nil
	case x.phase == reading && x.mode != modeDuplex:
		_, err := openai.Parse(openai.JSON, "", nil)
		return x.fail(err, ""), nil // trailers without a body before them
	case x.phase == reading:
		x.phase = sent
		return x.whole(x.chunks, endTrailers, now), nil
	case x.phase == passing:
		x.phase = sent
		x.sentAt = now
	}
	return responses{goOnTrailers}, nil
}

// ending is how a request's body ended, and with that what an answer to it looks like.
type ending uint8

const (
	endHeaders  ending = iota // there is none
	endLater                  // it may follow, and is not needed
	endBuffered               // in one message
	endChunk                  // with its last chunk
	endTrailers               // with trailers after its last chunk
)

// whole decides where a request goes of which everything is known.
func (x *exchange) whole(body []byte, how ending, now time.Time) responses {
	if len(body) > maxBody {
		return x.fail(errTooLarge, "")
	}
	r, err := x.defaulted(x.judge(openai.Parse(x.kind(), x.in.contentType, body)))
	if err != nil {
		return x.fail(err, "")
	}
	return x.decided(asks(r), body, how, now)
}

// prefix decides where a request goes of which only the beginning is shown.
func (x *exchange) prefix(body []byte, now time.Time) responses {
	x.phase = sent
	r, err := x.defaulted(x.judge(openai.ParsePrefix(x.kind(), x.in.contentType, body)))
	if err != nil {
		return x.fail(err, "")
	}
	return x.decided(asks(r), body, endBuffered, now)
}

// kind is how to read the body. A path that only other gateways let pass is read as JSON, for the model that it may name.
func (x *exchange) kind() openai.Operation {
	if x.op == openai.None {
		return openai.JSON
	}
	return x.op
}

// judge lets a body pass that is none of ours to judge, as a request for no model: on a path that we do not know, if its
// name is no danger.
func (x *exchange) judge(r openai.Request, err error) (openai.Request, error) {
	if err != nil && x.op == openai.None && !errors.Is(err, openai.ErrName) {
		return openai.Request{}, nil
	}
	return r, err
}

// decided decides by a body that was read, and answers.
func (x *exchange) decided(a ask, body []byte, how ending, now time.Time) responses {
	if err := x.send(a, body, now); err != nil {
		return x.missed(err, a.model, len(body), now, func(now time.Time) responses { return x.decided(a, body, how, now) })
	}
	common := x.common()
	changed := x.decoded
	if x.renames(a) {
		body, changed = a.text.Rename(body, x.decision().Model), true
	}
	return x.goOn(common, body, changed, how)
}

// goOn sends on a request that is decided, with its body where that is another than the one that came.
func (x *exchange) goOn(common *extprocv3.CommonResponse, body []byte, changed bool, how ending) responses {
	if changed {
		x.resize(common, len(body))
		if how == endBuffered {
			common.BodyMutation = replaceBody(body)
		}
	}
	if x.decoded {
		common.HeaderMutation.RemoveHeaders = append(slices.Clip(common.HeaderMutation.RemoveHeaders), "content-encoding")
	}
	switch how {
	case endHeaders, endLater:
		return responses{x.withMetadata(answerHeaders(common))}
	case endBuffered:
		return responses{x.withMetadata(answerBody(common))}
	}
	out := append(responses{x.withMetadata(answerHeaders(common))}, chunks(body, how == endChunk)...)
	if how == endTrailers {
		out = append(out, goOnTrailers)
	}
	return out
}

// pass decides a request that names no model. About is the id of the answer that it is about, if it is about one.
func (x *exchange) pass(about string, end bool, now time.Time) responses {
	if pools := x.apart(about); pools != nil {
		return x.searchEach(pools)
	}
	if err := x.send(ask{previous: about}, nil, now); err != nil {
		return x.fail(err, "")
	}
	x.phase = passing
	if end || x.mode == modeNone {
		x.phase = sent
	}
	return responses{x.withMetadata(answerHeaders(x.common()))}
}

// named decides by the model that the data plane read from the body itself.
func (x *exchange) named(now time.Time) responses {
	err := errNoModel
	if x.hints.model != "" {
		err = openai.CheckText(x.hints.model)
	}
	r, err := x.judge(openai.Request{Model: x.hints.model}, err)
	if err != nil {
		return x.fail(err, "")
	}
	return x.byName(asks(r), now)
}

// byName decides by nothing but the model.
func (x *exchange) byName(a ask, now time.Time) responses {
	again := func(now time.Time) responses { return x.byName(a, now) }
	for range maxChoices {
		if err := x.choose(a, nil, now); err != nil {
			return x.missed(err, a.model, 0, now, again)
		}
		if x.renames(a) {
			switch {
			case !x.announced:
				return nil // the body may come still
			case x.server.ModeOverride:
				return x.askForBody()
			}
			return x.fail(errRename, a.model)
		}
		if x.count(a, now) {
			x.phase = sent
			if !x.announced {
				x.phase = passing
			}
			return responses{x.withMetadata(answerHeaders(x.common()))}
		}
	}
	return x.missed(x.taken(), a.model, 0, now, again)
}

// fail replies with an error.
func (x *exchange) fail(err error, model string) responses {
	if x.errand != nil {
		model = x.errand.Models[0].Name
	}
	e := describe(err, model)
	if errors.Is(err, errExpired) && x.stated() > 0 {
		e.call = kserve.DeadlineExceeded // its own client has set it
	}
	if pool := x.target.Pool; e.Code == string(outcome.NoEndpoint) && pool != (objects.Name{}) {
		x.server.Meter.NoEndpoint(x.target.Route.String(), pool.String())
	}
	return x.reply(e.status, e.Code, e.response(x.api()))
}

func (x *exchange) reply(status int, code string, m *extprocv3.ProcessingResponse) responses {
	x.phase = replied
	x.takeBack()
	_ = x.keep(0) // nothing of it is read any more
	x.chunks = nil
	x.server.Meter.Replied(status, code)
	return responses{m}
}

func isJSON(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}
