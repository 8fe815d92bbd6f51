package loader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/engineclient"
)

const (
	// idle is how long an unused connection to an engine stays open. vLLM closes an unused
	// connection after 5 s, and a load that arrives while the connection closes gets no answer.
	idle = 2 * time.Second
	// maxPage limits the size of a page in a scrape. A page of vLLM has 50 to 80 kB.
	maxPage = 16 << 20
	// maxAnswer is how many bytes are read of the response to a call. Only a short message is kept,
	// but it may be anywhere in the JSON body.
	maxAnswer = 64 << 10
)

// caller makes HTTP calls to an engine.
type caller struct {
	Endpoint
	access engineclient.Access
	client http.Client
}

func newCaller(e Endpoint, a engineclient.Access) caller {
	return caller{e, a, http.Client{Transport: a.Transport(idle), CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if via[0].Method != http.MethodGet {
			return http.ErrUseLastResponse // no redirects: a call to one engine must not reach another server
		}
		return engineclient.Stay(r, via)
	}}}
}

// Close closes idle connections.
func (c *caller) Close() error {
	c.client.CloseIdleConnections()
	return nil
}

// call is one HTTP call to an engine.
type call struct {
	method, address, path string
	body                  []byte // JSON; nil for none
	raw                   bool   // send the path as it is, for servers that do not decode paths
}

// response is an engine's response without the body.
type response struct {
	to     *http.Request
	status int
	header http.Header
}

// ask makes a call and reads the body of the response, up to maxPage bytes.
func (c *caller) ask(ctx context.Context, of call, body *bytes.Buffer) (response, error) {
	body.Reset()
	connected := new(atomic.Bool)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	var sent io.Reader
	if of.body != nil {
		sent = bytes.NewReader(of.body)
	}
	path := of.path
	if of.raw {
		path = "/"
	}
	r, err := c.access.Request(ctx, of.method, of.address, c.Host, path, sent)
	if err != nil {
		return response{}, fault(Unreached, err.Error())
	}
	if of.raw {
		r.URL.Path, r.URL.Opaque = of.path, of.path
	}
	if of.body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.client.Do(r)
	if err != nil {
		return response{}, broken(r, err, connected.Load())
	}
	defer resp.Body.Close()
	if _, err = body.ReadFrom(io.LimitReader(resp.Body, maxPage+1)); err != nil {
		return response{}, broken(r, err, true)
	}
	if body.Len() > maxPage {
		return response{}, broken(r, errors.New("the answer is too long"), true)
	}
	return response{r, resp.StatusCode, resp.Header}, nil
}

// post sends a POST request with JSON fields, and reads the engine's answer.
func (c *caller) post(ctx context.Context, path string, fields map[string]string) (answer, error) {
	body, err := json.Marshal(fields)
	if err != nil {
		return answer{}, fault(Refused, err.Error())
	}
	var text bytes.Buffer
	is, err := c.ask(ctx, call{method: http.MethodPost, address: c.managedAt(), path: path, body: body}, &text)
	if err != nil {
		return answer{}, err
	}
	return answerTo(is, text.Bytes()[:min(text.Len(), maxAnswer)]), nil
}

// answerTo parses an engine's answer, and removes the call's token from it.
func answerTo(is response, body []byte) answer {
	a := readAnswer(is.status, body)
	a.words = engineclient.Conceal(a.words, engineclient.Sent(is.to))
	return a
}

// broken returns the Error of a call that failed in the network.
func broken(r *http.Request, err error, connected bool) *Error {
	if of := (*url.Error)(nil); errors.As(err, &of) {
		err = of.Err // drop the address, which the reader knows
	}
	outcome := Unreached
	if connected {
		outcome = Unclear
	}
	e := fault(outcome, fmt.Sprintf("%s %s: %v", r.Method, r.URL.Path, err))
	e.Transient = connected && r.Context().Err() == nil
	return e
}
