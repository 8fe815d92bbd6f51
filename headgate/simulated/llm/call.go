package llm

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/hash"
)

// call is one HTTP request. Only the goroutine that serves the request uses it.
type call struct {
	s      *Server
	w      http.ResponseWriter
	r      *http.Request
	number uint64 // sequence number of the request, from 1
	status int    // status of the answer; 0 before it starts
	ids    uint64 // random number for the ids of this request

	resetAfter int // number of streamed tokens before the connection is reset; -1 for no reset
}

// Handler serves the HTTP API. It is safe for concurrent use. Requests that need the engine wait
// until Run is called.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	c := &call{s: s, w: w, r: r, number: s.requests.Add(1), resetAfter: -1}
	handler, path := s.handler(r.URL.Path)
	open := s.door.enter()
	defer func() {
		s.door.leave()
		s.traffic.count(exchange{path, c.status})
	}()
	c.sign()
	if s.config.APIKey != "" && strings.HasPrefix(r.URL.Path, "/v1") && r.Header.Get("Authorization") != "Bearer "+s.config.APIKey {
		_ = c.json(http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
		return
	}
	if handler.serve == nil {
		_ = c.json(http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
		return
	}
	if handler.method != "" && r.Method != handler.method {
		w.Header().Set("Allow", handler.method)
		_ = c.json(http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
		return
	}
	faults, err := parseFaults(r.Header.Values(FaultHeader))
	if err != nil {
		c.fail(&failure{http.StatusBadRequest, "Bad Request", err.Error(), FaultHeader})
		return
	}
	if handler.needs.asksEngine() {
		faults = append(faults, s.config.Faults...)
	}
	if len(faults) > 0 && !c.applyFaults(faults) {
		return
	}
	if !open && s.config.ShutdownTimeout > 0 && c.turnAway(handler.needs) {
		return
	}
	if handler.needs.asksEngine() {
		s.inFlight.Add(1)
		defer s.inFlight.Add(-1)
	}
	switch f := handler.serve(c); f {
	case nil:
	case abandoned:
		c.abandon()
	default:
		c.fail(f)
	}
}

// turnAway rejects a request that a stopping engine no longer serves, and reports whether it did. A
// load that arrives after the core has stopped is never answered, and then the engine never ends,
// as seen on vLLM 0.32.0 with --shutdown-timeout.
func (c *call) turnAway(n needs) bool {
	switch {
	case n == nothing:
		return false
	case n == loader && c.s.inFlight.Load() == 0:
		<-c.s.killed
		panic(http.ErrAbortHandler)
	case n == loader:
		c.fail(shuttingDown)
	default:
		c.fail(shutdown)
	}
	return true
}

// sign sets the headers that every answer has.
func (c *call) sign() {
	h := c.w.Header()
	if local, ok := c.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		h.Set(ServedHeader, local.String())
	}
	if c.s.config.RequestIDHeaders {
		id := c.r.Header.Get("X-Request-Id")
		if id == "" {
			id = c.newID() + c.newID()
		}
		h.Set("X-Request-Id", id)
	}
}

// respond sends a complete answer and returns nil. If contentType is empty, the answer has no
// Content-Type header, like plain text from vLLM.
func (c *call) respond(status int, contentType string, body []byte) *failure {
	h := c.w.Header()
	if contentType == "" {
		h["Content-Type"] = nil // without this, net/http guesses the type
	} else {
		h.Set("Content-Type", contentType)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.begin(status)
	// An error means that the client has disconnected.
	_, _ = c.w.Write(body)
	return nil
}

func (c *call) json(status int, body []byte) *failure {
	return c.respond(status, "application/json", body)
}

// fail answers with an error. /v1/messages returns errors in Anthropic's format, except for a
// malformed body, which vLLM detects earlier.
func (c *call) fail(f *failure) {
	body := f.body()
	if f.kind != "Bad Request" && strings.HasPrefix(c.r.URL.Path, "/v1/messages") {
		body = f.messagesBody()
	}
	_ = c.json(f.status, body)
}

// abandoned is returned by a handler to end a request without an answer.
var abandoned = new(failure)

// begin sends the status and the headers.
func (c *call) begin(status int) {
	c.status = status
	c.w.WriteHeader(status)
}

// abandon ends a request without an answer, because its client has disconnected or the engine cuts
// off all requests.
func (c *call) abandon() {
	if c.r.Context().Err() == nil {
		panic(http.ErrAbortHandler)
	}
}

// newID returns 16 hexadecimal digits that depend on the seed, the address and the number of the
// request. So engines with equal seeds generate equal texts but different ids.
func (c *call) newID() string {
	c.ids++
	address := ""
	if local, ok := c.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		address = local.String()
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], rand.NewPCG(c.s.config.Seed^hash.Of(address), c.number<<8|c.ids).Uint64())
	return hex.EncodeToString(b[:])
}

// requestID returns the request id that the client sent, or a new one.
func (c *call) requestID() string {
	if id := c.r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	return c.newID()
}

// reportLoad sets the load report of the answer, in the ORCA format that the client requests. Like
// vLLM, it reports two metrics and has no binary format.
func (c *call) reportLoad() {
	waiting := number(float64(c.s.driver.waiting.Load()))
	usage := number(math.Float64frombits(c.s.driver.usage.Load()))
	switch strings.ToUpper(c.r.Header.Get("Endpoint-Load-Metrics-Format")) {
	case "TEXT":
		c.w.Header().Set("Endpoint-Load-Metrics",
			"TEXT named_metrics.num_requests_waiting="+waiting+", named_metrics.kv_cache_usage_perc="+usage)
	case "JSON":
		c.w.Header().Set("Endpoint-Load-Metrics",
			`JSON {"named_metrics": {"num_requests_waiting": `+waiting+`, "kv_cache_usage_perc": `+usage+`}}`)
	}
}

// unixNow returns the current Unix time, for JSON bodies.
func unixNow() int64 { return time.Now().Unix() }
