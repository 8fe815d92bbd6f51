package stream

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/grpc/metadata"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/processing"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// scope is where a request arrived, which parts of it the data plane sends to extproc, and which
// models and pools it may use. Its methods read objects and views. They change only the modes.
type scope struct {
	server *Server
	front  Front
	// called returns the authority and the port that the data plane called. For another gateway,
	// they identify the pool of the request.
	called func() (authority string, port int32)
	// listener is the Gateway listener that received the request through an LLMRoute; may be empty.
	listener string
	// pool is the pool that an HTTPRoute names; may be zero. rewrite is the path rewrite of that
	// route; engines get the rewritten path.
	pool    objects.Name
	rewrite *wire.Rewrite
	// back is the socket at which the Envoy accepts requests from the relay; may be empty.
	back string
	// done is closed when the request is over; may be nil.
	done <-chan struct{}

	mode  mode // mode of the request's body
	shown mode // mode of the response's body
	// announced means that the data plane has announced its modes.
	announced bool
	hints     hints
	// relayed is the decrypted token of a request from the relay; nil for all other requests.
	relayed *relaytoken.Request
}

// mode is how a data plane sends a body to extproc.
type mode = extprocfilterv3.ProcessingMode_BodySendMode

const (
	modeNone     = extprocfilterv3.ProcessingMode_NONE
	modeStreamed = extprocfilterv3.ProcessingMode_STREAMED
	modeBuffered = extprocfilterv3.ProcessingMode_BUFFERED
	modePartial  = extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL
	modeDuplex   = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// scopeOf returns the scope of the request of an ext_proc stream.
func (s *Server) scopeOf(front Front, messages extprocStream) scope {
	c := scope{server: s, front: front, called: func() (string, int32) { return called(messages) }, done: messages.Context().Done()}
	if front != Own {
		return c // metadata of other data planes is not trusted
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

// inferenceOnly reports whether only inference requests are allowed. Otherwise the data plane's
// routes decide which requests are allowed.
func (s *scope) inferenceOnly() bool { return s.front == Own && s.pool == (objects.Name{}) }

// given returns the pool that the data plane names, and false if it names none.
func (s *scope) given(w *objects.World) (objects.Name, bool) {
	if s.front == Own {
		return s.pool, s.pool != (objects.Name{})
	}
	return w.PoolOf(s.called())
}

// offer returns the models that the request may name.
func (s *scope) offer(view *endpointstate.View) (*objects.Offer, error) {
	if s.listener == "" {
		return &view.World.Offer, nil
	}
	if o := view.World.Offers[s.listener]; o != nil {
		return o, nil
	}
	return nil, errNoOffer // Envoy knows a listener that extproc does not know yet, or its route was deleted
}

// counts returns a function that reports whether the request may use a pool. Given is the pool that
// the data plane names; may be zero.
func (s *scope) counts(offer *objects.Offer, given objects.Name) func(pool objects.Name) bool {
	return func(pool objects.Name) bool {
		return (given == objects.Name{} || pool == given) && (s.listener == "" || offer.Serves(pool))
	}
}

// configure stores the modes that the data plane announces. If it announces none, configure assumes
// full duplex, because the endpoint-picker protocol requires that.
func (s *scope) configure(c processing.Config) error {
	s.mode, s.shown = modeDuplex, modeDuplex
	if !c.Announced {
		return nil
	}
	s.announced = true
	s.mode, s.shown = mode(c.RequestBodyMode), mode(c.ResponseBodyMode)
	switch s.mode {
	case modeNone, modeBuffered, modePartial, modeDuplex:
		return nil
	case modeStreamed:
		return errProtocol("the request_body_mode of ext_proc is STREAMED, in which Envoy forwards the headers before extproc knows the model: set FULL_DUPLEX_STREAMED, BUFFERED or NONE")
	}
	return errProtocol(fmt.Sprintf("the request_body_mode of ext_proc is %s: set FULL_DUPLEX_STREAMED, BUFFERED or NONE", s.mode))
}

// bound reports whether the request ends when its ext_proc stream ends. Envoy closes the stream
// when it has nothing more to send to extproc. That is early if it sends no bodies, or only the
// request's body in chunks. For a data plane that announces no modes, the two ends are the same
// once it sends the response to extproc (answered).
func (s *scope) bound(answered bool) bool {
	switch {
	case !s.announced:
		return answered
	case s.mode == modeBuffered, s.mode == modePartial:
		return true
	}
	return s.shown != modeNone
}

// atGateway reports whether the request arrived at one of Headgate's Gateways. There, each pool has
// its own Envoy cluster.
func (s *scope) atGateway() bool { return s.listener != "" || s.pool != (objects.Name{}) }

// takesOpen reports whether the request may use all pools that no LLMRoute names.
func (s *scope) takesOpen() bool { return s.inferenceOnly() && s.listener == "" }

// commandLine returns the default pool from the command line if the request may use it; otherwise
// zero.
func (s *scope) commandLine() objects.Name {
	if s.listener != "" || s.pool != (objects.Name{}) {
		return objects.Name{}
	}
	return s.server.Default
}

// unread reports whether the request may use a pool whose model lists have not been read yet.
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

// unrouted returns the pool for a model that no route admits; zero if there is none. It is the
// default pool from the command line. But if only endpoints of another pool list the model, and the
// request may use all pools that no LLMRoute names, it is such a pool.
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

// unknown replaces the error for an unknown model by errNotHeard until control and all engines have
// listed their models.
func (s *scope) unknown(err error) error {
	if !errors.Is(err, route.ErrUnknownModel) && !errors.Is(err, pick.ErrUnlisted) {
		return err
	}
	if s.server.placing() && !s.server.Fleet.Synced() || s.unread() {
		return errNotHeard
	}
	return err
}
