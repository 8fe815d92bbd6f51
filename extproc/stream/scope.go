package stream

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// scope is where a request came in, how the data plane shows it, and with that which models and pools it may be for.
// Its methods read objects and views, and change nothing.
type scope struct {
	server *Server
	front  Front
	// called returns what the data plane was given to call, which tells the pool that another gateway means.
	called func() (authority string, port int32)
	// listener is that of a Gateway of ours at which an LLMRoute took the request; empty for none.
	listener string
	// pool is the one that an HTTPRoute of a Gateway of ours names; zero for none. It may rewrite the path, which engines see as that.
	pool    objects.Name
	rewrite *wire.Rewrite
	// back is the name of the socket at which its Envoy takes a request from the inner server; empty for none.
	back string
	// done is closed when the request is over; nil if nobody says.
	done <-chan struct{}

	mode  mode // of the request's body
	shown mode // of the answer's body
	// announced says that the data plane announced its modes.
	announced bool
	hints     hints
	// errand is what the relay says of a request that it sends; nil of all others.
	relayed *relaytoken.Request
}

// mode is how a data plane shows a body.
type mode = extprocfilterv3.ProcessingMode_BodySendMode

const (
	modeNone     = extprocfilterv3.ProcessingMode_NONE
	modeStreamed = extprocfilterv3.ProcessingMode_STREAMED
	modeBuffered = extprocfilterv3.ProcessingMode_BUFFERED
	modePartial  = extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL
	modeDuplex   = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// scopeOf returns the scope of a stream that a data plane of a front has opened.
func (s *Server) scopeOf(front Front, messages extprocStream) scope {
	c := scope{server: s, front: front, called: func() (string, int32) { return called(messages) }, done: messages.Context().Done()}
	if front != Own {
		return c // nobody else is believed
	}
	ctx := messages.Context()
	if v := metadata.ValueFromIncomingContext(ctx, wire.ListenerMetadata); len(v) > 0 {
		c.listener = v[0]
	}
	if v := metadata.ValueFromIncomingContext(ctx, wire.PoolMetadata); len(v) > 0 {
		c.pool.Namespace, c.pool.Name, _ = strings.Cut(v[0], "/")
	}
	if v := metadata.ValueFromIncomingContext(ctx, wire.RewriteMetadata); len(v) > 0 {
		r := wire.ParseRewrite(v[0])
		c.rewrite = &r
	}
	if v := metadata.ValueFromIncomingContext(ctx, wire.BackMetadata); len(v) > 0 {
		c.back = v[0]
	}
	return c
}

// inferenceOnly says whether nothing else may pass. Else routes of the data plane decide what does.
func (s *scope) inferenceOnly() bool { return s.front == Own && s.pool == (objects.Name{}) }

// given is the pool that the data plane asks for, if it says.
func (s *scope) given(w *objects.World) (objects.Name, bool) {
	if s.front == Own {
		return s.pool, s.pool != (objects.Name{})
	}
	return w.PoolOf(s.called())
}

// offer is which models the request may name.
func (s *scope) offer(view *endpointstate.View) (*objects.Offer, error) {
	if s.listener == "" {
		return &view.World.Offer, nil
	}
	if o := view.World.Offers[s.listener]; o != nil {
		return o, nil
	}
	return nil, errNoOffer // control is ahead of us, or the route has gone
}

// counts says which pools are of any use to the request, where one may be given.
func (s *scope) counts(offer *objects.Offer, given objects.Name) func(pool objects.Name) bool {
	return func(pool objects.Name) bool {
		return (given == objects.Name{} || pool == given) && (s.listener == "" || offer.Serves(pool))
	}
}

// configure takes the modes that the data plane announces. One that announces none shows the request as it comes, which
// is what endpoint pickers are asked with: see requestHeaders for when it shows no body.
func (s *scope) configure(c *extprocv3.ProtocolConfiguration) error {
	s.mode, s.shown = modeDuplex, modeDuplex
	if c == nil {
		return nil
	}
	s.announced = true
	s.mode, s.shown = c.GetRequestBodyMode(), c.GetResponseBodyMode()
	switch s.mode {
	case modeNone, modeBuffered, modePartial, modeDuplex:
		return nil
	case modeStreamed:
		return errProtocol("the request_body_mode of ext_proc is STREAMED, in which the headers are gone before the model is known: set FULL_DUPLEX_STREAMED, BUFFERED or NONE")
	}
	return errProtocol(fmt.Sprintf("the request_body_mode of ext_proc is %s: set FULL_DUPLEX_STREAMED, BUFFERED or NONE", s.mode))
}

// bound says whether the end of the stream is the end of the request. Envoy closes the stream as soon as it has nothing
// more to show: at once where it shows no bodies, or the request's in chunks and none of the answer. What a data plane
// will show that announces no modes is known when it shows it.
func (s *scope) bound(answered bool) bool {
	switch {
	case !s.announced:
		return answered
	case s.mode == modeBuffered, s.mode == modePartial:
		return true
	}
	return s.shown != modeNone
}

// atGateway says whether the request came in at a Gateway of ours, where each pool is a cluster of its own.
func (s *scope) atGateway() bool { return s.listener != "" || s.pool != (objects.Name{}) }

// takesOpen says whether the request may go to any pool that no LLMRoute names.
func (s *scope) takesOpen() bool { return s.inferenceOnly() && s.listener == "" }

// commandLine is the pool that the command line names, where the request may go there; zero if there is none.
func (s *scope) commandLine() objects.Name {
	if s.listener != "" || s.pool != (objects.Name{}) {
		return objects.Name{}
	}
	return s.server.Default
}

// unread says whether a pool that the request may go to has lists that were not read yet.
func (s *scope) unread() bool {
	if !s.takesOpen() {
		return false
	}
	view := s.server.Fleet.View()
	return slices.ContainsFunc(view.World.Open(), func(name objects.Name) bool {
		p := view.Snapshot.Pools[name.String()]
		return p != nil && p.Unread
	})
}

// unrouted is the pool of a model that no route admits, zero if there is none. At our own Envoy that is one of the pools that
// no LLMRoute names, if its endpoints list the model; the pool of the command line goes first.
func (s *scope) unrouted(view *endpointstate.View, offer *objects.Offer, model string) objects.Name {
	if !s.takesOpen() {
		return s.commandLine()
	}
	if model == "" || offer.Route(model) != nil {
		return s.server.Default
	}
	lists := func(name objects.Name) bool { return view.Snapshot.Pools[name.String()].Lists(model) }
	if s.server.Default != (objects.Name{}) && lists(s.server.Default) {
		return s.server.Default
	}
	if at := slices.IndexFunc(view.World.Open(), lists); at >= 0 {
		return view.World.Open()[at]
	}
	return s.server.Default
}

// unknown is why nobody serves a model: where control or engines have not said yet which models they know of, not that there is none.
func (s *scope) unknown(err error) error {
	if !errors.Is(err, route.ErrUnknownModel) && !errors.Is(err, pick.ErrUnlisted) {
		return err
	}
	if s.server.Flow != nil && !s.server.Fleet.Heard() || s.unread() {
		return errNotHeard
	}
	return err
}
