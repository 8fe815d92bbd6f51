package stream

import (
	"errors"
	"strings"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/internal/objects"
)

// beginREST answers a request of V2 that asks about the server or whether a model is ready, and decides any other: its path says all, so
// that no body is needed.
func (x *exchange) beginREST(r kserve.REST, end bool, now time.Time) responses {
	x.rest = r
	if r.Op.Names() {
		if err := kserve.CheckID(r.Model); err != nil {
			return x.fail(err, "")
		}
	}
	switch r.Op {
	case kserve.Server:
		return x.replyWith("server", serverMetadata)
	case kserve.Live:
		return x.replyWith("live", map[string]bool{"live": true})
	case kserve.Ready:
		if err := x.unwell(); err != nil {
			return x.fail(err, "")
		}
		return x.replyWith("ready", map[string]bool{"ready": true})
	case kserve.ModelReady:
		return x.modelReady(ask{model: r.Model}, now)
	}
	if x.front == Own && !end {
		if err := x.readEncoding(); err != nil {
			return x.fail(err, "")
		}
		if x.codings != nil {
			return x.askForBody()
		}
	}
	how := endLater
	if end {
		how = endHeaders
	}
	return x.decideREST(x.restAsk(), nil, how, now)
}

// restAsk is what a request of V2 by REST asks for.
func (x *exchange) restAsk() ask {
	return ask{model: x.rest.Model, stream: x.rest.Op == kserve.InferStream}
}

// transcodes says whether the inner server is to make a gRPC call of a request for a pool, which takes nothing else.
func (x *exchange) transcodes(p *objects.Pool) bool {
	return x.rest.Op != kserve.None && x.rest.Op != kserve.ModelReady && p != nil && p.CallsOnly && x.innerServes(p.Name)
}

// decideREST decides by the model that the path names. Where its engine knows it by another name, the path says that. Body is nil where it
// is not shown.
func (x *exchange) decideREST(a ask, body []byte, how ending, now time.Time) responses {
	err := x.send(a, nil, now)
	if errors.Is(err, errTranscode) {
		x.model = x.target.Adapter // what copies and the log say; the call is decided by itself
		x.toInner(relaytoken.Transcode, relaytoken.Model{Name: a.model, Target: x.found})
		return x.goOn(x.common(), body, x.decoded, how)
	}
	if err != nil {
		return x.missed(err, a.model, len(body), now, func(now time.Time) responses { return x.decideREST(a, body, how, now) })
	}
	common := x.common()
	if x.renames(a) {
		path, ok := x.renamedPath()
		if !ok {
			return x.fail(errRename, a.model)
		}
		common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, header(":path", path))
	}
	x.phase = passing
	if how != endLater || x.mode == modeNone {
		x.phase = sent
	}
	return x.goOn(common, body, x.decoded, how)
}

// renamedPath is the path as the client wrote it, with the engine's name of the model. Envoy rewrites it after that, where a route says so:
// then the model must stand in it as in the path that engines see.
func (x *exchange) renamedPath() (string, bool) {
	to := x.rest.Rename(x.decision().Model)
	if x.rewrite == nil {
		return to, true
	}
	from, ok := strings.CutSuffix(x.in.written, x.rest.FromModel())
	return from + strings.TrimPrefix(to, x.rest.BeforeModel()), ok
}

// modelReady answers whether requests for a model are answered: it is loaded, or would be for them. None is loaded by asking.
func (x *exchange) modelReady(a ask, now time.Time) responses {
	err := x.wouldAnswer(a, now)
	if err != nil {
		return x.fail(err, a.model)
	}
	return x.replyWith("ready", struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
	}{a.model, true})
}

// wouldAnswer returns why a request for a model would not be answered, nil if it would, maybe after a load.
func (x *exchange) wouldAnswer(a ask, now time.Time) error {
	err := x.choose(a, nil, now)
	x.dropPicks()
	m, missed := err.(*miss) //nolint:errorlint // choose returns it as it is
	if !missed {
		return err
	}
	switch reason := x.server.Fleet.View().Failures[m.key]; reason {
	case "":
		return nil
	case wire.UnknownModel:
		return flow.ErrUnknown
	default:
		return flow.Failed{Reason: reason}
	}
}
