package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/headgate/rig"
)

// endpoint returns the address of engine n; the first engine is 1.
func (s *stack) endpoint(n int) string {
	return fmt.Sprintf("%s%d:8000", strings.TrimSuffix(s.Listen, "1:8080"), 10+n)
}

// endpoints returns the addresses of engines in the format of a list of picks.
func (s *stack) endpoints(ns ...int) string {
	var all []string
	for _, n := range ns {
		all = append(all, s.endpoint(n))
	}
	return strings.Join(all, ",")
}

// occupy keeps an engine busy with a stream that bypasses extproc, until the test ends or leave is
// called.
func (s *stack) occupy(address string) (leave func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/completions",
		strings.NewReader(completion("a01", 15_000, true).body))
	if err != nil {
		s.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(q)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || response.StatusCode != http.StatusOK {
		s.t.Fatalf("a stream at %s begins with %d, %v", address, response.StatusCode, err)
	}
	leave = func() {
		cancel()
		_ = response.Body.Close()
	}
	s.t.Cleanup(leave)
	return leave
}

// tell sends a request. It returns the response, which may be incomplete, and the request's record
// in Envoy's log.
func (s *stack) tell(r request) (answer, logged) {
	s.t.Helper()
	id := fmt.Sprintf("%s-%d", s.t.Name(), time.Now().UnixNano())
	header := map[string]string{"X-Request-Id": id}
	maps.Copy(header, r.header)
	r.header = header
	a, err := s.ask(s.t.Context(), r)
	if a.status == 0 {
		s.t.Fatal(err)
	}
	var lines []logged
	s.await("the request is logged", func() bool {
		lines = s.accessLog(func(l logged) bool { return l.ID == id })
		return len(lines) > 0
	})
	return a, lines[0]
}

// asked returns the number of completions that an engine has answered with a status.
func (s *stack) asked(n int, status string) float64 {
	s.t.Helper()
	return s.sum(s.endpoint(n), "sim:requests_total", "path", "/v1/completions", "status", status)
}

// If an engine's queue is full, the request goes to the next pick, in order. The engine becomes
// suspect: it gets few requests, and the other engines get the rest.
func TestFullQueueSendsTheRequestToTheNextPick(t *testing.T) {
	onBothPlanes(t, fullQueueSendsTheRequestToTheNextPick)
}

func fullQueueSendsTheRequestToTheNextPick(t *testing.T) {
	s := start(t, extprocFlags("--policy", "roundRobin"), engineFlags("--max-num-queued-reqs", "1"))
	for n := 1; n <= 3; n++ {
		s.occupy(s.endpoint(n))
	}
	// Round robin starts at engine 1.
	a, l := s.tell(completion("a01", 2, true))
	if a.status != 200 || a.served != s.endpoint(4) {
		t.Errorf("%d from %s, want 200 from %s: %s", a.status, a.served, s.endpoint(4), a.body)
	}
	if l.Picks != s.endpoints(2, 3, 4) || l.Usage.Elsewhere != s.endpoints(2, 3) || l.Attempts != 3 {
		t.Errorf("the picks are %s, elsewhere was said by %q, %d attempts", l.Picks, l.Usage.Elsewhere, l.Attempts)
	}
	if a.header.Get("x-gateway-elsewhere") != "" {
		t.Error("the client sees the mark")
	}
	s.await("both are suspects", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "state", "suspect") == 2 })
	for range 8 {
		if a := s.must(completion("a01", 2, false)); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if n := s.asked(2, "503") + s.asked(3, "503"); n > 6 {
		t.Errorf("of 9 requests the suspects were asked %v times, which is no trickle", n)
	}
	// If the queues of all engines are full, the client gets 503.
	s.occupy(s.endpoint(4))
	if a, l := s.tell(completion("a01", 2, false)); a.status != 503 || l.Attempts != 3 || a.header.Get("x-gateway-elsewhere") != "" {
		t.Errorf("with every queue full: %d after %d attempts, %v", a.status, l.Attempts, a.header)
	}
	// The PoolSettings of a pool can turn retries off.
	s.write("settings.yaml",
		"apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: pool}\nspec: {poolRef: {name: pool}, retry: {unavailable: false}}\n")
	s.await("a full queue is the answer", func() bool {
		a, l := s.tell(completion("a01", 2, false))
		return a.status == 503 && l.Attempts == 1
	})
}

// A vLLM that is stopping answers 500, although the request is valid. It gets no more requests.
func TestStoppingEngineSendsTheRequestToTheNextPick(t *testing.T) {
	onBothPlanes(t, stoppingEngineSendsTheRequestToTheNextPick)
}

func stoppingEngineSendsTheRequestToTheNextPick(t *testing.T) {
	s := start(t, extprocFlags("--policy", "roundRobin"), engineFlags("--shutdown-timeout", "60"))
	for i, q := range []request{
		{path: "/v1/completions", body: `{"model":"a01","max_tokens":2,"prompt":"x"}`},
		{path: "/v1/chat/completions", body: `{"model":"a01","max_tokens":2,"messages":[{"role":"user","content":"x"}]}`},
		{path: "/v1/messages", body: `{"model":"a01","max_tokens":2,"messages":[{"role":"user","content":"x"}]}`},
	} {
		stopping := s.endpoint(1 + i)
		leave := s.occupy(stopping)
		s.Engines[stopping].Signal(syscall.SIGTERM)
		s.await("the engine refuses requests", func() bool { return s.refuses(stopping) })
		told := 0
		for range 6 {
			a, l := s.tell(q)
			if a.status != 200 {
				t.Errorf("%s: %d %s", q.path, a.status, a.body)
			}
			if l.Usage.Elsewhere == stopping && l.Usage.Stopping == stopping && l.Attempts == 2 && l.Endpoint != stopping {
				told++
			}
		}
		if told != 1 {
			t.Errorf("%s: %d of 6 requests were sent on, want the first whose turn it was", q.path, told)
		}
		leave()
		select {
		case <-s.Engines[stopping].Done():
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the engine does not end with its last request", q.path)
		}
	}
}

// refuses reports whether the engine at an address answers that it is stopping.
func (s *stack) refuses(address string) bool {
	s.t.Helper()
	response, err := s.client.Post("http://"+address+"/v1/completions", "application/json",
		strings.NewReader(completion("a01", 1, false).body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return err == nil && response.StatusCode == http.StatusInternalServerError &&
		strings.Contains(string(body), `"cannot schedule new futures after shutdown"`)
}

// A request that crashes an engine must not be retried at every engine.
func TestPoisonousRequestReachesOneEngine(t *testing.T) {
	onBothPlanes(t, poisonousRequestReachesOneEngine)
}

func poisonousRequestReachesOneEngine(t *testing.T) {
	s := start(t)
	for _, fault := range []string{"status=500", "status=500,latency=10ms", "status=502", "status=429", "reset", "reset-after=0"} {
		counted := func() float64 { return s.engineSum("sim:requests_total", "path", "/v1/completions") }
		before := counted()
		a, l := s.tell(request{
			body:   `{"model":"a01","prompt":"x","max_tokens":4,"stream":true}`,
			header: map[string]string{"X-Sim-Fault": fault},
		})
		if n := counted() - before; n != 1 || l.Attempts != 1 || l.Usage.Elsewhere != "" {
			t.Errorf("%s: it reached %v engines in %d attempts, %q asked for another", fault, n, l.Attempts, l.Usage.Elsewhere)
		}
		if status := strings.TrimPrefix(strings.Split(fault, ",")[0], "status="); status != fault && strconv.Itoa(a.status) != status {
			t.Errorf("%s: the client gets %d", fault, a.status)
		}
		s.await("the engines are candidates again", func() bool {
			return s.sum(s.Metrics, "headgate_endpoint_state", "state", "out") == 0
		})
	}
}

// An engine that refuses connections costs a request only one more connection attempt. extproc then
// treats the engine as out.
func TestEngineThatRefusesConnectionsIsSkipped(t *testing.T) {
	onBothPlanes(t, engineThatRefusesConnectionsIsSkipped)
}

func engineThatRefusesConnectionsIsSkipped(t *testing.T) {
	s := start(t, extprocFlags("--policy", "roundRobin", "--scrape-interval", "1h", "--stale-after", "2h")) // no scrapes during the test
	s.Engines[s.endpoint(2)].Kill()
	s.Engines[s.endpoint(3)].Kill()
	a, l := s.tell(completion("a01", 2, false)) // round robin starts at engine 1
	if a.status != 200 || l.Picks != s.endpoints(2, 3, 4) || l.Endpoint != s.endpoint(4) || l.Attempts != 3 || l.Usage.Elsewhere != "" {
		t.Errorf("%d from %s of %s after %d attempts", a.status, l.Endpoint, l.Picks, l.Attempts)
	}
	s.awaitWithin(5*time.Second, "both are out", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "state", "out") == 2 })
	// When no engine is left, the client gets an error, and extproc learns that the last one is
	// out.
	s.Engines[s.endpoint(1)].Kill()
	s.Engines[s.endpoint(4)].Kill()
	a, l = s.tell(completion("a01", 2, false))
	refused(t, "no endpoint left", a, 503, "no_endpoint")
	if l.Attempts != 3 {
		t.Errorf("%d attempts at %s", l.Attempts, l.Picks)
	}
	s.awaitWithin(5*time.Second, "all are out", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "state", "out") == 4 })
}

// Envoy counts a retried request as an active retry until its response begins. A buffered response
// begins only when it is complete. A limit on active retries must not fail a burst of retries.
func TestManyRequestsMoveToTheirNextPick(t *testing.T) {
	onBothPlanes(t, manyRequestsMoveToTheirNextPick)
}

func manyRequestsMoveToTheirNextPick(t *testing.T) {
	const burst = 600
	s := start(t, extprocFlags("--policy", "roundRobin", "--scrape-interval", "1h", "--stale-after", "2h")) // no scrapes during the test
	s.Engines[s.endpoint(2)].Kill()
	faults := make(chan string, burst)
	for range burst {
		go func() {
			a, err := s.ask(t.Context(), completion(baseRoute, 100, false))
			faults <- isOK(a, err)
		}()
	}
	failed := 0
	for range burst {
		if fault := <-faults; fault != "" {
			failed++
			t.Log(fault)
		}
	}
	s.await("the outcomes have come", func() bool { return s.inFlight() == 0 })
	t.Logf("of %d requests at once %v were tried again", burst, s.sum(s.Metrics, "headgate_endpoint_retries_total"))
	if failed > 0 {
		t.Errorf("%d of %d failed", failed, burst)
	}
}

// The requests on a killed engine are lost. No later request fails, even under the policy that
// prefers a dead engine because it has the fewest pending requests.
func TestKilledEngineFailsNoLaterRequest(t *testing.T) {
	onBothPlanes(t, killedEngineFailsNoLaterRequest)
}

func killedEngineFailsNoLaterRequest(t *testing.T) {
	const interval = 200 * time.Millisecond // the default scrape interval
	s := start(t, extprocFlags("--policy", "leastRequest"))
	var o outage
	l := s.pour(32, func(client, n int) request { return completion(adapters[(client*5+n)%12], 20, n%2 == 0) }, o.good)
	type life struct {
		victim            string
		killed, restarted time.Time
	}
	var lives []life
	for n := 1; n <= 4; n++ {
		victim := s.endpoint(n)
		s.await("the victim serves", func() bool { return s.sum(victim, "vllm:num_requests_running") > 0 })
		killed := o.kill(s, victim)
		sent := l.sent.Load()
		s.await("many more requests were answered", func() bool { return l.sent.Load() > sent+400 })
		lives = append(lives, life{victim, killed, time.Now()})
		if err := s.StartEngine(t.Context(), victim); err != nil {
			t.Fatal(err)
		}
		s.await("the engine that came back serves", func() bool { return s.sum(victim, "vllm:generation_tokens_total") > 0 })
	}
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	s.Envoy.Stop(5 * time.Second) // Envoy flushes its log when it stops

	saved, late := 0, 0
	for _, life := range lives {
		for _, r := range s.accessLog(func(l logged) bool {
			sent := l.Time.Add(time.Duration(l.Before) * time.Millisecond) // later than its arrival if it waited in extproc
			return strings.HasPrefix(l.Picks, life.victim) && l.Time.After(life.killed) && sent.Before(life.restarted)
		}) {
			saved++
			if r.Time.After(life.killed.Add(interval)) {
				late++
			}
		}
	}
	t.Logf("of %d requests %d were lost with 4 engines; %d that came after were sent there first, and served by others", l.sent.Load(),
		o.lost.Load(), saved)
	if o.lost.Load() == 0 {
		t.Error("no request was lost: the engines were killed idle")
	}
	if late > 0 {
		t.Errorf("%d requests were sent to a dead engine more than a scrape interval after it was killed", late)
	}
}

// An engine that hangs still accepts connections, so its requests cannot go to the next pick. After
// failed scrapes no new requests are sent there. Only the requests on that engine are lost.
func TestHangingEngineGetsNoRequestsAfterASecond(t *testing.T) {
	runs(t)
	for name, settings := range map[string][]setting{"override_host": nil, "original_dst": {originalDst}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, append(settings, extprocFlags("--policy", "random"))...)
			l := s.pour(16, func(client, n int) request { return completion(adapters[(client*5+n)%12], 10, n%2 == 0) }, isOK)
			victim := s.endpoint(1)
			waiting := func() float64 { return s.sum(s.Metrics, "headgate_endpoint_in_flight", "endpoint", victim) }
			s.await("the victim serves", func() bool { return s.sum(victim, "vllm:generation_tokens_total") > 0 })
			stopped := time.Now()
			s.Engines[victim].Signal(syscall.SIGSTOP)
			t.Cleanup(func() { s.Engines[victim].Signal(syscall.SIGCONT) }) // otherwise the load never ends
			s.await("it is stale", func() bool {
				return s.sum(s.Metrics, "headgate_endpoint_state", "endpoint", victim, "state", "stale") == 1
			})
			silent, hang := time.Since(stopped), waiting()
			<-time.After(500 * time.Millisecond) // until the next failed scrape is published
			for range 30 {
				if a := s.must(completion("a01", 2, false)); a.status != 200 || a.served == victim {
					t.Errorf("%d from %s", a.status, a.served)
				}
			}
			s.Engines[victim].Signal(syscall.SIGCONT)
			l.stop()
			for _, fault := range l.faults {
				t.Error(fault)
			}
			t.Logf("stale after %v, with %v requests there, which ended when it went on", silent.Round(time.Millisecond), hang)
		})
	}
}

// If Envoy does not confirm a new endpoint in time, extproc may pick it before Envoy has it.
func TestPickUnknownToEnvoyIsSkipped(t *testing.T) {
	runs(t)
	for _, c := range []struct {
		picks            string
		status, attempts int
	}{{"3", 200, 1}, {"1", 503, 1}} {
		s := start(t, extprocFlags("--policy", "roundRobin", "--endpoints-per-request", c.picks), knowing(3, 4))
		a, l := s.tell(completion("a01", 2, false)) // round robin starts at engine 1 and continues with 2
		if a.status != c.status || l.Attempts != c.attempts || c.status == 200 && a.served != s.endpoint(3) {
			t.Errorf("with %s picks: %d from %s after %d attempts", c.picks, a.status, a.served, l.Attempts)
		}
		if n := s.asked(2, "200"); n != 0 {
			t.Errorf("with %s picks it was sent there all the same", c.picks)
		}
	}
}

// An endpoint whose pod is gone gets no new requests. Its streams continue to their end, even after
// Envoy has removed the endpoint.
func TestRemovedEndpointKeepsItsStreams(t *testing.T) {
	onBothPlanes(t, removedEndpointKeepsItsStreams)
}

func removedEndpointKeepsItsStreams(t *testing.T) {
	s := start(t, extprocFlags("--policy", "roundRobin"))
	l := s.pour(4, func(client, n int) request { return completion(adapters[(client+n)%12], 5, n%2 == 0) }, isOK)
	stream, err := s.open(t.Context(), completion("a01", 8000, true)) // a stream that outlives the endpoint in Envoy
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	leaving := stream.Header.Get("x-served-endpoint")
	host, _, _ := strings.Cut(leaving, ":")
	s.write("engines.yaml", strings.Replace(engines(strings.TrimSuffix(s.Listen, "1:8080"), 4), "podIP: "+host, "podIP: "+host+"1", 1))
	s.await("Envoy forgot it", func() bool {
		return s.envoyGauge("cluster."+s.cluster()+".membership_total") == 4+1 && // four engines and the relay
			!strings.Contains(s.clusters(), leaving+"::")
	})
	s.await("only the stream is left there", func() bool {
		return s.sum(leaving, "vllm:num_requests_running") == 1 && s.sum(leaving, "vllm:num_requests_waiting") == 0
	})
	sent := l.sent.Load()
	// A request that was picked before may be on its way for a moment.
	s.await("each client has sent another request", func() bool { return l.sent.Load() > sent+40 })
	served := s.sum(leaving, "sim:requests_total", "path", "/v1/completions", "status", "200")
	s.await("more requests were answered", func() bool { return l.sent.Load() > sent+240 })
	if n := s.sum(leaving, "sim:requests_total", "path", "/v1/completions", "status", "200"); n != served {
		t.Errorf("%v requests were sent to an endpoint that left", n-served)
	}
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	body, err := io.ReadAll(stream.Body)
	if err != nil || !(answer{body: string(body)}).done() {
		t.Errorf("its stream ends after %d bytes with %v", len(body), err)
	}
}

// clusters returns the text of /clusters at Envoy's admin interface.
func (s *stack) clusters() string {
	s.t.Helper()
	response, err := s.client.Get("http://" + s.Admin + "/clusters")
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// knowing gives Envoy only the endpoints of these engines.
func knowing(ns ...int) setting {
	return func(c *rig.Config) {
		type object = map[string]any
		hosts := make([]any, len(ns))
		for i, n := range ns {
			address := object{"address": fmt.Sprint(strings.TrimSuffix(c.Listen, "1:8080"), 10+n), "port_value": 8000}
			hosts[i] = object{"endpoint": object{"address": object{"socket_address": address}}}
		}
		cluster := []any{"static_resources", "clusters", 0}
		c.EnvoyChanges = append(c.EnvoyChanges,
			setField("STATIC", append(slices.Clip(cluster), "type")...),
			setField(nil, append(slices.Clip(cluster), "eds_cluster_config")...),
			setField(object{"cluster_name": wire.EndpointsCluster, "endpoints": []any{object{"lb_endpoints": hosts}}},
				append(slices.Clip(cluster), "load_assignment")...))
	}
}
