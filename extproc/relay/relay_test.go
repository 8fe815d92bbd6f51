package relay_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/placementclient"
	"github.com/headgate/headgate/extproc/relay"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// stage is a relay between a client and an Envoy. The test simulates both.
type stage struct {
	t      *testing.T
	tokens *relaytoken.Sealer
	fleet  *fleet.Fleet
	client *http.Client
	back   string
	stop   func()
	ended  chan error
	closed chan struct{} // receives a value for each connection to the Envoy that was closed

	mu      sync.Mutex
	got     []*http.Request
	bodies  []string
	opened  []relaytoken.Request
	refused []string // refusals that the relay counted
	places  []string // calls of Hold and of its result, each with the requests in flight at the first endpoint
}

// hold records the calls of Hold and of its result.
func (s *stage) hold(id string) (release func()) {
	note := func(what string) {
		n := s.flying()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.places = append(s.places, fmt.Sprint(what, " ", id, " ", n))
	}
	note("hold")
	return func() { note("release") }
}

// flying returns the number of requests in flight at the first endpoint.
func (s *stage) flying() int64 {
	all := fleet.Read(s.fleet, func(state *endpointstate.State) []endpointstate.Status { return state.Endpoints(s.fleet.Now()) })
	if len(all) == 0 {
		return 0
	}
	return all[0].InFlight
}

// counted returns the refusals since the last call of counted.
func (s *stage) counted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := strings.Join(s.refused, ", ")
	s.refused = nil
	return is
}

// newStage returns a stage with a fleet of these endpoints, whose Envoy answers with this handler.
func newStage(t *testing.T, endpoints []string, answer http.HandlerFunc) *stage {
	t.Helper()
	s := &stage{t: t, tokens: newTokens(t, ""), ended: make(chan error, 1), closed: make(chan struct{}, 1000)}
	s.fleet = fleetOf(t, endpoints)
	folder := t.TempDir()
	s.back = "b"
	envoy := &http.Server{Protocols: h2c(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		e, ok := s.tokens.Open(r.Header.Get("X-Headgate-Relay-Token"))
		if !ok {
			t.Error("a request without a relay token comes through Envoy")
		}
		s.mu.Lock()
		s.got, s.bodies, s.opened = append(s.got, r), append(s.bodies, string(body)), append(s.opened, e)
		s.mu.Unlock()
		answer(w, r)
	})}
	envoy.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			s.closed <- struct{}{}
		}
	}
	serve(t, envoy, filepath.Join(folder, s.back))
	socket := filepath.Join(folder, "i")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	replied := func(status int, code string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refused = append(s.refused, fmt.Sprint(status, " ", code))
	}
	server := relay.New(relay.Config{
		Folder: folder, Tokens: s.tokens, Fleet: s.fleet, Hold: s.hold, Replied: replied, Log: slog.New(slog.DiscardHandler),
	})
	go func() { s.ended <- server.Serve(ctx, l, 10*time.Second) }()
	t.Cleanup(cancel)
	s.client = &http.Client{Transport: &http.Transport{
		Protocols: h2c(),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	return s
}

func newTokens(t *testing.T, file string) *relaytoken.Sealer {
	t.Helper()
	is, err := relay.NewTokens(file)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// A process that replaces another can decrypt the other's tokens. Only the user of the process can
// read the key file.
func TestTakeOverSharesTheKey(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	file := filepath.Join(folder, "k")
	all := make([]*relaytoken.Sealer, 8)
	var begun sync.WaitGroup
	for i := range all {
		begun.Go(func() { all[i], _ = relay.NewTokens(file) })
	}
	begun.Wait()
	sealed := all[0].Seal(relaytoken.Request{Kind: relaytoken.Again})
	for i, s := range all {
		if e, ok := s.Open(sealed); !ok || e.Kind != relaytoken.Again {
			t.Errorf("process %d opens it: %v", i, ok)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("the folder has %v, %v", left, err)
	}
	if _, ok := newTokens(t, "").Open(sealed); ok {
		t.Error("another process opens it")
	}
	if err := os.WriteFile(file, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := relay.NewTokens(file); err == nil || !strings.Contains(err.Error(), file+" contains no key: remove it") {
		t.Errorf("a file without a key: %v", err)
	}
}

func h2c() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func serve(t *testing.T, s *http.Server, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
}

// fleetOf returns a fleet with the pool default/pool of model runtimes. Control has loaded "m" at
// every endpoint of the pool.
func fleetOf(t *testing.T, endpoints []string) *fleet.Fleet {
	t.Helper()
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": "a"}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	list := v1alpha1.EndpointList{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "list", Labels: map[string]string{"app": "a"}}}
	list.Spec.Addresses, list.Spec.Engine = endpoints, string(engine.ModelRuntime)
	set := objects.Set{Pools: []pool.InferencePool{p}, Lists: []objects.List{{EndpointList: list, Loopback: true}}}
	f := fleet.New(fleet.Config{Placed: true})
	f.SetWorld(objects.Build(set))
	news := endpointstate.PlacementUpdate{
		All: true, Endpoints: make(map[string]bool),
		Copies: make(map[endpointstate.CopyKey]endpointstate.CopyState),
	}
	for _, e := range endpoints {
		f.Scrape(e).Succeeded(engine.Load{})
		f.SetModels(e, engine.Models{Unlisted: true})
		news.Endpoints[e] = true
		news.Copies[endpointstate.CopyKey{
			ModelKey: objects.ModelKey{Pool: target.Target.Pool, ID: "m"},
			Endpoint: e,
		}] = endpointstate.Loaded
	}
	f.ApplyPlacement(news)
	return f
}

// copies returns the endpoints with copies of "m".
func (s *stage) copies() (all []string) {
	p := s.fleet.View().Snapshot.Pools["ns/pool"]
	for _, c := range p.Copies["m"] {
		if p.Endpoints[c.Endpoint].State != pick.Out {
			all = append(all, p.Endpoints[c.Endpoint].Address)
		}
	}
	return all
}

var target = relaytoken.Model{Name: "m", Target: route.Target{Pool: objects.Name{Namespace: "ns", Name: "pool"}, Adapter: "m"}}

// ask sends a request with a token to the relay.
func (s *stage) ask(e relaytoken.Request, header http.Header, body string) (*http.Response, string) {
	s.t.Helper()
	e.Back = s.back
	if header == nil {
		header = http.Header{"Content-Type": {"application/grpc"}}
	}
	header.Set("X-Headgate-Relay-Token", s.tokens.Seal(e))
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{
		Scheme: "http", Host: "gateway", Path: "/my.Service/Run",
		RawQuery: "a=1;b&c=%zz",
	}, Header: header, Body: io.NopCloser(strings.NewReader(body))}
	response, err := s.client.Do(r.WithContext(s.t.Context()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response, string(text)
}

// A call without a message ends with its headers, because gRPC clients treat an empty end after the
// headers as a server error. A call with a message is streamed.
func TestCallWithoutAMessage(t *testing.T) {
	more := make(chan struct{})
	s := newStage(t, []string{listening(t)}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Streams") == "" {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", "14")
			return
		}
		_, _ = io.WriteString(w, frame("one"))
		w.(http.Flusher).Flush()
		<-more
		ok(w, "two")
	})
	sealed := s.tokens.Seal(relaytoken.Request{Kind: relaytoken.Again, Models: []relaytoken.Model{target}, Back: s.back})
	call := func(header http.Header) (*http.Response, error) {
		header.Set("Content-Type", "application/grpc")
		header.Set("X-Headgate-Relay-Token", sealed)
		r := &http.Request{Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "gateway", Path: "/my.Service/Run"}, Header: header}
		return s.client.Do(r.WithContext(t.Context()))
	}
	var heard recorded // all bytes that the server sends on one connection
	transport := s.client.Transport.(*http.Transport)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &tapped{conn, &heard}, err
	}
	const each, callers = 100, 16
	var calls sync.WaitGroup
	for range callers {
		calls.Go(func() {
			for range each {
				response, err := call(http.Header{})
				if err != nil {
					t.Error(err)
					return
				}
				_ = response.Body.Close()
			}
		})
	}
	calls.Wait()
	ends, frames := 0, http2.NewFramer(io.Discard, bytes.NewReader(heard.sofar()))
	for {
		f, err := frames.ReadFrame()
		if err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				ends++
			}
		case *http2.DataFrame:
			t.Errorf("a call continues after its headers, with %d bytes", len(f.Data()))
		}
	}
	if ends != each*callers {
		t.Errorf("%d of %d calls end with their headers", ends, each*callers)
	}

	response, err := call(http.Header{"Streams": {"1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	first := make([]byte, len(frame("one")))
	if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != frame("one") {
		t.Errorf("the first message is %q, %v", first, err)
	}
	close(more)
	if rest, err := io.ReadAll(response.Body); err != nil || string(rest) != frame("two") || response.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("then %q with %v, %v", rest, response.Trailer, err)
	}
}

// recorded is a buffer of the bytes read from a connection.
type recorded struct {
	mu   sync.Mutex
	text []byte
}

func (r *recorded) sofar() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.text)
}

// tapped is a connection that records all bytes read from it.
type tapped struct {
	net.Conn
	heard *recorded
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.heard.mu.Lock()
	defer c.heard.mu.Unlock()
	c.heard.text = append(c.heard.text, p[:n]...)
	return n, err
}

// listening returns the address of a listener that accepts connections.
func listening(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return l.Addr().String()
}

// frame returns a gRPC message with its length prefix.
func frame(message string) string {
	var out bytes.Buffer
	out.WriteByte(0)
	_ = binary.Write(&out, binary.BigEndian, uint32(len(message)))
	return out.String() + message
}

// ok answers a call with one message, with metadata, and with trailers.
func ok(w http.ResponseWriter, message string) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Encoding", "identity")
	w.Header().Set("X-Of", message)
	w.Header().Set("X-Envoy-Upstream-Service-Time", "1")
	_, _ = io.WriteString(w, frame(message))
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	w.Header().Set(http.TrailerPrefix+"X-After", message)
}

// ends answers a call with a status and no message.
func ends(w http.ResponseWriter, code, words string) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Status", code)
	w.Header().Set("Grpc-Message", words)
}

// Before the relay sends a request again, it reports to the fleet which copies cannot serve it, and
// why: the port is closed, the model is missing, or the engine is stopping. Only the request's
// token changes, and the new token forbids another round. The response is forwarded unchanged, and
// Envoy does not retry it.
func TestRequestIsRepeated(t *testing.T) {
	alive, dead, lacking, stopping := listening(t), listening(t), listening(t), listening(t)
	var s *stage
	var copies []string
	var flying int64
	var places []string
	s = newStage(t, []string{alive, dead, lacking, stopping}, func(w http.ResponseWriter, _ *http.Request) {
		copies, flying = s.copies(), s.flying()
		s.mu.Lock()
		places = slices.Clone(s.places)
		s.mu.Unlock()
		ok(w, "answer")
	})
	if all := s.copies(); len(all) != 4 {
		t.Fatalf("the copies are %v", all)
	}
	place := pick.Decision{
		Endpoint: s.fleet.View().Snapshot.Pools["ns/pool"].Endpoints[0],
		Copy:     &s.fleet.View().Snapshot.Pools["ns/pool"].Copies["m"][0],
	}
	s.fleet.Keep("decision", s.fleet.Begin(place))
	if s.flying() != 1 {
		t.Fatal("the request is not in flight")
	}
	// Each endpoint has its own port. The port of the endpoint that lacks the model is closed,
	// which the relay does not notice because it does not dial that endpoint.
	at := map[string]string{alive: listening(t), dead: silent(t), lacking: silent(t), stopping: listening(t)}
	e := relaytoken.Request{
		Kind: relaytoken.Again, ID: "decision", SentAt: time.Now().UnixNano(), Listener: "l",
		Given: objects.Name{Name: "given"}, Models: []relaytoken.Model{target},
	}
	for _, endpoint := range []string{alive, dead, lacking, stopping} {
		e.Tried = append(e.Tried, relaytoken.Copy{Endpoint: endpoint, At: at[endpoint], Model: "m"})
	}
	response, body := s.ask(e, http.Header{
		"Content-Type": {"application/grpc"}, "X-Gateway-Missing": {at[lacking]}, "X-Gateway-Stopping": {at[stopping]}, "Te": {"trailers"},
		"X-Forwarded-For": {"10.0.0.9"}, "Forwarded": {"for=10.0.0.9"}, "X-Mine": {"1", "2"}, "Mm-Model-Id": {"m"},
	}, frame("question"))
	if body != frame("answer") || response.Trailer.Get("Grpc-Status") != "0" || response.Trailer.Get("X-After") != "answer" ||
		response.Header.Get("X-Of") != "answer" {
		t.Errorf("the answer is %q with %v and %v", body, response.Header, response.Trailer)
	}
	if response.Header.Get("X-Gateway-Final") == "" {
		t.Error("the answer may be retried elsewhere")
	}
	if fmt.Sprint(copies) != fmt.Sprint([]string{alive}) {
		t.Errorf("when it is decided again the copies are %v, want that of %s", copies, alive)
	}
	for i, e := range s.fleet.View().Snapshot.Pools["ns/pool"].Endpoints {
		if out := e.State == pick.Out; out != (e.Address == dead || e.Address == stopping) {
			t.Errorf("endpoint %d is %v", i, e.State)
		}
	}
	if flying != 0 {
		t.Errorf("when it is decided again, %d are still in flight at the earlier endpoint", flying)
	}
	// It keeps its place in the limit of concurrent requests from before the count ends until the
	// response is complete.
	if want := []string{"hold decision 1"}; !slices.Equal(places, want) {
		t.Errorf("when it is decided again: %q, want %q", places, want)
	}
	if want := []string{"hold decision 1", "release decision 0"}; !slices.Equal(s.places, want) {
		t.Errorf("in the end: %q, want %q", s.places, want)
	}
	r := s.got[0]
	if r.URL.Path != "/my.Service/Run" || r.URL.RawQuery != "a=1;b&c=%zz" || r.Host != "gateway" || s.bodies[0] != frame("question") ||
		fmt.Sprint(r.Header["X-Mine"]) != "[1 2]" ||
		r.Header.Get("X-Forwarded-For") != "10.0.0.9" || r.Header.Get("Forwarded") != "for=10.0.0.9" ||
		r.Header.Get("Te") != "trailers" || r.Header.Get("Mm-Model-Id") != "m" || r.Header["X-Gateway-Missing"] != nil ||
		r.Header["X-Gateway-Stopping"] != nil {
		t.Errorf("it is sent as %s %s with %v: %q", r.Host, r.URL, r.Header, s.bodies[0])
	}
	is := s.opened[0]
	if is.Kind != relaytoken.Sent || !is.Last || is.Back != s.back || is.Listener != "l" || is.Given.Name != "given" ||
		len(is.Models) != 1 || is.Models[0].Name != "m" || is.Models[0].Target.Adapter != "m" || is.Tried != nil {
		t.Errorf("its token is %+v", is)
	}
}

// An engine may answer that it lacks a model, and then load it. If control reports the load after
// the request was sent, the relay does not mark the copy as missing.
func TestCopyLoadedMeanwhileExists(t *testing.T) {
	at := listening(t)
	sent := time.Now()
	s := newStage(t, []string{at}, func(w http.ResponseWriter, _ *http.Request) { ok(w, "answer") })
	e := relaytoken.Request{
		Kind: relaytoken.Again, SentAt: sent.UnixNano(), Models: []relaytoken.Model{target},
		Tried: []relaytoken.Copy{{Endpoint: at, At: at, Model: "m"}},
	}
	missing := http.Header{"Content-Type": {"application/grpc"}, "X-Gateway-Missing": {at}}
	for _, want := range []int{1, 0} {
		if _, body := s.ask(e, missing, frame("question")); body != frame("answer") {
			t.Errorf("the answer is %q", body)
		}
		if all := s.copies(); len(all) != want {
			t.Errorf("the copies are %v, want %d", all, want)
		}
		e.SentAt = time.Now().UnixNano()
	}
}

// If the client disconnects while the relay dials the copies, the relay reports nothing about them.
func TestCancelledRequestIsNoFailureOfACopy(t *testing.T) {
	alive := listening(t)
	s := newStage(t, []string{alive}, func(http.ResponseWriter, *http.Request) {})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(gone, http.MethodPost, "/my.Service/Run", nil)
	r.Header = http.Header{"X-Headgate-Relay-Token": {s.tokens.Seal(relaytoken.Request{
		Kind: relaytoken.Again, Back: s.back,
		Models: []relaytoken.Model{target}, Tried: []relaytoken.Copy{{Endpoint: alive, At: alive, Model: "m"}},
	})}}
	relay.New(relay.Config{Tokens: s.tokens, Fleet: s.fleet, Log: slog.New(slog.DiscardHandler)}).ServeHTTP(httptest.NewRecorder(), r)
	if fmt.Sprint(s.copies()) != fmt.Sprint([]string{alive}) {
		t.Errorf("the copies are %v", s.copies())
	}
}

// The relay forwards each piece of a response when it arrives. It does not keep its connection for
// long: an Envoy that was stopped waits 5 s for that.
func TestResponseIsStreamed(t *testing.T) {
	seen := make(chan struct{})
	s := newStage(t, []string{listening(t)}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n")
		_ = http.NewResponseController(w).Flush()
		<-seen
		_, _ = io.WriteString(w, "data: 2\n")
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/v1/completions", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Headgate-Relay-Token", s.tokens.Seal(relaytoken.Request{
		Kind: relaytoken.Again, Back: s.back,
		Models: []relaytoken.Model{target},
	}))
	response, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	first := make([]byte, 8)
	if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "data: 1\n" {
		t.Fatalf("%q, %v", first, err)
	}
	close(seen)
	if rest, err := io.ReadAll(response.Body); err != nil || string(rest) != "data: 2\n" {
		t.Errorf("%q, %v", rest, err)
	}
	select {
	case <-s.closed:
	case <-time.After(4 * time.Second):
		t.Error("the relay keeps its connection to Envoy")
	}
}

// Errors have the format of the client's protocol, and are marked as final.
func TestRelayErrors(t *testing.T) {
	s := newStage(t, []string{listening(t)}, func(http.ResponseWriter, *http.Request) { t.Error("a request comes through Envoy") })
	gone := relaytoken.Request{Kind: relaytoken.Again, Models: []relaytoken.Model{target}}
	for _, c := range []struct {
		what, contentType, sealed, want string
	}{
		{
			"a call of another process", "application/grpc", newTokens(t, "").Seal(gone),
			`200 14 The gateway restarted while it handled the request. Try again. ""`,
		},
		{
			"a request without a relay token", "application/json", "",
			`503   "{\"error\":{\"code\":\"no_endpoint\",\"message\":\"The gateway restarted while it handled the request. Try again.\",\"type\":\"server_error\"}}"`,
		},
		{
			"a call that was sent already", "application/grpc",
			s.tokens.Seal(relaytoken.Request{Kind: relaytoken.Sent, Back: s.back, Models: []relaytoken.Model{target}}),
			`200 14 The gateway restarted while it handled the request. Try again. ""`,
		},
		{
			"an Envoy that does not exist", "application/grpc",
			s.tokens.Seal(relaytoken.Request{Kind: relaytoken.Again, Back: s.back + "x", Models: []relaytoken.Model{target}}),
			`200 14 No endpoint could be reached. Try again. ""`,
		},
		{"several for one", "application/grpc", s.tokens.Seal(relaytoken.Request{
			Kind: relaytoken.Several, Back: s.back + "x",
			Models: []relaytoken.Model{target},
		}), `200 14 No endpoint could be reached. Try again. ""`},
		{
			"several that are no call", "application/json",
			s.tokens.Seal(relaytoken.Request{Kind: relaytoken.Several, Back: s.back, Models: []relaytoken.Model{target}}),
			`503   "{\"error\":{\"code\":\"no_endpoint\",\"message\":\"The gateway restarted while it handled the request. Try again.\",\"type\":\"server_error\"}}"`,
		},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/a", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", c.contentType)
		r.Header.Set("X-Headgate-Relay-Token", c.sealed)
		response, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		words, _ := url.PathUnescape(response.Header.Get("Grpc-Message"))
		if got := fmt.Sprintf("%d %s %s %q", response.StatusCode, response.Header.Get("Grpc-Status"), words, body); got != c.want ||
			response.Header.Get("X-Gateway-Final") == "" {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
		if is := s.counted(); is != "503 no_endpoint" {
			t.Errorf("%s: %q is counted", c.what, is)
		}
	}
}

// A call for several models goes to each model, at most four at a time. The responses are joined in
// the order of the models in the call, with the metadata of all responses.
func TestCallForSeveralModels(t *testing.T) {
	var mu sync.Mutex
	now, most := 0, 0
	full := make(chan struct{})
	s := newStage(t, []string{listening(t)}, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		now++
		if most = max(most, now); now == 4 {
			close(full) // happens once: the fifth call begins after another one has ended
		}
		mu.Unlock()
		if id := r.Header.Get("Mm-Model-Id"); id != "five" && id != "six" {
			<-full
		}
		mu.Lock()
		now--
		mu.Unlock()
		ok(w, r.Header.Get("Mm-Model-Id"))
	})
	var models []relaytoken.Model
	ids := []string{"one", "two", "three", "four", "five", "six"}
	for _, id := range ids {
		models = append(models, relaytoken.Model{Name: id, Target: route.Target{Adapter: id}})
	}
	response, body := s.ask(relaytoken.Request{Kind: relaytoken.Several, Models: models, Listener: "l"},
		http.Header{"Content-Type": {"application/grpc"}, "X-Mine": {"1"}, "Grpc-Accept-Encoding": {"gzip"}}, frame("question"))
	if body != frame(strings.Join(ids, "")) || response.Trailer.Get("Grpc-Status") != "0" ||
		fmt.Sprint(response.Header["X-Of"]) != fmt.Sprint(ids) || fmt.Sprint(response.Trailer["X-After"]) != fmt.Sprint(ids) {
		t.Errorf("the answer is %q with %v and %v", body, response.Header, response.Trailer)
	}
	if len(response.Header["Content-Type"]) != 1 || response.Header.Get("Grpc-Encoding") != "" ||
		response.Header["X-Envoy-Upstream-Service-Time"] != nil || response.Header.Get("X-Gateway-Final") == "" {
		t.Errorf("its headers are %v", response.Header)
	}
	if most != 4 {
		t.Errorf("%d were called at a time", most)
	}
	for i, r := range s.got {
		id := r.Header.Get("Mm-Model-Id")
		e := s.opened[i]
		if r.URL.Path != "/my.Service/Run" || r.Header.Get("X-Mine") != "1" || r.Header.Get("Grpc-Accept-Encoding") != "" ||
			s.bodies[i] != frame("question") ||
			e.Kind != relaytoken.Sent || e.Last || e.Listener != "l" || len(e.Models) != 1 || e.Models[0].Name != id ||
			e.Models[0].Target.Adapter != id {
			t.Errorf("%s is called as %s with %v, %+v: %q", id, r.URL, r.Header, e, s.bodies[i])
		}
	}
}

// Unknown models are skipped unless the call requires all of them. Any other error ends the call
// and cancels the calls for other models.
func TestErrorsOfSeveralModels(t *testing.T) {
	begun, left := make(chan struct{}, 1), make(chan struct{}, 1) // signals that the call for "slow" has begun and that it has ended
	s := newStage(t, []string{listening(t)}, func(w http.ResponseWriter, r *http.Request) {
		switch id := r.Header.Get("Mm-Model-Id"); id {
		case "unknown":
			ends(w, "5", "model not found")
		case "novmodel":
			ends(w, "5", "vmodel not found")
		case "mine": // the model's own NOT_FOUND, which does not mean that the model is unknown
			ends(w, "5", "no such row")
		case "bad":
			ends(w, "3", "bad%20shape%3A 1%252 a+b")
		case "late":
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = io.WriteString(w, frame("half"))
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "13")
			w.Header().Set(http.TrailerPrefix+"Grpc-Message", "late")
		case "slow":
			begun <- struct{}{}
			<-r.Context().Done()
			left <- struct{}{}
		case "bad-beside-slow":
			<-begun // wait, because after this error the relay would not call "slow"
			ends(w, "3", "worse")
		case "none":
			w.Header().Set("Content-Type", "application/grpc")
			_ = http.NewResponseController(w).Flush()
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		case "two":
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = io.WriteString(w, frame("a")+frame("b"))
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		case "half":
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = io.WriteString(w, frame("a")+"\x00\x00")
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		case "plain":
			w.WriteHeader(http.StatusBadGateway)
		case "huge":
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = w.Write(make([]byte, 129<<20))
		default:
			ok(w, id)
		}
	})
	for _, c := range []struct {
		models  string
		all     bool
		want    string
		counted string // refusals that the relay counts; where an engine or extproc refused, they count them
	}{
		{"a unknown b", false, "0  ab", ""},
		{"unknown novmodel a", false, "0  a", ""},
		{"a unknown", true, "5 model not found ", ""},
		{"unknown novmodel", false, "5 none of the requested models were found ", "404 model_not_found"},
		{"a mine", false, "5 no such row ", ""},
		{"a bad", false, "3 bad shape: 1%2 a+b ", ""},
		{"a late", false, "13 late ", ""},
		{"slow bad-beside-slow", false, "3 worse ", ""},
		{"a none", false, "13 A model's answer contains no message. ", "500 internal"},
		{"a two", false, "12 In a call for several models, each model must answer with one message. ", "501 unknown_method"},
		{"a half", false, "12 In a call for several models, each model must answer with one message. ", "501 unknown_method"},
		{"a plain", false, "14 An endpoint ended the call without a status. ", "503 no_endpoint"},
		{"a huge", false, "8 The request and its answers together exceed 128 MiB. ", "429 request_too_large"},
	} {
		var models []relaytoken.Model
		for id := range strings.FieldsSeq(c.models) {
			models = append(models, relaytoken.Model{Name: id})
		}
		response, body := s.ask(relaytoken.Request{Kind: relaytoken.Several, Models: models, All: c.all}, nil, frame(""))
		status, words := response.Trailer.Get("Grpc-Status"), ""
		if status == "" {
			status = response.Header.Get("Grpc-Status")
			words, _ = url.PathUnescape(response.Header.Get("Grpc-Message"))
		} else {
			body = body[5:]
		}
		if got := status + " " + words + " " + body; got != c.want {
			t.Errorf("%s, all %v: %q, want %q", c.models, c.all, got, c.want)
		}
		if is := s.counted(); is != c.counted {
			t.Errorf("%s, all %v: %q is counted, want %q", c.models, c.all, is, c.counted)
		}
	}
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("a call continues although its answer is not needed")
	}
	s.stop()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

// When the server stops, it first answers the requests in flight.
func TestRelayStopsAfterItsRequests(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	s := newStage(t, []string{listening(t)}, func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-end
		ok(w, "answer")
	})
	answered := make(chan string)
	go func() {
		_, body := s.ask(relaytoken.Request{Kind: relaytoken.Again, Models: []relaytoken.Model{target}}, nil, frame("question"))
		answered <- body
	}()
	<-begun
	s.stop()
	select {
	case err := <-s.ended:
		t.Fatalf("it ends before: %v", err)
	case <-time.After(20 * time.Millisecond): // a server that does not wait would have ended by now
	}
	close(end)
	if body := <-answered; body != frame("answer") {
		t.Errorf("the answer is %q", body)
	}
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

// A ModelMesh client with the token reaches control, with its request unchanged. A client without
// it is refused.
func TestModelMeshClientsReachControl(t *testing.T) {
	folder := t.TempDir()
	got := make(chan *http.Request, 1)
	control := &http.Server{Protocols: h2c(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r
		ok(w, "status")
	})}
	serve(t, control, filepath.Join(folder, "c"))
	transport, err := placementclient.Control{Address: "unix:" + filepath.Join(folder, "c")}.Transport(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	token := "secret"
	tokens := newTokens(t, "")
	for _, c := range []struct {
		what, authorization, token string
		mesh                       bool
		want                       string
	}{
		{"with the token", "Bearer secret", "secret", true, "0"},
		{"with another", "Bearer secre", "secret", true, "16"},
		{"with none", "", "secret", true, "16"},
		{"with an empty one where the file is empty", "Bearer ", "", true, "16"},
		{"not as a bearer", "secret", "secret", true, "16"},
		{"without a connection to control", "Bearer secret", "secret", false, "14"},
		{"of another service", "Bearer secret", "secret", true, "12"},
	} {
		token = c.token
		server := relay.New(relay.Config{Tokens: tokens, Log: slog.New(slog.DiscardHandler)})
		if c.mesh {
			server.Mesh = &relay.Mesh{Token: func() string { return token }, Control: transport}
		}
		w := httptest.NewRecorder()
		path := "/mmesh.ModelMesh/getModelStatus"
		if c.what == "of another service" {
			path = "/placement.Placement/Talk"
		}
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(frame("question")))
		r.Header = http.Header{
			"Content-Type":           {"application/grpc"},
			"X-Headgate-Relay-Token": {tokens.Seal(relaytoken.Request{Kind: relaytoken.Manage})}, "Te": {"trailers"},
		}
		if c.authorization != "" {
			r.Header.Set("Authorization", c.authorization)
		}
		server.ServeHTTP(w, r)
		answer := w.Result()
		status := answer.Trailer.Get("Grpc-Status")
		if status == "" {
			status = answer.Header.Get("Grpc-Status")
		}
		if status != c.want {
			t.Errorf("%s the call ends with %s, want %s", c.what, status, c.want)
		}
		if c.want != "0" {
			continue
		}
		if is := <-got; is.URL.Path != "/mmesh.ModelMesh/getModelStatus" || is.Host != "control.headgate.dev" ||
			is.Header.Get("Authorization") != "Bearer secret" || is.Header.Get("X-Headgate-Relay-Token") != "" {
			t.Errorf("control gets %s with %v", is.URL, is.Header)
		}
	}
	select {
	case r := <-got:
		t.Errorf("control gets %s, too", r.URL)
	default:
	}
}

// A REST request becomes a gRPC call for the admitted model, with the request's metadata. The
// client gets a REST response.
func TestRequestsByRESTBecomeCalls(t *testing.T) {
	s := newStage(t, []string{listening(t)}, func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-Case") {
		case "fails":
			ends(w, "3", "bad%20shape")
		case "many":
			_, _ = io.WriteString(w, frame("")+frame(""))
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		case "metadata":
			ok(w, "\x0a\x01e\x12\x011")
		default: // as text: model_name: e, outputs: [{name: y, datatype: INT32, shape: [1], contents: {int_contents: [7]}}]
			ok(w, "\x0a\x01e\x2a\x12\x0a\x01y\x12\x05INT32\x1a\x01\x01\x2a\x03\x12\x01\x07")
		}
	})
	const infer = `{"id":"1","inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[7]}]}`
	zipped := func(text string) string {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = io.WriteString(w, text)
		_ = w.Close()
		return out.String()
	}
	const answer = `{"model_name":"e","outputs":[{"name":"y","datatype":"INT32","shape":[1],"data":[7]}]}`
	for _, c := range []struct {
		what, method, path, body string
		header                   map[string]string
		status                   int
		want, call               string
	}{
		{"inference", "POST", "/v2/models/m/infer", infer, nil, 200, answer, "ModelInfer"},
		{"of a version", "POST", "/v2/models/m/versions/3/infer", infer, nil, 200, answer, "ModelInfer"},
		{
			"an unchanged body", "POST", "/v2/models/m/infer", infer,
			map[string]string{"Content-Encoding": "Identity"},
			200, answer,
			"ModelInfer",
		},
		{
			"a compressed body", "POST", "/v2/models/m/infer", zipped(infer),
			map[string]string{"Content-Encoding": "gzip"},
			200, answer,
			"ModelInfer",
		},
		{
			"a request for the model", "GET", "/v2/models/m", "",
			map[string]string{"X-Case": "metadata"},
			200,
			`{"name":"e","versions":["1"],"platform":"","inputs":[],"outputs":[]}`, "ModelMetadata",
		},
		{
			"an error of the model", "POST", "/v2/models/m/infer", infer,
			map[string]string{"X-Case": "fails"},
			400, `{"error":"bad shape"}`,
			"ModelInfer",
		},
		{
			"two messages", "POST", "/v2/models/m/infer", infer,
			map[string]string{"X-Case": "many"},
			500,
			`{"error":"The model's answer has more than one message."}`, "ModelInfer",
		},
		{"no JSON", "POST", "/v2/models/m/infer", "x", nil, 400, "", ""},
		{
			"no gzip", "POST", "/v2/models/m/infer", "x",
			map[string]string{"Content-Encoding": "gzip"},
			400,
			`{"error":"The body is not valid in its content encoding."}`, "",
		},
		{
			"gzip that is cut off", "POST", "/v2/models/m/infer", zipped(infer)[:40],
			map[string]string{"Content-Encoding": "gzip"},
			400,
			`{"error":"The body is not valid in its content encoding."}`, "",
		},
		{
			"another encoding", "POST", "/v2/models/m/infer", "x",
			map[string]string{"Content-Encoding": "br"},
			400,
			`{"error":"Send the body without a content encoding, or with gzip."}`, "",
		},
		{"a stream", "POST", "/v2/models/m/infer_stream", infer, nil, 501, "", ""},
		{
			"too much", "POST", "/v2/models/m/infer", strings.Repeat(zipped(strings.Repeat(" ", 1<<20)), 129),
			map[string]string{"Content-Encoding": "gzip"},
			429,
			"", "",
		},
	} {
		s.got, s.bodies, s.opened = nil, nil, nil
		r, err := http.NewRequestWithContext(t.Context(), c.method, "http://gateway"+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Mine", "1")
		r.Header.Set("Mm-Model-Id-Bin", "b3RoZXI")
		r.Header.Set("Mm-Vmodel-Id", "other")
		r.Header.Set("X-Headgate-Relay-Token", s.tokens.Seal(relaytoken.Request{
			Kind: relaytoken.Transcode, Back: s.back,
			Models: []relaytoken.Model{target},
		}))
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		response, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != c.status || c.want != "" && string(body) != c.want || !strings.HasPrefix(string(body), "{") ||
			response.Header.Get("Content-Type") != "application/json" || response.Header.Get("X-Gateway-Final") == "" {
			t.Errorf("%s: %d %s with %v, want %d %s", c.what, response.StatusCode, body, response.Header, c.status, c.want)
		}
		if is, refused := s.counted(), c.status != 200 && c.header["X-Case"] != "fails"; (is != "") != refused || refused &&
			!strings.HasPrefix(is, strconv.Itoa(c.status)+" ") {
			t.Errorf("%s: %q is counted", c.what, is)
		}
		if c.call == "" {
			if len(s.got) > 0 {
				t.Errorf("%s: a call is made", c.what)
			}
			continue
		}
		if len(s.got) != 1 {
			t.Fatalf("%s: %d calls are made", c.what, len(s.got))
		}
		is, e := s.got[0], s.opened[0]
		if is.URL.Path != "/inference.GRPCInferenceService/"+c.call || is.Method != http.MethodPost ||
			is.Header.Get("Content-Type") != "application/grpc" || is.Header.Get("Te") != "trailers" ||
			is.Header.Get("X-Mine") != "1" || is.Header.Get("Mm-Model-Id") != "m" || is.Header.Get("Mm-Model-Id-Bin") != "bQ" ||
			is.Header.Get("Mm-Vmodel-Id") != "" || is.Header.Get("Content-Encoding") != "" || is.Header.Get("Accept-Encoding") != "" {
			t.Errorf("%s: the call is %s with %v", c.what, is.URL, is.Header)
		}
		if e.Kind != relaytoken.Sent || e.Last || len(e.Models) != 1 || e.Models[0].Target.Adapter != "m" {
			t.Errorf("%s: its token is %+v", c.what, e)
		}
	}
	// inBinary is a request whose outputs must be binary.
	const inBinary = `{"inputs":[{"name":"x","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}}],"parameters":{"binary_data_output":true}}`
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/v2/models/m/infer",
		strings.NewReader(inBinary+"\x07\x00\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(inBinary)))
	r.Header.Set("X-Headgate-Relay-Token", s.tokens.Seal(relaytoken.Request{
		Kind: relaytoken.Transcode, Back: s.back,
		Models: []relaytoken.Model{target},
	}))
	response, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	if response.Header.Get("Inference-Header-Content-Length") != strconv.Itoa(len(body)-4) ||
		!strings.HasSuffix(string(body), "\x07\x00\x00\x00") || response.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("in binary: %q with %v", body, response.Header)
	}
}

// The relay asks one pool after the other for a stored response until a pool has it. Each pool gets
// the whole request.
func TestPoolsAreSearchedForAStoredResponse(t *testing.T) {
	for want, answers := range map[string][]int{
		"200 answer 0": {200, 200, 200}, "200 answer 1": {400, 200, 200}, "200 answer 2": {404, 503, 200},
		"404 answer 0": {404, 404, 404}, "503 answer 1": {404, 503, 404}, "403 answer 0": {403, 404, 503},
	} {
		var n atomic.Int32
		s := newStage(t, []string{listening(t)}, func(w http.ResponseWriter, _ *http.Request) {
			at := n.Add(1) - 1
			w.WriteHeader(answers[at])
			_, _ = fmt.Fprintf(w, "answer %d", at)
		})
		e := relaytoken.Request{Kind: relaytoken.Search, Listener: "l", Most: 2}
		for _, name := range []string{"a", "b", "c"} {
			e.Models = append(e.Models, relaytoken.Model{Target: route.Target{Pool: objects.Name{Name: name}}})
		}
		response, body := s.ask(e, http.Header{"Content-Type": {"application/json"}, "X-Mine": {"1"}}, "{}")
		if got := fmt.Sprint(response.StatusCode, " ", body); got != want || response.Header.Get("X-Gateway-Final") == "" {
			t.Errorf("of %v it gets %q, want %q", answers, got, want)
		}
		for i, r := range s.got {
			if is := s.opened[i]; is.Kind != relaytoken.Sent || !is.Last || is.Most != 2 || is.Listener != "l" || len(is.Models) != 1 ||
				is.Models[0].Target.Pool.Name != string("abc"[i]) ||
				s.bodies[i] != "{}" || r.URL.RawQuery != "a=1;b&c=%zz" || r.Header.Get("X-Mine") != "1" || r.Host != "gateway" {
				t.Errorf("request %d to %v is %v with %+v: %q", i, answers, r, is, s.bodies[i])
			}
		}
	}
}
