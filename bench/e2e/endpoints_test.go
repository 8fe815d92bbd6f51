package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

// Envoy accepts no request before it has the endpoints, and accepts requests as soon as it has
// them.
func TestEnvoyMayStartBeforeExtproc(t *testing.T) {
	runs(t)
	s := start(t, standalone) // a Gateway's Envoy listens only after control has configured it
	s.Envoy.Stop(5 * time.Second)
	s.Extproc.Stop(5 * time.Second)
	if err := s.StartEnvoy(); err != nil {
		t.Fatal(err)
	}
	s.await("Envoy waits", func() bool {
		response, err := s.client.Get("http://" + s.Admin + "/server_info")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	<-time.After(2 * time.Second) // meanwhile Envoy's retries back off
	if response, err := s.client.Get("http://" + s.Listen + "/healthz"); err == nil {
		_ = response.Body.Close()
		t.Error("it listens, and has not been told of its endpoints")
	}
	if err := s.StartExtproc(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := s.AwaitEnvoy(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("Envoy serves %v after extproc", time.Since(began).Round(time.Millisecond))
	if a := s.must(completion("a01", 2, false)); a.status != http.StatusOK {
		t.Errorf("the first request gets %d %s", a.status, a.body)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("Envoy finds extproc after %v, want a second at most and what the machine needs", d)
	}
}

// When extproc names only one pick for a request, Envoy must have a new endpoint before extproc
// picks it.
func TestNewEndpointsCostNoRequest(t *testing.T) { onBothPlanes(t, newEndpointsCostNoRequest) }

func newEndpointsCostNoRequest(t *testing.T) {
	const most = 8
	var net string
	s := start(t, extprocFlags("--policy", "random", "--endpoints-per-request", "1"), func(c *rig.Config) {
		net = strings.TrimSuffix(c.Listen, "1:8080")
		if err := os.WriteFile(filepath.Join(c.Objects, "engines.yaml"), []byte(engines(net, most)), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	knows := func(n int) func() bool {
		return func() bool { return s.envoyGauge("cluster."+s.cluster()+".membership_total") == float64(n+1) } // n engines and the relay
	}
	s.write("engines.yaml", engines(net, 1))
	s.await("Envoy knows one", knows(1))
	l := s.pour(16, func(client, n int) request { return completion(adapters[(client*5+n)%12], 5, n%2 == 0) }, isOK)
	for n := 2; n <= most; n++ {
		s.write("engines.yaml", engines(net, n))
		s.await("Envoy knows another", knows(n))
		before := s.sum(s.endpoint(n), "vllm:request_success_total")
		s.await("it serves", func() bool { return s.sum(s.endpoint(n), "vllm:request_success_total") > before+10 })
	}
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	t.Logf("%d requests while endpoints came, one after the other", l.sent.Load())
}
