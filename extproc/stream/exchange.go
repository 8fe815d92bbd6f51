package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/objects"
)

// exchange is one HTTP request on its way through a data plane: it takes messages in whatever order and mode they come, gives the protocol of
// the request what it needs to decide, and sends on or replies. It is owned by one goroutine.
//
// A request is decided as soon as it can be and not before: by its headers where no body is shown or none matters, else
// when the model is known. Until then nothing is let through: what was not decided cannot be changed any more.
type exchange struct {
	server     *Server
	scope      scope
	in         request
	dispatcher dispatcher
	// protocol is the API that the request speaks, nil before its headers: one of the next two, or a call.
	protocol protocol
	openAI   openAIRequest
	v2       v2Request

	phase   phase
	chunks  []byte // the body so far, where it comes in chunks
	encoded encoded
	kept    int // bytes of it that count in Server.kept
	out     sender
	late    late
	watched bool             // the stop of the Server ends it
	open    bool             // it is among the open exchanges of the Server
	vacant  outcome.Progress // of the last record, if its endpoint was vacant; guarded by open.mu of the Server
}

// protocol is the API that a request speaks: it finds what the request asks for, has the dispatcher decide that, and writes the decision into the
// request.
type protocol interface {
	// begin takes the headers, after which no body comes at the end. It decides the request, replies, or returns what makes the data plane go on.
	begin(end bool, now time.Time) responses
	// whole takes the body, with all of which the request is decided.
	whole(body []byte, how ending, now time.Time) responses
	// chunk takes a piece of a body that is shown as it comes. It returns false if the protocol needs no pieces, but the whole.
	chunk(piece []byte, end bool, now time.Time) (out responses, taken bool)
	// trailers takes the trailers of the request. It returns false if they mean nothing to the protocol.
	trailers(now time.Time) (out responses, taken bool)
}

// atOnce is part of protocols whose bodies are read as a whole.
type atOnce struct{}

func (atOnce) chunk([]byte, bool, time.Time) (responses, bool) { return nil, false }
func (atOnce) trailers(time.Time) (responses, bool)            { return nil, false }

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

// errProtocol is a message that a data plane should not have sent: a fault of its configuration.
type errProtocol string

func (e errProtocol) Error() string { return string(e) }

func (s *Server) newExchange(of scope) *exchange {
	x := &exchange{server: s, scope: of}
	d := &x.dispatcher
	d.server, d.scope, d.in = s, &x.scope, &x.in
	return x
}

type responses = []*extprocv3.ProcessingResponse

// receive returns what to say to a message that came at a time, or an error that ends the stream.
func (x *exchange) receive(m *extprocv3.ProcessingRequest, now time.Time) (responses, error) {
	x.scope.hints.read(m.GetMetadataContext())
	x.dispatcher.overridden = false
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if x.phase != fresh {
			return nil, errProtocol("ext_proc sends the headers of a request twice")
		}
		if err := x.scope.configure(m.GetProtocolConfig()); err != nil {
			return nil, err
		}
		x.phase = reading
		x.dispatcher.began = now
		x.in = readRequest(r.RequestHeaders.GetHeaders())
		if err := x.openToken(); err != nil {
			return x.fail(err, ""), nil
		}
		if x.in.written = x.in.path; x.scope.rewrite != nil {
			x.in.path = x.scope.rewrite.Path(x.in.path)
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

// endable says whether the request needs its exchange no more: it is decided and whole, and nothing is shown of the answer.
func (x *exchange) endable() bool {
	return x.scope.front == Own && (x.phase == sent && x.scope.announced && x.scope.shown == modeNone || x.phase == replied)
}

// leftAlone says whether the exchange ends because the Server stops, and not because its request has: that goes on, and counts on.
func (x *exchange) leftAlone() bool { return x.watched && x.server.stopping.Err() != nil }

// requestHeaders finds the protocol of the request, which answers its headers.
func (x *exchange) requestHeaders(end bool, now time.Time) responses {
	if kserve.IsCall(x.in.contentType) && (x.scope.front == Own && x.scope.mode == modeNone || x.scope.front != Own && x.in.ids != nil) {
		x.protocol = &call{exchange: x}
		x.dispatcher.traits = traits{call: true, tokenless: true}
	} else if v2 := kserve.Find(x.in.method, x.in.path); v2.Op != kserve.None && (x.scope.inferenceOnly() || v2.Op.Names()) {
		x.v2 = v2Request{exchange: x, REST: v2}
		x.protocol = &x.v2
		x.dispatcher.traits = traits{tokenless: true, runs: v2.Op.Runs(), converts: v2.Op != kserve.ModelReady}
	} else {
		x.openAI = openAIRequest{exchange: x}
		x.protocol = &x.openAI
	}
	return x.protocol.begin(end, now)
}

// tooLarge says whether the headers announce a body that is too large, where extproc may see a whole one.
func (x *exchange) tooLarge() bool {
	n, err := strconv.ParseUint(x.in.length, 10, 64)
	return err == nil && n > maxBody && (x.scope.mode != modeNone || x.scope.front == Own) && x.scope.mode != modePartial
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
	case x.scope.mode == modeDuplex:
		return x.requestChunk(chunk, end, now), nil
	case x.phase == passing:
		x.phase, x.dispatcher.sentAt = sent, now
		return responses{goOnBody}, nil
	case x.phase != reading:
		return responses{goOnBody}, nil
	case x.scope.mode == modePartial && !end:
		x.phase = sent
		return x.protocol.whole(chunk, endCut, now), nil
	}
	x.phase = sent
	if err := x.decode(&chunk); err != nil {
		return x.fail(err, ""), nil
	}
	return x.protocol.whole(chunk, endBuffered, now), nil
}

// requestChunk takes a chunk of a body that is shown as it comes. After its end there may come another end (envoy #46237).
func (x *exchange) requestChunk(chunk []byte, end bool, now time.Time) responses {
	if x.phase == sent {
		return nil
	}
	if out, taken := x.protocol.chunk(chunk, end, now); taken {
		return out
	}
	if x.phase == passing {
		if end {
			x.phase = sent
			x.dispatcher.sentAt = now
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
	return x.protocol.whole(x.chunks, endChunk, now)
}

// requestTrailers come after a body that said nothing of its end.
func (x *exchange) requestTrailers(now time.Time) (responses, error) {
	switch x.phase {
	case fresh:
		return nil, errProtocol("ext_proc sends trailers before headers: set request_header_mode to SEND")
	case replied:
		return nil, nil
	case dropping:
		x.failNow()
		return nil, nil
	}
	if out, taken := x.protocol.trailers(now); taken {
		return out, nil
	}
	switch {
	case x.phase == reading && x.scope.mode != modeDuplex:
		_, err := openai.Parse(openai.JSON, "", nil)
		return x.fail(err, ""), nil // trailers without a body before them
	case x.phase == reading:
		x.phase = sent
		return x.protocol.whole(x.chunks, endTrailers, now), nil
	case x.phase == passing:
		x.phase = sent
		x.dispatcher.sentAt = now
	}
	return responses{goOnTrailers}, nil
}

// ending is how a request's body ended, and with that what an answer to it looks like.
type ending uint8

const (
	endHeaders  ending = iota // there is none
	endLater                  // it may follow, and is not needed
	endBuffered               // in one message
	endCut                    // in one message, which has only its beginning
	endChunk                  // with its last chunk
	endTrailers               // with trailers after its last chunk
)

// goOn sends on a request that is decided, with its body where that is another than the one that came.
func (x *exchange) goOn(common *extprocv3.CommonResponse, body []byte, changed bool, how ending) responses {
	if changed {
		x.resize(common, len(body))
		if how == endBuffered {
			common.BodyMutation = replaceBody(body)
		}
	}
	if x.encoded.decoded {
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

// fail replies with an error.
func (x *exchange) fail(err error, model string) responses {
	if x.scope.relayed != nil {
		model = x.scope.relayed.Models[0].Name
	}
	e := describe(err, model)
	if errors.Is(err, errExpired) && x.in.deadline() > 0 {
		e.call = kserve.DeadlineExceeded // its own client has set it
	}
	if pool := x.dispatcher.target.Pool; e.Code == string(outcome.NoEndpoint) && pool != (objects.Name{}) {
		x.server.Meter.NoEndpoint(x.dispatcher.target.Route.String(), pool.String())
	}
	return x.reply(e.status, e.Code, e.response(x.api()))
}

func (x *exchange) reply(status int, code string, m *extprocv3.ProcessingResponse) responses {
	x.phase = replied
	x.dispatcher.takeBack()
	_ = x.keep(0) // nothing of it is read any more
	x.chunks = nil
	x.server.Meter.Replied(status, code)
	return responses{m}
}

// resize makes the content length right for a body of another length. Where bodies go in chunks, or only their beginning
// is known, the length goes.
func (x *exchange) resize(common *extprocv3.CommonResponse, length int) {
	switch {
	case x.in.length == "" || x.scope.mode == modePartial: // Envoy takes it away itself
	case x.scope.mode == modeDuplex:
		common.HeaderMutation.RemoveHeaders = append(slices.Clip(common.HeaderMutation.RemoveHeaders), "content-length")
	default:
		common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, header("content-length", strconv.Itoa(length)))
	}
}

// withMetadata completes the message that sends a request on, and lets go of what was needed to decide it: an answer may take minutes.
func (x *exchange) withMetadata(m *extprocv3.ProcessingResponse) *extprocv3.ProcessingResponse {
	x.dispatcher.addMetadata(m)
	x.in.all, x.chunks = nil, nil
	return m
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

// missed has a request wait that may be decided later, and replies to any other.
func (x *exchange) missed(err error, model string, bytes int, now time.Time, decide func(now time.Time) responses) responses {
	refuse := func(err error) responses { return x.fail(err, model) }
	if !x.dispatcher.join(err, model, waiting{bytes: int64(bytes), decide: decide, refuse: refuse}, now) {
		return x.fail(err, model)
	}
	if !x.dispatcher.waits.asks {
		x.letGo() // what waits counts there
	}
	return nil
}

// wait keeps a request that waits until there is something to say, as [dispatcher.wait].
func (x *exchange) wait(ctx context.Context, send func(*extprocv3.ProcessingResponse) error) (responses, error) {
	if x.dispatcher.waits.asks {
		return x.ask(ctx)
	}
	return x.dispatcher.wait(ctx, send)
}

// ask waits until control confirms that all it published is in force, and decides the request again. It returns an error when the request is over.
// The request's body counts as buffered meanwhile.
func (x *exchange) ask(ctx context.Context) (responses, error) {
	before, during := x.kept, int(x.dispatcher.waits.bytes)
	if x.dispatcher.traits.call {
		during += before // an incomplete message is not part of waits
	}
	err := x.keep(during)
	if err == nil {
		err = x.server.askControl(ctx)
		_ = x.keep(before)
	}
	switch {
	case err == nil:
		return x.dispatcher.again(false, time.Now()), nil
	case ctx.Err() != nil:
		return nil, err
	}
	return x.dispatcher.refuse(err), nil
}

// end is the end of the stream, at a time. It may be called at any time and more than once.
func (x *exchange) end(now time.Time) {
	_ = x.keep(0)
	x.dispatcher.end(now)
}
