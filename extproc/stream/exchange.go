package stream

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/processing"
)

// exchange is one HTTP request that passes through a data plane. It receives the data plane's
// messages in any order and mode, passes the request to its protocol, and forwards the request or
// replies. One goroutine owns it.
//
// An exchange decides a request as early as possible: after the headers if the body is not needed
// or not sent to extproc, otherwise when the model is known. It forwards nothing before that,
// because forwarded parts cannot be changed.
type exchange struct {
	server     *Server
	scope      scope
	in         request
	dispatcher dispatcher
	// protocol is nil until the headers arrive. Then it is &openAI, &v2 or a call.
	protocol protocol
	openAI   openAIRequest
	v2       v2Request

	phase   phase
	chunks  []byte // the body so far, if it arrives in chunks
	encoded encoded
	kept    int // bytes of this request that are included in Server.kept
	out     sender
	// received is the last message that arrived. Its body is valid until its answers are sent,
	// which may be after a wait.
	received processing.Request
	late     late
	watched  bool             // Server.Stop ends this exchange
	open     bool             // the exchange is in Server.open
	vacant   outcome.Progress // last progress record, if its endpoint had no listener; guarded by Server.open.mu
}

// protocol handles the API of a request. It reads what the request asks for, calls the dispatcher
// to decide the request, and writes the decision into the request.
type protocol interface {
	// begin handles the headers. End means that no body follows. It decides the request, replies,
	// or returns the message that makes the data plane send the body.
	begin(end bool, now time.Time) responses
	// whole handles the complete body and decides the request.
	whole(body []byte, how ending, now time.Time) responses
	// chunk handles a piece of a body that arrives in chunks. It returns false for taken if the
	// protocol needs the complete body.
	chunk(piece []byte, end bool, now time.Time) (out responses, taken bool)
	// trailers handles the request's trailers. It returns false for taken if the protocol ignores
	// them.
	trailers(now time.Time) (out responses, taken bool)
}

// atOnce is embedded by protocols that need the complete body.
type atOnce struct{}

func (atOnce) chunk([]byte, bool, time.Time) (responses, bool) { return nil, false }
func (atOnce) trailers(time.Time) (responses, bool)            { return nil, false }

// phase is the progress of a request.
type phase uint8

const (
	// fresh: no message has arrived.
	fresh phase = iota
	// reading: the headers have arrived, but not the whole body.
	reading
	// passing: the request is decided, and the rest of its body is forwarded as it arrives.
	passing
	// sent: the request is decided and complete.
	sent
	// dropping: extproc discards the rest of the body, and replies when all of it has arrived.
	dropping
	// replied: extproc has replied.
	replied
)

// errProtocol is an error about a message that a correctly configured data plane does not send.
type errProtocol string

func (e errProtocol) Error() string { return string(e) }

func (s *Server) newExchange(of scope) *exchange {
	x := &exchange{server: s, scope: of}
	d := &x.dispatcher
	d.server, d.scope, d.in, d.fallback.d = s, &x.scope, &x.in, d
	return x
}

type responses = []*message

// receive handles a message that arrived at time now. It returns the answers to send. An error ends
// the stream.
func (x *exchange) receive(m *processing.Request, now time.Time) (responses, error) {
	x.scope.hints.read(&m.Metadata)
	x.dispatcher.overridden = false
	switch m.Part {
	case processing.RequestHeaders:
		if x.phase != fresh {
			return nil, errProtocol("ext_proc sent the headers of a request twice")
		}
		if err := x.scope.configure(m.Config); err != nil {
			return nil, err
		}
		x.phase = reading
		x.dispatcher.began = now
		x.in = readRequest(m.Headers)
		if err := x.openToken(); err != nil {
			return x.fail(err, ""), nil
		}
		if x.in.written = x.in.path; x.scope.rewrite != nil {
			x.in.path = x.scope.rewrite.Path(x.in.path)
		}
		return x.requestHeaders(m.End, now), nil
	case processing.RequestBody:
		return x.requestBody(m.Body, m.End, now)
	case processing.RequestTrailers:
		return x.requestTrailers(now)
	case processing.ResponseHeaders:
		return x.responseHeaders(m.Headers, m.End, now), nil
	case processing.ResponseBody:
		return x.responseBody(m.Body, m.End, now), nil
	case processing.ResponseTrailers:
		return x.responseTrailers(now), nil
	}
	return nil, errProtocol("ext_proc sent a message without a part of the request or the response, which extproc does not support")
}

// endable reports whether the data plane can finish the request without extproc: the request is
// decided and complete, and the data plane sends no part of the response to extproc.
func (x *exchange) endable() bool {
	return x.scope.front == Own && (x.phase == sent && x.scope.announced && x.scope.shown == modeNone || x.phase == replied)
}

// leftAlone reports whether the exchange ends because the Server stops. The request then continues
// without extproc, and is still counted as in flight.
func (x *exchange) leftAlone() bool { return x.watched && x.server.stopping.Err() != nil }

// requestHeaders finds the protocol of the request and passes the headers to it.
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

// tooLarge reports whether the content-length of a body that extproc may receive exceeds the limit.
func (x *exchange) tooLarge() bool {
	n, err := strconv.ParseUint(x.in.length, 10, 64)
	return err == nil && n > maxBody && (x.scope.mode != modeNone || x.scope.front == Own) && x.scope.mode != modePartial
}

// requestBody handles the body or the next chunk of it.
func (x *exchange) requestBody(chunk []byte, end bool, now time.Time) (responses, error) {
	switch {
	case x.phase == fresh:
		return nil, errProtocol("ext_proc sent a body before its headers: set request_header_mode to SEND")
	case x.phase == replied:
		return nil, nil // the data plane sent it before it received the reply
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
	if x.encoded.decoded {
		x.received.Release() // while the request waits, only the decoded body counts
	}
	return x.protocol.whole(chunk, endBuffered, now), nil
}

// requestChunk handles a chunk of the body. It ignores what follows the end of the body, because
// Envoy may send the end twice (envoy #46237).
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
	x.received.Release() // a request that waits needs no second copy
	if !end {
		return nil
	}
	x.phase = sent
	return x.protocol.whole(x.chunks, endChunk, now)
}

// requestTrailers handles trailers. They end a body whose last chunk did not.
func (x *exchange) requestTrailers(now time.Time) (responses, error) {
	switch x.phase {
	case fresh:
		return nil, errProtocol("ext_proc sent trailers before headers: set request_header_mode to SEND")
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
		return x.fail(err, ""), nil // the request has trailers but no body
	case x.phase == reading:
		x.phase = sent
		return x.protocol.whole(x.chunks, endTrailers, now), nil
	case x.phase == passing:
		x.phase = sent
		x.dispatcher.sentAt = now
	}
	return responses{goOnTrailers}, nil
}

// ending is how the body of a request ended. The form of the answers depends on it.
type ending uint8

const (
	endHeaders  ending = iota // the request has no body
	endLater                  // a body may follow, but is not needed
	endBuffered               // the body arrived in one message
	endCut                    // only the beginning of the body arrived, in one message
	endChunk                  // the last chunk ended the body
	endTrailers               // trailers ended the body
)

// goOn forwards a decided request. If changed is true, body replaces the body that arrived.
func (x *exchange) goOn(common *processing.Changes, body []byte, changed bool, how ending) responses {
	if changed {
		x.resize(common, len(body))
		if how == endBuffered {
			common.Replaces, common.Body = true, body
		}
	}
	if x.encoded.decoded {
		common.Remove = append(slices.Clip(common.Remove), "content-encoding")
	}
	switch how {
	case endHeaders, endLater:
		return responses{x.withMetadata(&message{Part: processing.RequestHeaders, Changes: common})}
	case endBuffered:
		return responses{x.withMetadata(&message{Part: processing.RequestBody, Changes: common})}
	}
	out := append(responses{x.withMetadata(&message{Part: processing.RequestHeaders, Changes: common})}, chunks(body, how == endChunk)...)
	if how == endTrailers {
		out = append(out, goOnTrailers)
	}
	return out
}

// forward forwards the headers of a decided request. Its body is unchanged.
func (x *exchange) forward() responses {
	return responses{x.withMetadata(&message{Part: processing.RequestHeaders, Changes: x.dispatcher.common()})}
}

// fail replies to the request with an error. Model is the client's name of the model, or empty.
func (x *exchange) fail(err error, model string) responses {
	if x.scope.relayed != nil {
		model = x.scope.relayed.Models[0].Name
	}
	err = x.dispatcher.fallback.rejected(err)
	e := describe(err, model)
	if errors.Is(err, errExpired) && x.in.deadline() > 0 {
		e.call = kserve.DeadlineExceeded // the client set the deadline
	}
	if d := &x.dispatcher; e.Code == string(outcome.NoEndpoint) && d.pool != "" {
		x.server.Meter.NoEndpoint(d.route, d.pool)
	}
	x.dispatcher.recordRefusal(model, &e)
	out := e.response(x.api())
	x.dispatcher.limited.addTo(out)
	return x.reply(e.status, e.Code, out)
}

func (x *exchange) reply(status int, code string, m *message) responses {
	x.phase = replied
	x.dispatcher.takeBack()
	x.dispatcher.limited.refused(x.dispatcher.announced)
	_ = x.keep(0) // the body is no longer needed
	x.chunks = nil
	x.server.Meter.Replied(status, code)
	return responses{m}
}

// resize sets content-length to the length of a new body. If the body is sent in chunks, resize
// removes the header.
func (x *exchange) resize(common *processing.Changes, length int) {
	switch {
	case x.in.length == "" || x.scope.mode == modePartial: // in modePartial, Envoy removes the header
	case x.scope.mode == modeDuplex:
		common.Remove = append(slices.Clip(common.Remove), "content-length")
	default:
		common.Set = append(common.Set, header("content-length", strconv.Itoa(length)))
	}
}

// withMetadata completes the message that forwards a request. It also releases the request's
// headers and body, because a response may take minutes.
func (x *exchange) withMetadata(m *message) *message {
	x.dispatcher.addMetadata(m)
	x.in.settle()
	x.chunks = nil
	return m
}

// maxKept limits the bytes that are buffered for all requests: incomplete messages, decoded bodies,
// and bodies of requests that wait for control's answer.
const maxKept = 512 << 20

// keep records how many bytes are buffered for the request. It returns errCrowded if those of all
// requests together exceed maxKept.
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

// queueOrReply queues a request that failed with err but may succeed later. Any other request goes
// to its fallback. If it has none, queueOrReply replies with err.
func (x *exchange) queueOrReply(err error, model string, bytes int, now time.Time, decide func(now time.Time) responses) responses {
	reject := func(err error, now time.Time) responses {
		if x.dispatcher.fallback.use(err, now) {
			return decide(now)
		}
		return x.fail(err, model)
	}
	refuse := func(err error) responses { return reject(err, time.Now()) }
	if !x.dispatcher.join(err, model, waiting{bytes: int64(bytes), decide: decide, refuse: refuse}, now) {
		return reject(err, now)
	}
	if !x.dispatcher.waits.asks {
		x.letGo() // the queue counts the body's bytes
	}
	return nil
}

// wait blocks until a waiting request is decided or refused, and returns the answers. See
// [dispatcher.wait].
func (x *exchange) wait(ctx context.Context, send func(*message) error) (responses, error) {
	if x.dispatcher.waits.asks {
		return x.ask(ctx)
	}
	return x.dispatcher.wait(ctx, send)
}

// ask waits until this process has all that control has published, and decides the request again.
// It returns an error if the request ends meanwhile. During the wait the body counts as buffered.
func (x *exchange) ask(ctx context.Context) (responses, error) {
	before, during := x.kept, int(x.dispatcher.waits.bytes)
	if x.dispatcher.traits.call {
		during += before // waits.bytes does not include an incomplete message
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

// end handles the end of the ext_proc stream. It may be called in any phase and more than once.
func (x *exchange) end(now time.Time) {
	_ = x.keep(0)
	x.dispatcher.end(now)
}
