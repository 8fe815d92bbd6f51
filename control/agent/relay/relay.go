// Package relay passes the connections of clients to the engine beside the agent. It copies bytes,
// whatever the protocol: HTTP/1.1, HTTP/2, streams in both directions. It also serves the agent's
// health port.
//
// While the engine accepts no connection, neither does the relay: it closes its listening socket,
// so that clients are refused, as they would be without the relay. Envoy retries a refused
// connection at the next endpoint, but not a request that was cut.
package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/internal/listen"
)

const (
	// retryInterval is how often the relay checks an engine that accepts no connections.
	retryInterval = 50 * time.Millisecond
	// pollInterval is how often the relay checks whether the engine still accepts
	// connections. A check is a connection that is closed at once.
	pollInterval = 250 * time.Millisecond
	// suspectInterval is how soon the relay checks after the engine has ended a connection: a
	// stopping engine ends all of them. It also limits the checks of an engine that ends each
	// connection after one response.
	suspectInterval = 10 * time.Millisecond
	// checkTimeout limits one check. A busy engine still accepts connections, since the kernel
	// does, until its backlog is full.
	checkTimeout = time.Second
	// connectTimeout limits how long a client waits for a connection to the engine, and for the TLS
	// handshake.
	connectTimeout = 10 * time.Second
	// warnInterval is the shortest interval between log lines about failures of accept.
	warnInterval = 10 * time.Second
)

// Config configures a Relay.
type Config struct {
	// Listen is where clients connect: HOST:PORT or unix:PATH.
	Listen string
	// Engine is where the engine listens.
	Engine Endpoint
	// TLS is the configuration for clients; nil for plain connections. The engine gets plain bytes.
	TLS *tls.Config
	// MaxConnections is the maximum number of connections; more clients are refused. 0 means as
	// many as the limit of open files permits.
	MaxConnections int
	// Log must not be nil.
	Log *slog.Logger
	// Metrics registers the relay's metrics; nil for none.
	Metrics prometheus.Registerer
}

// Relay passes connections to one engine. Make one with [New].
type Relay struct {
	config  Config
	metrics metrics

	// Each of these channels has room for one signal.
	refused chan struct{} // the engine refused a connection for a client
	suspect chan struct{} // the engine ended a connection
	full    chan struct{} // there are MaxConnections connections

	connections sync.WaitGroup
	lastWords   time.Duration // see defaultLastWords
	poll        time.Duration // pollInterval, but in tests

	mu   sync.Mutex // guards open
	open int        // connections of clients
}

// New returns a Relay. It checks the configuration, but opens nothing.
func New(c Config) (*Relay, error) {
	if c.MaxConnections == 0 {
		c.MaxConnections = maxConnections(openFiles())
	}
	r := &Relay{config: c, lastWords: defaultLastWords, poll: pollInterval}
	for _, signal := range []*chan struct{}{&r.refused, &r.suspect, &r.full} {
		*signal = make(chan struct{}, 1)
	}
	var err error
	r.metrics, err = newMetrics(c.Metrics)
	return r, err
}

// Ready reports whether the engine accepts connections.
func (r *Relay) Ready(ctx context.Context) error { return r.config.Engine.check(ctx) }

// Run relays connections. When ctx ends, it stops accepting, and returns after the last connection
// has ended. It returns an error if it cannot listen at first.
func (r *Relay) Run(ctx context.Context) error {
	l, err := r.listen()
	if err != nil {
		return err
	}
	report := reporter{log: r.config.Log.With("listen", l.Addr().String(), "engine", r.config.Engine.String())}
	for ctx.Err() == nil {
		err := r.obstacle(ctx)
		if err == nil && l == nil {
			l, err = r.listen()
		}
		if err != nil {
			closeListener(l)
		}
		if ctx.Err() == nil {
			report.state(err)
		}
		if err == nil {
			r.serve(ctx, l)
		} else {
			wait(ctx, retryInterval)
		}
		l = nil
	}
	closeListener(l)
	if n := r.count(); n > 0 {
		report.log.Info("no longer accepting connections; waiting for open ones to end", "connections", n)
	}
	r.connections.Wait()
	return nil
}

// errFull is why the relay accepts no connections while there are MaxConnections.
var errFull = errors.New("there are as many connections as the limit of open files permits: raise it (ulimit -n)")

// reporter logs whether the relay accepts connections, when that changes. It logs errFull at most
// once per warnInterval, since a connection that ends makes room for one.
type reporter struct {
	log   *slog.Logger
	last  string // the state at the last call
	full  time.Time
	quiet bool // the last state was not logged
}

// state logs a state: err is why the relay refuses connections, nil if it accepts them.
func (r *reporter) state(err error) {
	words := "accepts"
	if err != nil {
		words = err.Error()
	}
	if words == r.last {
		return
	}
	r.last = words
	switch was := r.quiet; {
	case err == nil:
		if r.quiet = false; !was {
			r.log.Info("relaying connections to the engine")
		}
	case errors.Is(err, errFull) && time.Since(r.full) < warnInterval:
		r.quiet = true
	default:
		if errors.Is(err, errFull) {
			r.full = time.Now()
		}
		r.quiet = false
		r.log.Warn("refusing connections until the cause is gone", "err", err)
	}
}

// obstacle returns why the relay may not accept connections now; nil if it may.
func (r *Relay) obstacle(ctx context.Context) error {
	take(r.refused)
	take(r.full)
	if r.count() >= r.config.MaxConnections {
		return errFull
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := r.Ready(ctx); err != nil {
		return fmt.Errorf("the engine accepts no connections: %w", err)
	}
	return nil
}

// listen opens the listening socket.
func (r *Relay) listen() (net.Listener, error) { return listen.On("data", r.config.Listen) }

// closeListener closes a listener, which may be nil. Connections that wait to be accepted are
// reset.
func closeListener(l net.Listener) {
	if l != nil {
		_ = l.Close()
	}
}

// serve accepts connections until the engine refuses them, there are too many, or ctx ends. Then it
// closes the listener.
func (r *Relay) serve(ctx context.Context, l net.Listener) {
	r.metrics.accepting.Set(1)
	defer r.metrics.accepting.Set(0)
	var accepting sync.WaitGroup
	accepting.Go(func() { r.accept(ctx, l) })
	r.watch(ctx)
	closeListener(l)
	accepting.Wait()
}

// watch returns when the relay must stop accepting.
func (r *Relay) watch(ctx context.Context) {
	tick := time.NewTicker(r.poll)
	defer tick.Stop()
	for soon := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-r.refused:
			return
		case <-r.full:
			return
		case <-r.suspect:
			if !soon {
				tick.Reset(suspectInterval)
				soon = true
			}
			continue
		case <-tick.C:
			if soon {
				tick.Reset(r.poll)
				soon = false
			}
		}
		if !r.stillAccepts(ctx) {
			return
		}
	}
}

// stillAccepts checks an engine that accepted connections. It returns true if the engine is only
// too busy.
func (r *Relay) stillAccepts(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := r.Ready(ctx)
	return err == nil || isBusy(err)
}

// accept accepts connections until the listener is closed.
func (r *Relay) accept(ctx context.Context, l net.Listener) {
	var warned time.Time
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if time.Since(warned) >= warnInterval {
				warned = time.Now()
				r.config.Log.Error("cannot accept a connection; retrying", "err", err)
			}
			wait(ctx, suspectInterval) // such as: too many open files
			continue
		}
		client, ok := conn.(duplex)
		if !ok || !r.admit() {
			reset(conn)
			signal(r.full)
			continue
		}
		r.connections.Go(func() {
			defer r.release()
			r.pass(context.WithoutCancel(ctx), client)
		})
	}
}

// admit counts a connection, and reports whether there is room for it.
func (r *Relay) admit() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open >= r.config.MaxConnections {
		return false
	}
	if r.open++; r.open == r.config.MaxConnections {
		signal(r.full)
	}
	r.metrics.connections.Inc()
	r.metrics.total.Inc()
	return true
}

// release undoes admit.
func (r *Relay) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	r.metrics.connections.Dec()
}

// count returns the number of connections.
func (r *Relay) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// signal sends a signal, unless there is one that nothing has received.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take removes a signal that nothing has received.
func take(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
