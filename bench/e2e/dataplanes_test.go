package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

// before configures a stack that uses the engines of another stack.
func before(t *testing.T, other *stack) setting {
	return func(c *rig.Config) {
		text := strings.ReplaceAll(engines(strings.TrimSuffix(other.Listen, "1:8080"), 4), ", "+rig.SimulateLabel+": 'true'", "")
		if err := os.WriteFile(filepath.Join(c.Objects, "engines.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// both sends requests through two stacks at the same time and returns how many went through each.
func both(t *testing.T, a, b *stack) (throughA, throughB float64) {
	t.Helper()
	some := func(client, n int) request { return completion(adapters[(client*5+n)%12], 10+n%20, n%2 == 0) }
	la, lb := a.pour(8, some, isOK), b.pour(8, some, isOK)
	a.await("enough requests were answered", func() bool { return la.sent.Load() > 300 && lb.sent.Load() > 300 })
	la.stop()
	lb.stop()
	for _, fault := range append(la.faults, lb.faults...) {
		t.Error(fault)
	}
	return float64(la.sent.Load()), float64(lb.sent.Load())
}

// Two Envoys, each with its own extproc, share the same engines. Each extproc counts its own
// requests and sees the other's load in the engines' metrics.
func TestTwoEnvoysWithASidecarEach(t *testing.T) {
	runs(t)
	a := start(t)
	b := start(t, before(t, a))
	throughA, throughB := both(t, a, b)
	for _, c := range []struct {
		*stack
		want float64
	}{{a, throughA}, {b, throughB}} {
		c.await("each counts its own requests and no others", func() bool {
			return c.idle() && c.sum(c.Metrics, "headgate_requests_total", "code", "200") == c.want
		})
	}
	if got := a.engineSum("sim:requests_total", "path", "/v1/completions", "status", "200"); got != throughA+throughB {
		t.Errorf("the engines answered %v requests, want %v", got, throughA+throughB)
	}
}

// Two Envoys that stream bodies in chunks share one extproc, as gateways share an endpoint picker.
// extproc counts each request once, and detects its end without an access log.
func TestTwoEnvoysShareAnExtproc(t *testing.T) {
	runs(t)
	a := start(t, duplex.setting)
	host, _, _ := net.SplitHostPort(a.Listen)
	b := start(t, before(t, a), duplex.setting, changes(atExtproc("socket_address", map[string]any{"address": host, "port_value": 9002})))
	throughA, throughB := both(t, a, b)
	a.await("it counts the requests of both", func() bool {
		return a.idle() && a.sum(a.Metrics, "headgate_requests_total", "code", "200") == throughA+throughB
	})
	if n := b.sum(b.Metrics, "headgate_picks_total"); n != 0 {
		t.Errorf("the other extproc decided %v requests", n)
	}
	if n := a.sum(a.Metrics, "headgate_requests_in_flight_expired_total"); n != 0 {
		t.Errorf("%v leases ran out", n)
	}
}

// A gateway that sends extproc only the beginning of responses never reports the end of a request.
// Scrapes reveal that the request has ended.
func TestScrapesFindEndedRequests(t *testing.T) {
	runs(t)
	s := start(t, duplex.setting, changes(setExtProc(map[string]any{"processing_mode": modes("FULL_DUPLEX_STREAMED", map[string]any{
		"request_trailer_mode": "SEND", "response_header_mode": "SEND",
	})})))
	l := s.pour(8, func(client, n int) request { return completion(adapters[(client*5+n)%12], 20, n%2 == 0) }, isOK)
	s.await("enough requests were answered", func() bool { return l.sent.Load() > 200 })
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	s.awaitWithin(10*time.Second, "nothing is in flight", s.idle)
	if sent, told := float64(l.sent.Load()), s.sum(s.Metrics, "headgate_requests_total", "code", "200"); told != sent {
		t.Errorf("%v requests are told of, want %v", told, sent)
	}
	if inferred, expired := s.sum(s.Metrics, "headgate_requests_in_flight_inferred_total"),
		s.sum(s.Metrics, "headgate_requests_in_flight_expired_total"); inferred == 0 || expired != 0 {
		t.Errorf("%v leases were ended by looks, %v ran out", inferred, expired)
	}
}

// Other gateways restrict the endpoints that extproc may pick. extproc picks one of these, even for
// a request without a body.
func TestSubsetIsObeyedOnARealEnvoy(t *testing.T) {
	runs(t)
	s := start(t, duplex.setting, changes(insertFilter(map[string]any{
		"name": "subset",
		"typed_config": map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
			"request_rules": []any{map[string]any{
				"header": "x-allowed",
				"on_header_present": map[string]any{
					"metadata_namespace": "envoy.lb.subset_hint",
					"key":                "x-gateway-destination-endpoint-subset", "type": "STRING",
				},
			}},
		},
	})), extprocFlags("--pool-name", "pool"))
	for n := 1; n <= 4; n++ {
		for _, allowed := range []string{s.endpoint(n), strings.TrimSuffix(s.endpoint(n), ":8000"), "10.0.0.1:8000, " + s.endpoint(n)} {
			header := map[string]string{"X-Allowed": allowed}
			q := completion(adapters[n], 2, false)
			q.header = header
			for _, r := range []request{q, {method: "GET", path: "/health", header: header}} {
				if a := s.must(r); a.status != 200 || a.served != "" && a.served != s.endpoint(n) {
					t.Errorf("%s %s: %d from %s", allowed, r.path, a.status, a.served)
				}
			}
		}
	}
	q := completion("a01", 2, false)
	q.header = map[string]string{"X-Allowed": "10.0.0.1:8000"}
	refused(t, "nothing allowed", s.must(q), 503, "no_endpoint")
}

// A session, however it is identified, keeps its endpoint until that endpoint is gone.
func TestSessionKeepsItsEndpoint(t *testing.T) {
	runs(t)
	s := start(t)
	for spec, named := range map[string]func(n int) map[string]string{
		"sessionAffinity: {header: x-session-id}": func(n int) map[string]string {
			return map[string]string{"X-Session-Id": fmt.Sprint("s", n)}
		},
		"sessionAffinity: {cookie: sid}": func(n int) map[string]string {
			return map[string]string{"Cookie": fmt.Sprintf("a=b; sid=c%d", n)}
		},
	} {
		s.write("settings.yaml", poolSettings(spec))
		where := func(n int) string {
			r := completion(baseRoute, 2, false)
			r.header = named(n)
			return s.must(r).served
		}
		s.await("the settings are in force", func() bool {
			first := where(0)
			for range 7 {
				if where(0) != first {
					return false
				}
			}
			return true
		})
		homes := make(map[string]bool)
		for n := range 16 {
			home := where(n)
			homes[home] = true
			if again := where(n); again != home {
				t.Errorf("%s: session %d is at %s and then at %s", spec, n, home, again)
			}
		}
		if len(homes) < 3 {
			t.Errorf("%s: 16 sessions are at %v", spec, homes)
		}
	}
	r := completion(baseRoute, 2, false)
	r.header = map[string]string{"Cookie": "sid=c1"}
	home := s.must(r).served
	s.Engines[home].Kill()
	s.awaitWithin(10*time.Second, "the session moves", func() bool { a := s.must(r); return a.status == 200 && a.served != home })
}
