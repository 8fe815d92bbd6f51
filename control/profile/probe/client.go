// Package probe sends requests to model servers and measures them, one measurement of a point at a
// time. It supports V2 and OpenAI APIs, with streaming and without. Package survey decides what to
// measure and evaluates the results.
package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/control/profile/survey"
)

// mostAnswer limits the size of a response body in memory.
const mostAnswer = 64 << 20

// Server is a model server. Its methods are safe for concurrent use.
type Server struct {
	base    string
	token   string
	timeout time.Duration
	client  *http.Client
}

// Dial connects to an address. If it is nil, connections use the network.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// NewServer returns the server at a URL such as http://HOST:PORT/PREFIX. The timeout applies to
// each request. If token is not "", each request carries it as a bearer token.
func NewServer(at, token string, timeout time.Duration, dial Dial) (*Server, error) {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--url %q: want http://HOST:PORT, such as http://127.0.0.1:8000", at)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	return &Server{
		base: u.Scheme + "://" + u.Host + u.Path, token: token, timeout: timeout,
		client: &http.Client{
			// Keep as many connections as there are concurrent requests, because opening a
			// connection must not add to a measured latency.
			Transport:     &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true, DialContext: dial},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close closes idle connections.
func (s *Server) Close() { s.client.CloseIdleConnections() }

// Refusal is the error for a response with a status other than 200.
type Refusal struct {
	Path   string
	Status int
	Words  string // beginning of the response body
}

// Error describes the response.
func (r *Refusal) Error() string {
	text := fmt.Sprintf("%s answers %d", r.Path, r.Status)
	if r.Words != "" {
		text += ": " + r.Words
	}
	if r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden {
		text += " (--engine-token-file names the file of a token)"
	}
	return text
}

// tooMuch reports whether the server rejected the request because of its content: a smaller request
// may succeed.
func tooMuch(err error) bool {
	r, ok := errors.AsType[*Refusal](err)
	return ok && (r.Status == http.StatusBadRequest || r.Status == http.StatusRequestEntityTooLarge ||
		r.Status == http.StatusUnprocessableEntity)
}

// missing reports whether the server has no resource at the path of the request.
func missing(err error) bool {
	r, ok := errors.AsType[*Refusal](err)
	return ok && (r.Status == http.StatusNotFound || r.Status == http.StatusMethodNotAllowed)
}

// words limits the length of an error response in messages.
const words = 200

// send sends a request and returns a response with status 200; other statuses are errors. The
// caller closes the body and then calls done.
func (s *Server) send(ctx context.Context, method, path string, body []byte) (response *http.Response, done context.CancelFunc, err error) {
	ctx, done = context.WithTimeoutCause(ctx, s.timeout,
		fmt.Errorf("%s has not answered within %v: use a longer --timeout", path, s.timeout))
	defer func() {
		if err != nil {
			done()
		}
	}()
	request, err := http.NewRequestWithContext(ctx, method, s.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, done, err
	}
	if len(body) > 0 {
		request.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		request.Header.Set("Authorization", "Bearer "+s.token)
	}
	response, err = s.client.Do(request)
	if err != nil {
		return nil, done, s.fault(ctx, path, err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(response.Body, words))
		shown := strings.Join(strings.Fields(strings.ToValidUTF8(string(said), "")), " ")
		if len(said) == words {
			shown += "…"
		}
		return nil, done, &Refusal{path, response.StatusCode, shown}
	}
	return response, done, nil
}

// fault returns an error that explains why no response arrived, and what to do.
func (s *Server) fault(ctx context.Context, path string, err error) error {
	if named, ok := errors.AsType[*url.Error](err); ok {
		err = named.Err
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("connection refused at %s: check that the server runs and the port", s.base)
	}
	return fmt.Errorf("%s%s: %w", s.base, path, err)
}

// ask sends a request and returns the whole response body, and the time since the request was sent.
func (s *Server) ask(ctx context.Context, method, path string, body []byte) (answer []byte, took time.Duration, err error) {
	begun := time.Now()
	response, done, err := s.send(ctx, method, path, body)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	defer response.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(response.Body, mostAnswer))
	took = time.Since(begun)
	if err != nil {
		return nil, 0, s.fault(response.Request.Context(), path, err)
	}
	return answer, took, nil
}

// stream sends a request and reads a streamed response as it arrives. Times are measured from
// begun. The callback each, if not nil, is called after every line.
func (s *Server) stream(ctx context.Context, path string, body []byte, begun time.Time, each func(*survey.Stream)) (survey.Stream, error) {
	var is survey.Stream
	response, done, err := s.send(ctx, http.MethodPost, path, body)
	if err != nil {
		return is, err
	}
	defer done()
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if is.Take(line, time.Since(begun).Seconds()) || errors.Is(err, io.EOF) {
			break
		}
		if each != nil {
			each(&is)
		}
		if err != nil {
			return is, s.fault(response.Request.Context(), path, err)
		}
	}
	if !is.Whole() {
		return is, fmt.Errorf("%s does not stream tokens, or no prompt token count (stream_options.include_usage): use an OpenAI server that generates text", path)
	}
	_, _ = io.Copy(io.Discard, lines) // read to the end, so that the connection can be reused
	return is, nil
}
