package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// errand is a request of the soak and the results that are permitted for it.
type errand struct {
	request
	// refusal is the status and code with which the request must be rejected. It is empty if the
	// request must be served.
	refusal string
	// sometimes means that the request may be rejected or served, because objects are added and
	// removed.
	sometimes bool
	// fault is the fault that a request header asks of the engine, such as "status=500", "reset" or
	// "hang".
	fault string
	// leave makes the client disconnect after the first line of a stream.
	leave bool
}

// result is the result of one request of the soak.
type result struct {
	errand
	answer
	ended time.Time
	err   error
	left  bool
}

// tally counts results. Its field later contains the results that are permitted only during certain
// faults. It is safe for concurrent use.
type tally struct {
	mu    sync.Mutex
	total int
	count map[string]int
	later []result
}

// load runs clients until stop is called. Each client sends one request at a time.
func (s *soak) load() (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var clients sync.WaitGroup
	for client := range soakClients {
		clients.Go(func() {
			draws := rand.New(rand.NewPCG(s.seed, uint64(client)))
			var last made
			for ctx.Err() == nil {
				r := s.run(s.t.Context(), draw(draws, last))
				if id := responseID(r.body); id != "" {
					last = made{id: id, at: r.ended}
				}
				if r.status == http.StatusNotFound && r.path == "/v1/responses/"+last.id &&
					s.book.during(last.at, r.ended, "", "extproc killed", "extproc stopped") {
					last.nowhere = r.ended
				}
				s.note(r)
				if r.status >= http.StatusInternalServerError {
					pause(ctx, 200*time.Millisecond) // with immediate retries, nearly all requests would go to what fails
				}
			}
		})
	}
	return func() {
		cancel()
		clients.Wait()
	}
}

// made identifies the last response that a client got with an id, zero if there is none.
type made struct {
	id string
	at time.Time
	// nowhere is when a restarted extproc last asked all engines for the response. Engines store
	// nothing here, so none had it.
	nowhere time.Time
}

// believed is how long extproc rejects requests that continue from a response after all engines
// denied having it: 10 s from the access log's record.
const believed = 10*time.Second + aftermath

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// draw returns a client's next request, at random.
func draw(draws *rand.Rand, last made) errand {
	model := strconv.Quote(append(slices.Clip(adapters), baseRoute)[draws.IntN(len(adapters)+1)])
	tokens := 5 + draws.IntN(40)
	chat := func(stream bool) request {
		return request{path: "/v1/chat/completions", body: fmt.Sprintf(
			`{"model":%s,"messages":[{"role":"user","content":"hello"}],"max_tokens":%d,"stream":%t%s}`, model, tokens, stream,
			map[bool]string{true: `,"stream_options":{"include_usage":true}`}[stream])}
	}
	text := func(stream bool) request {
		return request{body: fmt.Sprintf(`{"model":%s,"prompt":"hello","max_tokens":%d,"stream":%t}`, model, tokens, stream)}
	}
	response := func(previous string) request {
		return request{path: "/v1/responses", body: fmt.Sprintf(`{"model":%s,"input":"hello","max_output_tokens":%d%s}`, model, tokens,
			previous)}
	}
	switch n := draws.IntN(100); {
	case n < 25:
		return errand{request: text(true)}
	case n < 40:
		return errand{request: text(false)}
	case n < 52:
		return errand{request: chat(true)}
	case n < 60:
		return errand{request: chat(false)}
	case n < 64:
		return errand{request: request{path: "/v1/embeddings", body: `{"model":` + model + `,"input":"hello"}`}}
	case n < 68, n < 76 && last.id == "":
		return errand{request: response("")}
	case n < 72:
		e := errand{request: response(`,"previous_response_id":` + strconv.Quote(last.id))}
		if time.Since(last.nowhere) < believed {
			e.refusal, e.sometimes = "404 response_not_found", true
		}
		return e
	case n < 76: // always 404: engines store nothing, and a restarted extproc forgets where responses are
		return errand{request: request{method: http.MethodGet, path: "/v1/responses/" + last.id}, refusal: "404 "}
	case n < 84:
		return bad[draws.IntN(len(bad))]
	case n < 90:
		tokens = 200
		return errand{request: text(true), leave: true}
	case n < 94:
		return errand{request: completion("newcomer", tokens, true), refusal: "404 model_not_found", sometimes: true}
	case n < 95 && draws.IntN(4) == 0:
		return faulty(text(true), "hang")
	}
	faults := []string{"status=500", "status=429", "reset", "reset-after=3", "latency=500ms"}
	return faulty(text(true), faults[draws.IntN(len(faults))])
}

func faulty(r request, fault string) errand {
	r.header = map[string]string{"X-Sim-Fault": fault}
	return errand{request: r, fault: fault}
}

var bad = []errand{
	{request: request{body: "{bad"}, refusal: "400 invalid_request"},
	{request: request{body: `{"prompt":"x"}`}, refusal: "400 invalid_request"},
	{request: request{body: `{"model":"llama","model":"a01"}`}, refusal: "400 invalid_request"},
	{request: request{body: strings.Repeat("[", 20_000)}, refusal: "400 invalid_request"},
	{request: request{body: `{"model":"gpt-9"}`}, refusal: "404 model_not_found"},
	{request: request{path: "/v1/load_lora_adapter", body: `{"model":"a01"}`}, refusal: "404 unknown_url"},
	{request: request{body: "x", header: map[string]string{"Content-Encoding": "gzip"}}, refusal: "400 invalid_content_encoding"},
}

// run sends a request and reads its response to the end. If the request's field leave is set, it
// disconnects early.
func (s *soak) run(ctx context.Context, e errand) (r result) {
	ctx, cancel := context.WithTimeout(ctx, soakPatience)
	defer cancel()
	r = result{errand: e, answer: answer{begun: time.Now()}}
	defer func() { r.ended = time.Now() }()
	response, err := s.open(ctx, e.request)
	if err != nil {
		r.err = err
		return r
	}
	defer response.Body.Close()
	r.status, r.header, r.served = response.StatusCode, response.Header, response.Header.Get("x-served-endpoint")
	r.stream = strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream")
	lines := bufio.NewReader(response.Body)
	if e.leave && r.status == http.StatusOK {
		line, err := lines.ReadString('\n')
		r.body, r.err, r.left = line, err, err == nil
		return r
	}
	body, err := io.ReadAll(lines)
	r.body, r.err = string(body), err
	return r
}

func responseID(body string) string {
	var r struct{ ID, Object string }
	if json.Unmarshal([]byte(body), &r) != nil || r.Object != "response" {
		return ""
	}
	return r.ID
}

// kind returns the status of a result, or a word such as "cut" if there is no complete response.
func (r result) kind() string {
	switch {
	case errors.Is(r.err, context.DeadlineExceeded):
		return "hung"
	case r.left:
		return "left"
	case r.err != nil && r.status == 200, r.err == nil && r.status == 200 && r.stream && !r.done():
		return "cut"
	case r.err != nil:
		return "broken"
	}
	return strconv.Itoa(r.status)
}

// note adds a result to the tally.
func (s *soak) note(r result) {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	s.tally.total++
	s.tally.count[r.kind()]++
	if r.kind() != "200" || r.refusal != "" && !r.sometimes {
		s.tally.later = append(s.tally.later, r)
	}
}

// judge checks that the faults at the time of each failed result explain it, and that the total
// number of failures is not too high.
func (s *soak) judge() {
	s.t.Helper()
	faults, unexplained := 0, 0
	away, lost := 0, 0 // failed requests while extproc was down, and while it was up
	for _, r := range s.tally.later {
		if fault := s.wrong(r); fault != "" {
			if faults++; faults <= 20 {
				s.t.Errorf("%s %s %.80s for %v from %q: %s: %.300s", r.kind(), r.path, r.request.body,
					r.ended.Sub(r.begun).Round(time.Millisecond), r.served, fault, r.body)
			}
			unexplained++
		}
		switch kind := r.kind(); {
		case r.fault != "" || r.left:
		case kind != "503" && kind != "504" && kind != "500" && kind != "cut":
		case s.book.during(r.begun, r.ended, "", "extproc killed", "extproc stopped"):
			away++
		default:
			lost++
		}
	}
	s.t.Logf("without what was asked for: %d while extproc was away, %d else, %d without an explanation", away, lost, unexplained)
	// Half of the engines are faulty at any time, and their requests are lost when a fault begins.
	// More losses mean that extproc picks badly.
	if lost > s.tally.total/20 {
		s.t.Errorf("%d of %d requests were lost while extproc was there, want at most one in twenty", lost, s.tally.total)
	}
	if s.tally.count["200"] < s.tally.total/2 {
		s.t.Errorf("%d of %d requests were answered with 200, want at least half", s.tally.count["200"], s.tally.total)
	}
}

// wrong returns what is wrong with a result, empty if nothing is.
func (s *soak) wrong(r result) string {
	kind := r.kind()
	during := func(endpoint string, what ...string) bool { return s.book.during(r.begun, r.ended, endpoint, what...) }
	switch {
	case kind == "hung":
		return fmt.Sprintf("it did not end within %v", soakPatience)
	case kind == "left":
		return ""
	case kind == "200":
		return "it is not to be served"
	case kind == "cut" && strings.HasPrefix(r.fault, "reset-after"), kind == "cut" && during(r.served, "killed", "hung", "hung for long"):
		return ""
	case kind == "cut", kind == "broken":
		return fmt.Sprintf("nobody cut it: %v", r.err)
	}
	code, fault := shape(r)
	if want, ok := strings.CutSuffix(r.refusal, " "); ok && want == kind {
		return "" // any error with this status is permitted, from an engine or the gateway
	}
	if fault != "" {
		return fault
	}
	switch {
	case r.refusal == kind+" "+code:
		return ""
	case "status="+kind == r.fault:
		return ""
	case kind == "503" && r.fault == "reset" && code == "server_ended":
		return ""
	case kind == "503" && r.refusal != "" && !r.sometimes:
		if !strings.HasSuffix(r.refusal, " ") && !during("", "extproc killed", "extproc stopped") {
			return "extproc was there to refuse it"
		}
		return ""
	case kind == "503" && during("", "killed", "stopped", "hung", "hung for long", "slow", "errors", "extproc killed", "extproc stopped"):
		return ""
	case kind == "504" && (r.fault == "hang" || during("", "hung", "hung for long")):
		return ""
	case kind == "500" && during(r.served, "errors"):
		return ""
	}
	return "nothing explains it"
}

// shape parses an error in OpenAI's format, from the gateway or an engine. It returns the error's
// code, and what is wrong with the format.
func shape(r result) (code, fault string) {
	var e struct {
		Error *struct {
			Message, Type string
			Code          any
		}
	}
	if err := json.Unmarshal([]byte(r.body), &e); err != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type == "" {
		return "", "it is no error in OpenAI's shape"
	}
	if r.status == http.StatusServiceUnavailable && r.header.Get("Retry-After") == "" {
		return "", "it does not say when to try again"
	}
	return fmt.Sprint(e.Error.Code), ""
}
