package stream

import (
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// openAIRequest is a request of OpenAI's or Anthropic's API. It may also be a request for an
// unknown path that another gateway lets through.
type openAIRequest struct {
	atOnce
	*exchange
	op openai.Operation
}

// begin handles the headers. It decides or rejects the request if the body is not needed for that.
func (o *openAIRequest) begin(end bool, now time.Time) responses {
	op, name := openai.Find(o.in.method, o.in.path)
	if op == openai.Health && !o.scope.inferenceOnly() {
		op = openai.None // the path belongs to the engine's API
	}
	o.op, o.dispatcher.traits.guess = op, op == openai.None
	large := o.tooLarge()
	switch {
	case large && op != openai.None && op != openai.Health:
		return o.failLate(errTooLarge)
	case op == openai.None && o.scope.inferenceOnly() && kserve.IsREST(o.in.path):
		return o.fail(errUnknownV2, "")
	case op == openai.None && o.scope.inferenceOnly():
		return o.fail(errUnknownPath, "")
	case op == openai.None && openai.Closed(o.in.path):
		return o.fail(errClosedPath, "")
	case op == openai.Health:
		return o.health()
	case op == openai.ListModels, op == openai.RetrieveModel:
		if reply := o.models(name); reply != nil {
			return reply
		}
		if openai.Closed(o.in.path) {
			return o.fail(errClosedPath, "") // the escaped name would lead to another path
		}
		return o.pass("", end, now) // the pool's engines list no models, so an engine answers
	case op == openai.Stored:
		return o.pass(name, end, now)
	case op == openai.None && (end || o.in.method != "POST" || !isJSON(o.in.contentType)):
		return o.pass("", end, now)
	}
	if err := o.readEncoding(); err != nil && op != openai.None {
		return o.fail(err, "")
	}
	if large { // not reached for paths that Headgate knows
		return o.failLate(errTooLarge)
	}
	switch {
	case o.encoded.codings != nil && o.scope.mode == modeNone && !end:
		return o.askForBody()
	case o.scope.mode == modeNone:
		return o.named(now)
	case o.scope.hints.model != "" && !o.scope.announced && !end:
		return o.named(now)
	case end:
		o.phase = sent
		return o.whole(nil, endHeaders, now)
	case o.scope.mode == modeDuplex:
		return nil
	}
	return responses{goOnHeaders}
}

// whole decides a request by its body.
func (o *openAIRequest) whole(body []byte, how ending, now time.Time) responses {
	if len(body) > maxBody {
		return o.fail(errTooLarge, "")
	}
	parse := openai.Parse
	if how == endCut {
		parse, how = openai.ParsePrefix, endBuffered
	}
	r, err := o.scope.defaulted(o.judge(parse(o.kind(), o.in.contentType, body)))
	if err != nil {
		return o.fail(err, "")
	}
	return o.decided(o.asks(r), body, how, now)
}

// kind returns the operation, which determines the format of the body. A body of an unknown path is
// read as JSON, because it may name a model.
func (o *openAIRequest) kind() openai.Operation {
	if o.op == openai.None {
		return openai.JSON
	}
	return o.op
}

// judge ignores errors in the body of an unknown path: such a request names no model. But a
// dangerous model name stays an error.
func (o *openAIRequest) judge(r openai.Request, err error) (openai.Request, error) {
	if err != nil && o.op == openai.None && !errors.Is(err, openai.ErrName) {
		return openai.Request{}, nil
	}
	return r, err
}

// decided decides a request whose body was parsed, and forwards it.
func (o *openAIRequest) decided(a ask, body []byte, how ending, now time.Time) responses {
	if err := o.dispatcher.send(a, body, now); err != nil {
		return o.queueOrReply(err, a.model, len(body), now, func(now time.Time) responses { return o.decided(a, body, how, now) })
	}
	common := o.dispatcher.common()
	changed := o.encoded.decoded
	if o.dispatcher.renames(a) {
		body, changed = a.text.Rename(body, o.dispatcher.first().Model), true
	}
	return o.goOn(common, body, changed, how)
}

// pass decides a request that names no model. About is the ID of the stored response that the
// request is about; empty if it is about none.
func (o *openAIRequest) pass(about string, end bool, now time.Time) responses {
	if pools := o.scope.apart(about); pools != nil {
		return o.searchEach(pools)
	}
	if err := o.dispatcher.send(ask{previous: about, stored: true}, nil, now); err != nil {
		return o.fail(err, "")
	}
	o.phase = passing
	if end || o.scope.mode == modeNone {
		o.phase = sent
	}
	return o.forward()
}

// named decides a request by the model's name that the data plane has read from the body.
func (o *openAIRequest) named(now time.Time) responses {
	var err error = errNoModel
	if o.scope.hints.model != "" {
		err = openai.CheckText(o.scope.hints.model)
	}
	r, err := o.judge(openai.Request{Model: o.scope.hints.model}, err)
	if err != nil {
		return o.fail(err, "")
	}
	return o.byName(o.asks(r), now)
}

// byName decides a request by the model's name, without the body.
func (o *openAIRequest) byName(a ask, now time.Time) responses {
	again := func(now time.Time) responses { return o.byName(a, now) }
	for range maxChoices {
		if err := o.dispatcher.choose(a, nil, now); err != nil {
			return o.queueOrReply(err, a.model, 0, now, again)
		}
		if o.dispatcher.renames(a) {
			switch {
			case !o.scope.announced:
				return nil // the model may be in the body, which has not arrived
			case o.server.ModeOverride:
				return o.askForBody()
			}
			return o.fail(errRename, a.model)
		}
		if o.dispatcher.count(a, now) {
			o.phase = sent
			if !o.scope.announced {
				o.phase = passing
			}
			return o.forward()
		}
	}
	return o.queueOrReply(o.dispatcher.taken(a.model), a.model, 0, now, again)
}

func isJSON(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// health replies whether any endpoint that the request may use is healthy.
func (o *openAIRequest) health() responses {
	if err := o.scope.unwell(); err != nil {
		return o.fail(err, "")
	}
	return o.replyWith("health", map[string]string{"status": "ok"})
}

// models replies with the list of models, or with a single model if escaped is its name. It returns
// nil if only the engines know their models and do not list them.
func (o *openAIRequest) models(escaped string) responses {
	view := o.server.Fleet.View()
	offer, err := o.scope.offer(view)
	if err != nil {
		return o.fail(err, "")
	}
	all, known := o.scope.admitted(view, offer)
	if !known {
		return nil
	}
	if o.op == openai.ListModels {
		list := struct {
			Object string      `json:"object"`
			Data   []modelJSON `json:"data"`
		}{"list", []modelJSON{}}
		for _, m := range all {
			list.Data = append(list.Data, o.scope.describeModel(view, offer, m))
		}
		return o.replyWith("models", list)
	}
	name, err := url.PathUnescape(escaped)
	if err != nil {
		return o.fail(errUnknownPath, "")
	}
	for _, m := range all {
		if m.Name == name {
			return o.replyWith("models", o.scope.describeModel(view, offer, m))
		}
	}
	return o.fail(o.scope.unknown(route.ErrUnknownModel), strings.ToValidUTF8(name, "�"))
}

// searchEach sends the request to the relay, which asks one pool after the other for a stored
// response. At most maxSearch endpoints are asked.
func (o *openAIRequest) searchEach(pools []objects.Name) responses {
	var models []relaytoken.Model
	for _, name := range pools {
		models = append(models, relaytoken.Model{Target: route.Target{Pool: name}})
	}
	o.dispatcher.aim(models[0].Target)
	return o.sendToRelay(relaytoken.Search, models...)
}

// asks returns what a request with this parsed body asks for.
func (o *openAIRequest) asks(r openai.Request) ask {
	stored := r.Previous != "" && r.Continues(o.in.path)
	return ask{model: r.Model, previous: r.Previous, stored: stored, stream: r.Stream, text: r}
}
