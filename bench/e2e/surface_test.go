package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headgate/headgate/headgate/rig"
)

// Errors on Anthropic's Messages API have that API's format, including Envoy's own errors.
func TestMessagesAPIErrorFormat(t *testing.T) {
	runs(t)
	s := start(t)
	many := make(map[string]string)
	for n := range 130 {
		many[fmt.Sprintf("X-H%d", n)] = "v"
	}
	for _, c := range []struct {
		name   string
		r      request
		status int
		kind   string
	}{
		{"a bad body", request{body: "{bad"}, 400, "invalid_request_error"},
		{"an unknown model", request{body: `{"model":"gpt-9"}`}, 404, "not_found_error"},
		{"too large", request{body: strings.Repeat("a", 33<<20)}, 413, "request_too_large"},
		{"too many headers", request{body: `{"model":"llama"}`, header: many}, 431, "invalid_request_error"},
		{"the engine drops the connection", request{
			body:   `{"model":"llama","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`,
			header: map[string]string{"X-Sim-Fault": "reset"},
		}, 503, "api_error"},
	} {
		c.r.path = "/v1/messages"
		a := s.must(c.r)
		var e struct {
			Type  string
			Error struct{ Type, Message string }
		}
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Type != "error" || e.Error.Type != c.kind || e.Error.Message == "" ||
			a.status != c.status {
			t.Errorf("%s: %d %s, %v, want %d %s", c.name, a.status, a.body, err, c.status, c.kind)
		}
		if (a.status == 503) != (a.header.Get("Retry-After") != "") {
			t.Errorf("%s: Retry-After is %q", c.name, a.header.Get("Retry-After"))
		}
	}
	s.Extproc.Kill()
	a := s.must(request{path: "/v1/messages", body: `{"model":"llama"}`})
	if a.status != 503 || !strings.Contains(a.body, `"overloaded_error"`) || a.header.Get("Retry-After") == "" {
		t.Errorf("while nobody leads: %d %s", a.status, a.body)
	}
}

// A client that sends all of a large body before it reads gets the error that the body is too
// large. So does a client that stops sending in between.
func TestClientsThatSendBeforeTheyReadGetTheirError(t *testing.T) {
	runs(t, alone) // alone, because Envoy gives a client only one second to send the rest
	s := start(t)
	const size = 64 << 20
	send := func(path string, n int) *http.Response {
		t.Helper()
		conn, err := net.Dial("tcp", s.Listen)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path,
			size); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(make([]byte, n)); err != nil {
			t.Fatalf("%s: of %d bytes: %v", path, n, err)
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: after %d bytes: %v", path, n, err)
		}
		return r
	}
	for _, c := range []struct {
		path string
		n    int
	}{{"/v1/completions", size}, {"/v1/completions", 1000}, {"/v1/embeddings", size}, {"/v1/responses/resp_x/cancel", size}} {
		r := send(c.path, c.n)
		body, err := io.ReadAll(r.Body)
		if r.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(body), "request_too_large") || err != nil {
			t.Errorf("%s after %d bytes: %d %s, %v", c.path, c.n, r.StatusCode, body, err)
		}
	}
	sent := &counter{r: io.LimitReader(zeros{}, size)}
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.Listen+"/v1/completions", sent)
	if err != nil {
		t.Fatal(err)
	}
	q.ContentLength = size
	q.Header.Set("Content-Type", "application/json")
	r, err := client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if n := sent.n.Load(); r.StatusCode != http.StatusRequestEntityTooLarge || n != size {
		t.Errorf("by HTTP/2: %d after %d bytes", r.StatusCode, n)
	}
}

// zeros is an endless reader of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// counter is a reader that counts the bytes that were read from it.
type counter struct {
	r io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// A client that sends too many headers, or requests a response that is too large, gets an error.
// The error is not counted as a failure of an endpoint.
func TestEnvoysOwnErrorsCountAgainstNoEndpoint(t *testing.T) {
	runs(t)
	s := start(t, func(c *rig.Config) {
		// The server at this address responds with 33 MiB.
		large := strings.TrimSuffix(c.Listen, "1:8080") + "31:8000"
		l, err := net.Listen("tcp", large)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/v1/models":
				_, _ = io.WriteString(w, `{"data":[{"id":"large"}]}`)
			case "/metrics":
				_, _ = io.WriteString(w, "vllm:num_requests_running 0\n")
			case "/v1/chat/completions":
				for n := range 150 {
					w.Header().Set(fmt.Sprintf("X-H%d", n), "v")
				}
			default:
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"text":"%s"}`, bytes.Repeat([]byte("a"), 33<<20))
			}
		})}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close() })
		text := "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: large}\nspec: {selector: {matchLabels: {app: large}}, targetPorts: [{number: 8000}]}\n" +
			"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: large, labels: {app: large}}\nspec: {addresses: ['" + large +
			"']}\n" +
			"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: large}\nspec: {backendRefs: [{name: large}]}\n"
		if err := os.WriteFile(filepath.Join(c.Objects, "large.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	for _, n := range []int{80, 90, 100, 110, 120, 130, 500} {
		r := completion("llama", 1, false)
		r.header = make(map[string]string)
		for i := range n {
			r.header[fmt.Sprintf("X-H%d", i)] = "v"
		}
		switch a := s.must(r); {
		case n > 120 || n > 100 && a.status != http.StatusOK:
			refused(t, fmt.Sprintf("%d headers", n), a, http.StatusRequestHeaderFieldsTooLarge, "headers_too_large")
		case a.status != http.StatusOK:
			t.Errorf("%d headers: %d %s", n, a.status, a.body)
		}
	}
	answered := completion("large", 1, false)
	answered.path = "/v1/chat/completions"
	if a := s.must(answered); a.status != http.StatusOK || a.header.Get("X-H149") != "v" {
		t.Errorf("an answer with 150 headers: %d %s", a.status, a.body)
	}
	refused(t, "too large an answer", s.must(completion("large", 1, false)), http.StatusInternalServerError, "answer_too_large")
	s.Envoy.Stop(5 * time.Second) // Envoy has sent all its records when it has stopped
	s.await("every request is counted as gone", func() bool { return s.inFlight() == 0 })
	if n := s.sum(s.Metrics, "headgate_endpoint_state", "state", "suspect"); n != 0 {
		t.Errorf("%v endpoints are suspect", n)
	}
	if n := s.sum(s.Metrics, "headgate_failures_total", "kind", "error"); n != 0 {
		t.Errorf("%v errors are held against endpoints", n)
	}
}

// Text that clients choose is truncated in Envoy's log.
func TestClientTextIsTruncatedInTheLog(t *testing.T) {
	runs(t)
	s := start(t)
	long := strings.Repeat("x", 4000)
	s.must(request{path: "/v1/" + long, body: "{}", header: map[string]string{"X-Request-Id": long}})
	s.Envoy.Stop(5 * time.Second) // Envoy flushes its log when it stops
	text, err := os.ReadFile(s.Envoy.Log)
	if err != nil {
		t.Fatal(err)
	}
	var found bool
	for line := range strings.Lines(string(text)) {
		var entry struct{ ID, Path string }
		if json.Unmarshal([]byte(line), &entry) != nil || !strings.Contains(entry.Path, "xxxx") {
			continue
		}
		found = true
		if len(entry.ID) != 256 || len(entry.Path) != 256 || len(line) > 2000 {
			t.Errorf("the log has %d bytes of the id, %d of the path, %d in all", len(entry.ID), len(entry.Path), len(line))
		}
	}
	if !found {
		t.Error("the log lacks the request")
	}
}

// The list of models has the fields that clients of OpenAI and vLLM read, and does not reveal where
// the engines' files are.
func TestModelsList(t *testing.T) {
	runs(t, raced)
	s := start(t, pods(t, 1))
	type model struct {
		ID, Object string
		Created    *int64
		OwnedBy    string `json:"owned_by"`
		Parent     *string
		Length     int `json:"max_model_len"`
		Root       *string
	}
	read := func(path string, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(s.must(request{method: "GET", path: path}).body), into); err != nil {
			t.Error(err)
		}
	}
	var list struct{ Data []model }
	read("/v1/models", &list)
	for _, id := range []string{baseRoute, "a01"} {
		var one, again model
		read("/v1/models/"+id, &one)
		read("/v1/models/"+id, &again)
		at := slices.IndexFunc(list.Data, func(m model) bool { return m.ID == id })
		if at < 0 || one.Object != "model" || one.Created == nil || *one.Created == 0 || *one.Created != *again.Created ||
			one.OwnedBy == "" || one.Length != 16384 || one.Root != nil || list.Data[at].Length != one.Length {
			t.Errorf("%+v, in the list %+v", one, list.Data)
		}
		if adapter := id != baseRoute; adapter != (one.Parent != nil) || adapter && *one.Parent != baseRoute {
			t.Errorf("%s has the parent %v", id, one.Parent)
		}
	}
	head := s.must(request{method: "HEAD", path: "/v1/models"})
	if head.status != 200 || head.body != "" || head.header.Get("Content-Type") != "application/json" {
		t.Errorf("HEAD: %d %q", head.status, head.body)
	}
}

// /health reports the states of the engines. Its status is 200 while at least one is healthy.
func TestHealthReportsEndpoints(t *testing.T) {
	runs(t)
	s := start(t, pods(t, 2))
	health := request{method: "GET", path: "/health"}
	if a := s.must(health); a.status != 200 {
		t.Errorf("with both: %d %s", a.status, a.body)
	}
	s.Engines[s.endpoint(1)].Kill()
	s.await("one is gone", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "state", "healthy") == 1 })
	if a := s.must(health); a.status != 200 {
		t.Errorf("with one: %d %s", a.status, a.body)
	}
	s.Engines[s.endpoint(2)].Kill()
	s.await("none is well", func() bool { return s.must(health).status == 503 })
	refused(t, "with none", s.must(health), 503, "no_endpoint")
}

// Requests with HTTP/1.0, which nginx sends to its upstreams by default, are served.
func TestHTTP10IsServed(t *testing.T) {
	runs(t)
	s := start(t)
	for _, stream := range []bool{false, true} {
		body := completion("a01", 5, stream).body
		conn, err := net.Dial("tcp", s.Listen)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK || stream && !(answer{body: string(text)}).done() || !stream &&
			!json.Valid(text) {
			t.Errorf("stream %v: %d %s, %v", stream, response.StatusCode, text, err)
		}
		_ = response.Body.Close()
		_ = conn.Close()
	}
	// A request whose body length cannot be determined is rejected as the client's error.
	for _, encoding := range []string{"chunked, identity", "gzip"} {
		conn, err := net.Dial("tcp", s.Listen)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: %s\r\n\r\n0\r\n\r\n", encoding)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		refused(t, encoding, answer{status: response.StatusCode, header: response.Header, body: string(text)}, http.StatusBadRequest,
			"invalid_http")
		_ = conn.Close()
	}
}

// A request with headers and trailers but no body is rejected.
func TestTrailersWithoutABodyAreRejected(t *testing.T) {
	runs(t)
	s := start(t)
	conn, err := net.Dial("tcp", s.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	block := func(fields ...string) []byte {
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		for i := 0; i < len(fields); i += 2 {
			_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		return b.Bytes()
	}
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, EndHeaders: true,
		BlockFragment: block(":method", "POST", ":scheme", "http", ":authority", "x", ":path", "/v1/completions", "content-type",
			"application/json"),
	})
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true, BlockFragment: block("x-trailer", "1")})
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if headers, ok := frame.(*http2.MetaHeadersFrame); ok {
			if got := headers.PseudoValue("status"); got != "400" {
				t.Errorf("it gets %s", got)
			}
			return
		}
	}
}

// A page from another origin cannot call the API from a browser unless its origin is listed.
func TestListedOriginsAreAllowed(t *testing.T) {
	runs(t)
	const page = "https://chat.example"
	for listed, change := range map[bool]setting{
		false: func(*rig.Config) {},
		true: func(c *rig.Config) {
			text, err := os.ReadFile(c.EnvoyYAML)
			if err != nil {
				t.Fatal(err)
			}
			c.EnvoyYAML = filepath.Join(t.TempDir(), "envoy.yaml")
			changed := strings.Replace(string(text), "allow_origin_string_match: []",
				"allow_origin_string_match: [{ exact: \"https://chat.example\" }]", 1)
			if err := os.WriteFile(c.EnvoyYAML, []byte(changed), 0o644); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s := start(t, pods(t, 1), change)
		asks := request{
			method: "OPTIONS", path: "/v1/chat/completions",
			header: map[string]string{
				"Origin": page, "Access-Control-Request-Method": "POST",
				"Access-Control-Request-Headers": "authorization",
			},
		}
		before := s.must(asks)
		r := completion("a01", 1, false)
		r.header = map[string]string{"Origin": page}
		a := s.must(r)
		if got := before.header.Get("Access-Control-Allow-Origin"); (got == page) != listed || (before.status == 200) != listed {
			t.Errorf("listed %v: to ask before gets %d, allowed %q", listed, before.status, got)
		}
		if got := a.header.Get("Access-Control-Allow-Origin"); (got == page) != listed || a.status != 200 {
			t.Errorf("listed %v: a request gets %d, allowed %q", listed, a.status, got)
		}
	}
}
