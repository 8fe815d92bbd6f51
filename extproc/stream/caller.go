package stream

import (
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

// caller is who asks about a request.
type caller struct {
	front Front
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
}

// callerOf returns who opened a stream for a front.
func callerOf(front Front, messages extprocStream) caller {
	c := caller{front: front, called: func() (string, int32) { return called(messages) }, done: messages.Context().Done()}
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
func (c *caller) inferenceOnly() bool { return c.front == Own && c.pool == (objects.Name{}) }

// given is the pool that the data plane asks for, if it says.
func (c *caller) given(w *objects.World) (objects.Name, bool) {
	if c.front == Own {
		return c.pool, c.pool != (objects.Name{})
	}
	return w.PoolOf(c.called())
}

// offer is which models the request may name.
func (c *caller) offer(view *endpointstate.View) (*objects.Offer, error) {
	if c.listener == "" {
		return &view.World.Offer, nil
	}
	if o := view.World.Offers[c.listener]; o != nil {
		return o, nil
	}
	return nil, errNoOffer // control is ahead of us, or the route has gone
}

// counts says which pools are of any use to the request, where one may be given.
func (c *caller) counts(offer *objects.Offer, given objects.Name) func(pool objects.Name) bool {
	return func(pool objects.Name) bool {
		return (given == objects.Name{} || pool == given) && (c.listener == "" || offer.Serves(pool))
	}
}
