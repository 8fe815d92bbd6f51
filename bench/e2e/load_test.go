package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

const (
	requests    = 1000
	concurrency = 64
	cancelled   = 200
)

// thousand sends requests 0 to 999, 64 at a time, by calling read with the number of each.
func (s *stack) thousand(read func(n int) error) {
	s.t.Helper()
	numbers := make(chan int)
	var clients sync.WaitGroup
	for range concurrency {
		clients.Go(func() {
			for n := range numbers {
				if err := read(n); err != nil {
					s.t.Errorf("request %d: %v", n, err)
				}
			}
		})
	}
	for n := range requests {
		numbers <- n
	}
	close(numbers)
	clients.Wait()
}

// nth returns request n of a thousand. The requests name the adapters in turn, every second request
// is a stream, and each asks for 10 to 30 tokens.
func nth(n int) request {
	return completion(adapters[n*7%len(adapters)], 10+n%21, n%2 == 0)
}

// whole sends request n of a thousand and reads the response to its end.
func (s *stack) whole(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a, err := s.ask(ctx, nth(n))
	switch {
	case err != nil:
		return err
	case a.status != http.StatusOK:
		return fmt.Errorf("%d %s", a.status, a.body)
	case n%2 == 0 && !a.done():
		return errNotDone
	}
	return nil
}

// goroutines returns the number of goroutines in the program with this metrics address.
func (s *stack) goroutines(address string) float64 { return s.sum(address, "go_goroutines") }

// Requests for an adapter go to the endpoints that have it, so engines load slots much less often
// than under policy random. When the requests have ended, all counts of them have returned to zero.
func TestAdapterRequestsPackAndReleaseEverything(t *testing.T) {
	runs(t, alone)
	loads := make(map[string]float64)
	for _, policy := range []string{"proposal", "random"} {
		s := start(t, extprocFlags("--policy", policy), withoutFlow(t)) // the gate keeps adapters out of full slots
		s.thousand(func(n int) error { return s.whole(t.Context(), n) })
		loads[policy] = s.engineSum("sim:slot_loads_total")
		s.promised(time.Second, "every request is counted as gone", func() bool { return s.inFlight() == 0 })
		rest := s.goroutines(s.Metrics) // goroutines while every connection is open and idle

		s.thousand(func(n int) error { return s.whole(t.Context(), n) })
		s.promised(time.Second, "every request is counted as gone again", func() bool { return s.inFlight() == 0 })
		if n := s.modelsInFlight(); n != 0 {
			t.Errorf("%s: %v models are counted still:\n%s", policy, n, s.page(s.Metrics))
		}
		s.await("the engines have nothing left", func() bool {
			return s.engineSum("vllm:num_requests_running")+s.engineSum("vllm:num_requests_waiting") == 0
		})
		s.await(fmt.Sprintf("extproc has no more than the %v goroutines that it had at rest", rest), func() bool {
			return s.goroutines(s.Metrics) <= rest
		})
		s.Stop(5 * time.Second)
	}
	t.Logf("slot loads of %d requests for %d adapters, %d at a time: proposal %v, random %v, ratio %.3f",
		requests, len(adapters), concurrency, loads["proposal"], loads["random"], loads["proposal"]/loads["random"])
	if loads["proposal"] > loads["random"]/4 {
		t.Errorf("proposal loads slots %v times, random %v: want at most a quarter", loads["proposal"], loads["random"])
	}
}

func TestCancelledRequestsAreReleased(t *testing.T) {
	onBothPlanes(t, cancelledRequestsAreReleased)
}

func cancelledRequestsAreReleased(t *testing.T) {
	s := start(t)
	s.thousand(func(n int) error {
		if n%(requests/cancelled) != 0 {
			return s.whole(t.Context(), n)
		}
		// Clients disconnect in the middle of long streams.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		response, err := s.open(ctx, completion(adapters[n%len(adapters)], 10_000, true))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if _, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || response.StatusCode != http.StatusOK {
			return fmt.Errorf("%d before the client leaves: %w", response.StatusCode, err)
		}
		return nil
	})
	s.promised(time.Second, "every request is counted as gone", func() bool { return s.inFlight() == 0 })
	s.await("the engines have nothing left", func() bool {
		return s.engineSum("vllm:num_requests_running")+s.engineSum("vllm:num_requests_waiting") == 0
	})
	s.await("each request that was left is an outcome", func() bool {
		return s.sum(s.Metrics, "headgate_failures_total", "kind", "client_gone") == cancelled
	})
}

// logged is a record of Envoy's access log.
type logged struct {
	Time   time.Time
	ID     string
	Status int
	Path   string
	Picks  string
	Pick   struct {
		Model, Reason string
		Fallback      string  // why another policy decided
		FirstToken    float64 `json:"first_token_us"`
		Expected      explained
		RunnerUp      explained `json:"runner_up"`
	}
	Endpoint string // the last endpoint that Envoy tried
	Attempts int
	Flags    string
	Usage    struct {
		Elsewhere, Stopping, Missing string
		Error                        string // type of the engine's error
		ErrorCode                    string `json:"error_code"`
	}
	Details string
	Error   string  // who is at fault, if Envoy answered itself
	MS      float64 `json:"ms_total"`
	Before  float64 `json:"ms_to_endpoint"`
	// FirstBody is the time from the last byte of the request to the first byte of the response
	// body, in milliseconds.
	FirstBody float64 `json:"ms_first_body"`
}

// explained contains the times that extproc predicted for an endpoint, in seconds.
type explained struct {
	Endpoint                   string
	FrontendOverhead           float64 `json:"frontend_overhead"`
	Queue, Room, Load, Prefill float64
	Step, Own, Others          float64
}

// accessLog returns Envoy's log records that match.
func (s *stack) accessLog(match func(logged) bool) (all []logged) {
	s.t.Helper()
	f, err := os.Open(s.Envoy.Log)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var l logged
		if json.Unmarshal(lines.Bytes(), &l) == nil && !l.Time.IsZero() && match(l) {
			all = append(all, l)
		}
	}
	return all
}

// If extproc names one pick per request, requests to a killed engine fail only until extproc learns
// of the first failure.
func TestKilledEngineGetsNothingAfterItsFirstFailure(t *testing.T) {
	runs(t)
	const interval = 200 * time.Millisecond // the default scrape interval
	const hung = 10 * time.Second
	const clients = 32
	s := start(t, originalDst)
	l := s.pour(clients, func(client, n int) request { return completion(adapters[(client*5+n)%12], 60, n%2 == 0) },
		func(a answer, err error) string {
			if err == nil && a.status != 200 && a.status != 503 {
				return fmt.Sprintf("%d %s", a.status, a.body)
			}
			return "" // the engine's streams are cut; that is permitted
		})
	victim := strings.TrimSuffix(s.Listen, "1:8080") + "11:8000"
	s.await("the victim serves", func() bool { return s.sum(victim, "vllm:num_requests_running") > 3 })
	killed := time.Now()
	s.Engines[victim].Kill()
	s.await("it is out", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "endpoint", victim, "state", "out") == 1
	})
	sent := l.sent.Load()
	s.await("a thousand more requests were answered", func() bool { return l.sent.Load() > sent+1000 })
	restarted := time.Now()
	if err := s.StartEngine(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	s.await("the engine that came back serves", func() bool { return s.sum(victim, "vllm:generation_tokens_total") > 0 })
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	s.Envoy.Stop(5 * time.Second) // Envoy flushes its log when it stops

	var first time.Time
	failed, late := 0, 0
	log := s.accessLog(func(l logged) bool { return l.Endpoint == victim })
	for _, r := range log {
		switch ended := r.Time.Add(time.Duration(r.MS) * time.Millisecond); {
		case ended.Sub(r.Time) > hung:
			t.Errorf("a request hung for %v", ended.Sub(r.Time))
		case r.Flags != "-" && ended.Before(restarted):
			failed++
			if first.IsZero() || ended.Before(first) {
				first = ended
			}
		}
	}
	for _, r := range log {
		if r.Time.After(first.Add(interval)) && r.Time.Before(restarted) {
			late++
		}
	}
	t.Logf("killed under %d clients: %d requests failed there, the first %v after the kill; then none for %v",
		clients, failed, first.Sub(killed).Round(time.Millisecond), restarted.Sub(first).Round(time.Millisecond))
	if failed == 0 {
		t.Error("no request failed: the engine was killed idle")
	}
	if late > 0 {
		t.Errorf("%d requests were sent to it more than a scrape interval after its first refusal", late)
	}
}

// streams opens n streams and returns after the first token of each. The channel receives each
// stream's error when the stream ends.
func (s *stack) streams(n, tokens int) <-chan error {
	s.t.Helper()
	return s.streamsOf(n, func(i int) request { return completion(adapters[i%len(adapters)], tokens, true) })
}

// streamsOf opens n streams at once, as streams does. Of returns the request of each.
func (s *stack) streamsOf(n int, of func(i int) request) <-chan error {
	s.t.Helper()
	ends := make(chan error, n)
	begun := make(chan error, n)
	for i := range n {
		go func() {
			response, err := s.open(s.t.Context(), of(i))
			if err != nil {
				begun <- err
				return
			}
			defer response.Body.Close()
			lines := bufio.NewReader(response.Body)
			_, err = lines.ReadString('\n')
			begun <- nil
			var rest []byte
			if err == nil {
				rest, err = io.ReadAll(lines)
			}
			if err == nil && !(answer{body: string(rest)}).done() {
				err = errNotDone
			}
			ends <- err
		}()
	}
	for range n {
		if err := <-begun; err != nil {
			s.t.Fatal(err)
		}
	}
	return ends
}

func TestExtprocDiesAndNoStreamDoes(t *testing.T) { onBothPlanes(t, extprocDiesAndNoStreamDoes) }

func extprocDiesAndNoStreamDoes(t *testing.T) {
	s := start(t, func(c *rig.Config) { c.EngineFlags = []string{"--max-loras", "4"} }) // engines as slow as with a large model
	ends := s.streams(concurrency, 100)
	s.Extproc.Kill()
	for range 10 {
		asked := time.Now()
		if a := s.must(completion("a01", 1, false)); a.status != 503 || time.Since(asked) > time.Second {
			t.Errorf("without extproc: %d after %v", a.status, time.Since(asked))
		}
	}
	<-time.After(time.Second)
	if err := s.StartExtproc(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.promised(time.Second, "requests are answered again", func() bool { return s.must(completion("a01", 1, false)).status == 200 })
	for range concurrency {
		if err := <-ends; err != nil {
			t.Errorf("a stream did not survive: %v", err)
		}
	}
}

// A request does not wait forever for extproc, whether extproc hangs or has been killed.
func TestRequestsWithoutExtprocGet503(t *testing.T) {
	onBothPlanes(t, requestsWithoutExtprocGet503)
}

func requestsWithoutExtprocGet503(t *testing.T) {
	s := start(t)
	s.Extproc.Signal(syscall.SIGSTOP)
	type result struct {
		a   answer
		err error
	}
	results := make(chan result, 16)
	ask := func() {
		a, err := s.ask(t.Context(), completion("a01", 1, false))
		results <- result{a, err}
	}
	go ask()
	if r := <-results; r.err != nil || r.a.status != 503 {
		t.Errorf("with extproc hung: %d, %v", r.a.status, r.err)
	}
	for range cap(results) {
		go ask()
	}
	s.await("the requests wait", func() bool { return s.envoyGauge("cluster.extproc.upstream_rq_active") >= float64(cap(results)) })
	killed := time.Now()
	s.Extproc.Kill()
	for range cap(results) {
		if r := <-results; r.err != nil || r.a.status != 503 {
			t.Errorf("with extproc killed: %d, %v", r.a.status, r.err)
		}
	}
	if waited := time.Since(killed); waited > time.Second {
		t.Errorf("503 came %v after extproc was killed", waited)
	}
}

// envoyGauge returns the value of one of Envoy's own gauges.
func (s *stack) envoyGauge(name string) (value float64) {
	s.t.Helper()
	response, err := s.client.Get("http://" + s.Admin + "/stats?filter=^" + name + "$")
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	_, _ = fmt.Fscanf(response.Body, name+": %g", &value)
	return value
}
