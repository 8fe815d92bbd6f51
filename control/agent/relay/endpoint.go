package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Endpoint is where an engine listens on this machine.
type Endpoint struct {
	Network string // "tcp" or "unix"
	Address string // HOST:PORT, or the path of the socket
}

// ParseEndpoint parses HOST:PORT, unix:PATH, or port:N for a port of this pod. The last two are the
// forms of a ServingRuntime's endpoints.
func ParseEndpoint(text string) (Endpoint, error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		path = strings.TrimPrefix(path, "//") // unix:///path
		if path == "" {
			return Endpoint{}, fmt.Errorf("%q has no path: want unix:PATH", text)
		}
		return Endpoint{"unix", path}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if host == "" || host == "port" {
		host = "127.0.0.1"
	}
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 {
		return Endpoint{}, fmt.Errorf("%q is no endpoint: want HOST:PORT, port:N or unix:PATH", text)
	}
	return Endpoint{"tcp", net.JoinHostPort(host, port)}, nil
}

// String returns the endpoint as a flag: HOST:PORT or unix:PATH.
func (e Endpoint) String() string {
	if e.Network == "unix" {
		return "unix:" + e.Address
	}
	return e.Address
}

// Dial opens a connection, until ctx ends. While the backlog of a Unix socket is full, it retries;
// for TCP the kernel does that.
func (e Endpoint) Dial(ctx context.Context) (net.Conn, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		conn, err := (&net.Dialer{}).DialContext(ctx, e.Network, e.Address)
		if err == nil || !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		if wait(ctx, pause); ctx.Err() != nil {
			return nil, err
		}
	}
}

// dial is Dial for a connection whose sides end separately.
func (e Endpoint) dial(ctx context.Context) (duplex, error) {
	conn, err := e.Dial(ctx)
	if err != nil {
		return nil, err
	}
	both, ok := conn.(duplex)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s: %T cannot end one side only", e, conn), conn.Close())
	}
	return both, nil
}

// check reports whether the engine accepts connections, by one that it closes at once.
func (e Endpoint) check(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, e.Network, e.Address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// isBusy reports whether a failure to connect only means that the engine is busy: its backlog is
// full, and a connection to a Unix socket fails with EAGAIN, one to a port times out.
func isBusy(err error) bool {
	var failure net.Error
	return errors.As(err, &failure) && failure.Timeout()
}

// Transport returns an HTTP transport whose requests all go to the endpoint, whatever their URL.
func (e Endpoint) Transport() *http.Transport {
	return &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return e.Dial(ctx) },
		IdleConnTimeout:    idle,
		DisableCompression: true,
	}
}

// Stay is the CheckRedirect of clients that follow no redirect.
func Stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// idle is how long an unused connection to an engine stays open. vLLM closes an unused connection
// after 5 s, and a request that arrives while the connection closes gets no answer.
const idle = 2 * time.Second

// Healthy returns a check of an engine's HTTP health path. The engine is ready if it answers 200.
func (e Endpoint) Healthy(path string) func(context.Context) error {
	transport := e.Transport()
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, CheckRedirect: Stay}
	return func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine"+path, nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the engine answers GET %s with %s", path, answer.Status)
		}
		return nil
	}
}
