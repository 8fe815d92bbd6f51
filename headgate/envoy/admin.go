package envoy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// admin is the client of an Envoy's admin interface, at a Unix socket. It keeps one connection: an
// Envoy that another one replaced by hot restart accepts no new one.
type admin struct {
	http http.Client
}

func newAdmin(socket string) *admin {
	return &admin{http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

func (a *admin) close() { a.http.CloseIdleConnections() }

// call returns the body of the answer, or an error if the status is not 200.
func (a *admin) call(ctx context.Context, method, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := a.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", path, response.Status)
	}
	return body, err
}

// ready reports whether the Envoy serves.
func (a *admin) ready(ctx context.Context) bool {
	_, err := a.call(ctx, http.MethodGet, "/ready")
	return err == nil
}

// drain makes the Envoy ask its clients to close their connections, and close its listeners for
// clients. The listener for extproc's relay stays open: the last requests may need it.
func (a *admin) drain(ctx context.Context) error {
	if _, err := a.call(ctx, http.MethodPost, "/drain_listeners?inboundonly&graceful&skip_exit"); err != nil {
		return err
	}
	_, err := a.call(ctx, http.MethodPost, "/drain_listeners?inboundonly")
	return err
}

// load returns the number of requests and of connections of clients.
func (a *admin) load(ctx context.Context) (requests, connections int, err error) {
	page, err := a.call(ctx, http.MethodGet, "/stats?filter="+`^http\..*\.downstream_(rq|cx)_active$`)
	if err != nil {
		return 0, 0, err
	}
	requests, connections = sumActive(page)
	return requests, connections, nil
}

// rejected returns the number of updates of certificates and API keys that the Envoy has rejected.
func (a *admin) rejected(ctx context.Context) int {
	page, err := a.call(ctx, http.MethodGet, "/stats?filter="+`\.(update_rejected|config_fail)$`)
	if err != nil {
		return 0
	}
	sum := 0
	for lines := bufio.NewScanner(bytes.NewReader(page)); lines.Scan(); {
		_, value, _ := strings.Cut(lines.Text(), ": ")
		n, _ := strconv.Atoi(value) // 0 if it is no number
		sum += n
	}
	return sum
}

// sumActive adds up the requests and connections of all connection managers but that of the admin
// interface.
func sumActive(page []byte) (requests, connections int) {
	for lines := bufio.NewScanner(bytes.NewReader(page)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		n, err := strconv.Atoi(value)
		switch {
		case err != nil, strings.HasPrefix(name, "http.admin."):
		case strings.HasSuffix(name, ".downstream_rq_active"):
			requests += n
		case strings.HasSuffix(name, ".downstream_cx_active"):
			connections += n
		}
	}
	return requests, connections
}
