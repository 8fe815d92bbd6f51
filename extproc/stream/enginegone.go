package stream

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/outcome"
)

// open contains, by decision ID, the exchanges of Headgate's own Envoys whose request is at an
// endpoint. An exchange is added when it is decided, and removed when its stream ends. No other
// mutex is locked while mu is held.
type open struct {
	mu  sync.Mutex // guards all, and the field vacant of each exchange
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

// silent stores a progress record of a request; vacant reports that the endpoint had no listener.
// It returns the exchange if the endpoint had none in the previous record either and no byte
// arrived in between. Otherwise it returns nil.
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

// Progressed records the progress of a request in flight, and renews its lease. It ends the request
// if its engine has vanished: the endpoint refuses connections in two consecutive records, and no
// byte arrived in between. An engine that drains with its port closed still sends bytes. The
// endpoint may be another than the first pick. Progressed ignores requests of other processes.
func (s *Server) Progressed(p outcome.Progress) {
	s.Fleet.Renew(p.ID)
	if !s.open.has(p.ID) {
		return // before the view is read, which costs more
	}
	w := s.Fleet.View().World
	p.Endpoint = w.EndpointAt(p.Endpoint)
	switch {
	case p.Endpoint == "":
		s.judge(p, false)
	case w.HasEndpoint(p.Endpoint), strings.Contains(p.Endpoint, "/"): // an address with "/" is the relay's socket
		s.judge(p, fleet.Read(s.Fleet, func(s *endpointstate.State) bool { return s.Vacant(p.Endpoint) }))
	default:
		s.left.dial(s, p)
	}
}

// judge stores a progress record, and ends the request if its engine has vanished.
func (s *Server) judge(p outcome.Progress, vacant bool) {
	if x := s.open.silent(p, vacant); x != nil {
		x.endGone()
	}
}

// left dials endpoints that were removed from the objects but still have requests. These endpoints
// are not scraped. A progress record of such a request starts a dial. Records that arrive during
// the dial share its result. The zero left is ready for use. No other mutex is locked while mu is
// held.
type left struct {
	mu      sync.Mutex                    // guards dialing
	dialing map[string][]outcome.Progress // key: endpoint; value: records to judge when its dial ends
}

// maxDial is the timeout for dialing a removed endpoint.
const maxDial = time.Second

// dial starts a dial of the record's endpoint, unless one is in progress, and returns at once. The
// record is judged by the result of the dial.
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
	go func() { // ends after at most maxDial
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

// take removes and returns the records to judge. If there are none, it marks the dial as ended.
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

// sender sends messages to the data plane. It is safe for concurrent use, because other goroutines
// may end the exchange.
type sender struct {
	mu       sync.Mutex // guards over, and the sending of messages
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
		if err := s.messages.SendMsg(m); err != nil {
			return err
		}
	}
	return nil
}

// sendNow sends a message of an exchange that is not over.
func (s *sender) sendNow(m *message) error { return s.messages.SendMsg(m) }

// end sends a last message, which may be nil, unless the exchange is over.
func (s *sender) end(last *message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over && last != nil {
		_ = s.messages.SendMsg(last) // an error means that the request has ended
	}
	s.over = true
}

// endGone ends a request whose engine has vanished, whether or not its response has begun. Any
// goroutine may call it after the request is decided.
func (x *exchange) endGone() {
	x.out.end(describe(errGone, "").response(x.api()))
}
