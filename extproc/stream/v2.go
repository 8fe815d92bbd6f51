package stream

import (
	"errors"
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
)

// v2Request is a REST request of KServe's V2 protocol.
type v2Request struct {
	atOnce
	kserve.REST
	*exchange
}

// begin handles the headers. It answers requests about the server and about a model's readiness,
// and decides all other requests. The path names the model, so the body is not needed.
func (r *v2Request) begin(end bool, now time.Time) responses {
	if r.Op.Names() {
		if err := kserve.CheckID(r.Model); err != nil {
			return r.fail(err, "")
		}
	}
	switch r.Op {
	case kserve.Server:
		return r.replyWith("server", serverMetadata)
	case kserve.Live:
		return r.replyWith("live", map[string]bool{"live": true})
	case kserve.Ready:
		if err := r.scope.unwell(); err != nil {
			return r.fail(err, "")
		}
		return r.replyWith("ready", map[string]bool{"ready": true})
	case kserve.ModelReady:
		return r.modelReady(ask{model: r.Model}, now)
	}
	if r.scope.front == Own && !end {
		if err := r.readEncoding(); err != nil {
			return r.fail(err, "")
		}
		if r.encoded.codings != nil {
			return r.askForBody()
		}
	}
	how := endLater
	if end {
		how = endHeaders
	}
	return r.whole(nil, how, now)
}

// whole decides a request by the model in its path, and replaces the model in the path by the
// engine's name. Body is nil if the data plane does not send it to extproc.
func (r *v2Request) whole(body []byte, how ending, now time.Time) responses {
	a := ask{model: r.Model, stream: r.Op == kserve.InferStream}
	err := r.dispatcher.send(a, nil, now)
	if errors.Is(err, errTranscode) {
		r.dispatcher.model = r.dispatcher.target.Adapter // for payload copies and the log; the relay's gRPC call gets its own decision
		r.dispatcher.relayTo(relaytoken.Transcode, relaytoken.Model{Name: a.model, Target: r.dispatcher.found})
		r.phase = sent
		return r.goOn(r.dispatcher.common(), body, r.encoded.decoded, how)
	}
	if err != nil {
		return r.queueOrReply(err, a.model, len(body), now, func(now time.Time) responses { return r.whole(body, how, now) })
	}
	common := r.dispatcher.common()
	if r.dispatcher.renames(a) {
		path, ok := r.renamedPath()
		if !ok {
			return r.fail(errRename, a.model)
		}
		common.Set = append(common.Set, header(":path", path))
	}
	r.phase = passing
	if how != endLater || r.scope.mode == modeNone {
		r.phase = sent
	}
	return r.goOn(common, body, r.encoded.decoded, how)
}

// renamedPath returns the client's path with the engine's name of the model. If the route rewrites
// the path afterwards, the rewritten path must name the model too. Otherwise renamedPath returns
// false.
func (r *v2Request) renamedPath() (string, bool) {
	to := r.Rename(r.dispatcher.first().Model)
	if r.scope.rewrite == nil {
		return to, true
	}
	from, ok := strings.CutSuffix(r.in.written, r.FromModel())
	return from + strings.TrimPrefix(to, r.BeforeModel()), ok
}

// modelReady replies whether requests for a model would be served, if necessary after a load. It
// does not load the model.
func (r *v2Request) modelReady(a ask, now time.Time) responses {
	err := r.dispatcher.wouldAnswer(a, now)
	if err != nil {
		return r.fail(err, a.model)
	}
	return r.replyWith("ready", struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
	}{a.model, true})
}

// wouldAnswer returns nil if a request for a model would be served, if necessary after a load.
// Otherwise it returns the reason.
func (d *dispatcher) wouldAnswer(a ask, now time.Time) error {
	err := d.choose(a, nil, now)
	d.dropPicks()
	m, missed := err.(*notReady) //nolint:errorlint // choose returns it as it is
	if !missed {
		return err
	}
	return d.server.failure(&m.of)
}
