package stream

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/outcome"
)

// open has the exchanges of Headgate's own Envoys whose request is at an endpoint, by decision id.
// An exchange is in it from its decision to the end of its stream. Its mutex is never held while
// another is locked.
type open struct {
	mu  sync.Mutex // guards all, and exchange.vacant of each
	all map[string]*exchange
}

func (o *open) add(x *exchange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[x.dispatcher.id] = x
}

func (o *open) remove(x *exchange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, x.dispatcher.id)
}

func (o *open) has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[id] != nil
}

// silent records the progress of a request. It returns the exchange if the endpoint was vacant in
// this record and in the last, and no byte came in between.
func (o *open) silent(p outcome.Progress, vacant bool) *exchange {
	o.mu.Lock()
	defer o.mu.Unlock()
	x := o.all[p.ID]
	if x == nil {
		return nil
	}
	last := x.vacant
	if x.vacant = (outcome.Progress{}); vacant {
		x.vacant = p
	}
	if vacant && last == p {
		return x
	}
	return nil
}

// Progressed records the progress of a request in flight: it renews the request's lease. It ends
// the request if its engine has gone: in two consecutive records the endpoint refuses connections,
// and no byte came in between. The endpoint need not be the first pick. An engine that drains with
// its port closed still sends bytes. Requests of other processes are ignored.
func (s *Server) Progressed(p outcome.Progress) {
	s.Fleet.Renew(p.ID)
	if !s.open.has(p.ID) {
		return // skip the view
	}
	w := s.Fleet.View().World
	p.Endpoint = w.EndpointAt(p.Endpoint)
	switch {
	case p.Endpoint == "":
		s.judge(p, false)
	case w.HasEndpoint(p.Endpoint), strings.Contains(p.Endpoint, "/"): // a path is the relay
		s.judge(p, fleet.Read(s.Fleet, func(s *endpointstate.State) bool { return s.Vacant(p.Endpoint) }))
	default:
		s.left.dial(s, p)
	}
}

// judge ends a request if its progress shows that its engine has gone.
func (s *Server) judge(p outcome.Progress, vacant bool) {
	if x := s.open.silent(p, vacant); x != nil {
		x.endGone()
	}
}

// left has endpoints that were removed from the objects and still have requests. They are not
// scraped: a record of such a request triggers a dial, whose result also serves the records that
// arrive meanwhile. The zero left is ready. Its mutex is never held while another is locked.
type left struct {
	mu      sync.Mutex                    // guards dialing
	dialing map[string][]outcome.Progress // by endpoint: records to judge when the dial ends
}

// maxDial bounds the dial of a removed endpoint.
const maxDial = time.Second

// dial dials the endpoint of a record, unless a dial is in progress, and judges the record by the
// result. It returns at once.
func (l *left) dial(s *Server, p outcome.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dialing == nil {
		l.dialing = make(map[string][]outcome.Progress)
	}
	waiting, busy := l.dialing[p.Endpoint]
	if l.dialing[p.Endpoint] = append(waiting, p); busy {
		return
	}
	go func() { // ends within maxDial
		ctx, cancel := context.WithTimeout(context.Background(), maxDial)
		defer cancel()
		err := s.Dial(ctx, p.Endpoint)
		for waiting := l.take(p.Endpoint); len(waiting) > 0; waiting = l.take(p.Endpoint) {
			for _, p := range waiting {
				s.judge(p, errors.Is(err, syscall.ECONNREFUSED))
			}
		}
	}()
}

// take removes and returns the records to judge. If there are none, the dial is over.
func (l *left) take(endpoint string) []outcome.Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := l.dialing[endpoint]
	if len(waiting) == 0 {
		delete(l.dialing, endpoint)
	} else {
		l.dialing[endpoint] = nil
	}
	return waiting
}

// dial makes a TCP connection to an address, and closes it.
func dial(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// sender sends to the data plane. It is safe for concurrent use: other goroutines may end the
// exchange.
type sender struct {
	mu       sync.Mutex // guards the following, and sending
	messages extprocStream
	over     bool // nothing more may be sent
}

// send sends messages, unless the exchange is over.
func (s *sender) send(out responses) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil
	}
	for _, m := range out {
		if err := s.messages.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// end sends a last message, which may be nil, unless the exchange is over.
func (s *sender) end(last *extprocv3.ProcessingResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over && last != nil {
		_ = s.messages.Send(last) // if the stream has ended, so has the request
	}
	s.over = true
}

// endGone ends the request before or within its response. Any goroutine may call it once the
// request is decided.
func (x *exchange) endGone() {
	x.out.end(describe(errGone, "").response(x.api()))
}
