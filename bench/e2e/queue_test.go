package e2e

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/headgate/rig"
)

// fakeControl is a placement server that sends the messages that a test chooses, and records what
// extproc reports.
type fakeControl struct {
	placement.UnimplementedPlacementServer
	t     testing.TB
	ready chan struct{} // closed when extproc has connected

	mu      sync.Mutex // guards the fields below
	wire    placement.Placement_ConnectServer
	version uint64
	applied uint64
	wanted  map[string]uint32
	missing []string
}

// controlled starts a fake control that reports n engines without adapters.
func controlled(t testing.TB, n int) (*fakeControl, setting) {
	c := &fakeControl{t: t, ready: make(chan struct{}), wanted: map[string]uint32{}}
	socket := filepath.Join(t.TempDir(), "control.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	placement.RegisterPlacementServer(server, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return c, func(r *rig.Config) {
		pods(t, n)(r)
		extprocFlags("--control", "unix:"+socket)(r)
	}
}

// Connect implements placement.PlacementServer.
func (c *fakeControl) Connect(wire placement.Placement_ConnectServer) error {
	c.mu.Lock()
	c.wire = wire
	c.mu.Unlock()
	close(c.ready)
	for {
		r, err := wire.Recv()
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.applied = r.GetApplied()
		for _, w := range r.GetWanted() {
			c.wanted[w.GetKey().GetModel()] = w.GetRequests()
		}
		for _, m := range r.GetMissing() {
			c.missing = append(c.missing, m.GetKey().GetModel()+"@"+m.GetEndpoint())
		}
		c.mu.Unlock()
	}
}

// say sends an Update to extproc and waits until extproc has applied it.
func (c *fakeControl) say(s *stack, u *placement.Update) {
	s.t.Helper()
	<-c.ready
	c.mu.Lock()
	c.version++
	u.Version = c.version
	err := c.wire.Send(u)
	c.mu.Unlock()
	if err != nil {
		s.t.Fatal(err)
	}
	s.await("it is in force", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.applied == u.GetVersion()
	})
}

// waiting returns the number of requests that wait for a model, as last reported by extproc.
func (c *fakeControl) waiting(model string) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted[model]
}

func keyOf(model string) *placement.ModelKey {
	return &placement.ModelKey{Pool: "default/pool", Model: model}
}

// loaded returns copies of a model that are loaded at engines.
func loaded(model string, endpoints ...string) []*placement.Copy {
	var all []*placement.Copy
	for _, e := range endpoints {
		all = append(all, &placement.Copy{Copy: &placement.CopyKey{Key: keyOf(model), Endpoint: e}, State: placement.Copy_LOADED})
	}
	return all
}

// begins sends n requests. The channel receives each response when it arrives.
func (s *stack) begins(ctx context.Context, model string, n int) <-chan answer {
	answers := make(chan answer, n)
	for range n {
		go func() {
			a, err := s.ask(ctx, completion(model, 2, false))
			if err != nil && ctx.Err() == nil {
				s.t.Error(err)
			}
			answers <- a
		}()
	}
	return answers
}

// A request for an adapter that no engine has waits in Envoy, even longer than Envoy's message
// timeout. It continues when control reports that the adapter is loaded.
func TestRequestWaitsForItsModel(t *testing.T) {
	runs(t, raced)
	for name, settings := range map[string][]setting{"override_host": nil, "original_dst": {originalDst}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, control := controlled(t, 2)
			s := start(t, append(settings, control, extprocFlags("--max-queued", "3"))...)
			c.say(s, &placement.Update{Complete: true, Endpoints: &placement.Endpoints{Addresses: []string{s.endpoint(1), s.endpoint(2)}}})

			began := time.Now()
			answers := s.begins(t.Context(), "a01", 3)
			s.await("all are wanted", func() bool { return c.waiting("a01") == 3 })
			full := s.must(completion("a01", 2, false))
			refused(t, "a fourth", full, 429, "too_many_waiting")

			leaving, leave := context.WithCancel(t.Context())
			gone := s.begins(leaving, "a02", 1)
			s.await("a client waits", func() bool { return c.waiting("a02") == 1 })
			refused(t, "the newest request of the longest flow", <-answers, 429, "too_many_waiting")
			left := time.Now()
			leave()
			<-gone
			s.await("it is forgotten", func() bool { return c.waiting("a02") == 0 })
			if took := time.Since(left); took > 500*time.Millisecond {
				t.Errorf("a client that left is forgotten after %v", took)
			}

			failing := s.begins(t.Context(), "a03", 1)
			s.await("it is wanted", func() bool { return c.waiting("a03") == 1 })
			c.say(s, &placement.Update{Failures: []*placement.Failure{{Key: keyOf("a03"), Reason: "load_failed"}}})
			refused(t, "a failure", <-failing, 503, "model_load_failed")

			// A client's own deadline limits the wait.
			soon := s.must(request{body: completion("a04", 2, false).body, header: map[string]string{"grpc-timeout": "500m"}})
			refused(t, "in time", soon, 504, "load_timeout")
			if took := time.Since(soon.begun); took > 3*time.Second {
				t.Errorf("a client that waits for 500ms waited %v", took)
			}

			<-time.After(time.Until(began.Add(7 * time.Second))) // longer than message_timeout, which is 5 s
			c.say(s, &placement.Update{Copies: loaded("a01", s.endpoint(2))})
			for range 2 {
				if a := <-answers; a.status != http.StatusOK || a.served != s.endpoint(2) {
					t.Errorf("%d from %s: %s", a.status, a.served, a.body)
				}
			}
			s.await("both outcomes are known", func() bool {
				return s.histogram(s.Metrics, "headgate_gateway_overhead_seconds").GetSampleCount() == 2
			})
			if sum := s.histogram(s.Metrics, "headgate_gateway_overhead_seconds").GetSampleSum(); sum > 2 {
				t.Errorf("of the 7 s for which two requests waited for their model, the gateway counts %v s as its own", sum)
			}
			s.await("nobody waits", func() bool { return s.sum(s.Metrics, "headgate_queued_requests") == 0 && c.waiting("a01") == 0 })
		})
	}
}

// An engine lost an adapter without control's knowledge and answers 404. The request goes to its
// next pick, and extproc informs control.
func TestMissingCopyFailsNoRequest(t *testing.T) {
	runs(t)
	c, control := controlled(t, 2)
	s := start(t, control, extprocFlags("--policy", "roundRobin", "--models-scrape-interval", "1h"))
	c.say(s, &placement.Update{
		Complete: true, Endpoints: &placement.Endpoints{Addresses: []string{s.endpoint(1), s.endpoint(2)}},
		Copies: loaded("a01", s.endpoint(1), s.endpoint(2)),
	})
	response, err := s.client.Post("http://"+s.endpoint(2)+"/v1/unload_lora_adapter", "application/json",
		strings.NewReader(`{"lora_name":"a01"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the engine unloads with %d", response.StatusCode)
	}
	a, l := s.tell(completion("a01", 2, false)) // round robin starts at engine 1
	if a.status != http.StatusOK || a.served != s.endpoint(1) || engined(l.Picks) != s.endpoints(2, 1) || l.Usage.Missing != s.endpoint(2) {
		t.Errorf("%d from %s of %s, missing at %q: %s", a.status, a.served, l.Picks, l.Usage.Missing, a.body)
	}
	s.await("control is told", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Equal(c.missing, []string{"a01@" + s.endpoint(2)})
	})
	for range 4 {
		if _, l := s.tell(completion("a01", 2, false)); engined(l.Picks) != s.endpoint(1) {
			t.Errorf("the picks are %s, and only %s has it", l.Picks, s.endpoint(1))
		}
	}
}
