package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/envoy/adapt"
	"github.com/headgate/headgate/headgate/rig"
)

// mode is a way in which a data plane passes requests to extproc.
type mode struct {
	name string
	// renames reports whether extproc can rename a model in this mode.
	renames bool
	setting setting
}

// atExtproc changes the address at which Envoy calls extproc.
func atExtproc(kind string, address any) adapt.Change {
	return setField(address, "static_resources", "clusters", 1, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint",
		"address", kind)
}

var (
	buffered = mode{"buffered", true, func(*rig.Config) {}}
	// partial makes Envoy send the first 64 KiB of the body.
	partial = mode{"partial", true, changes(
		setExtProc(map[string]any{"processing_mode": modes("BUFFERED_PARTIAL", nil)}),
		replaceEverywhere("request_body_buffer_limit", 33554432.0, 65536),
	)}
	// headersOnly makes Envoy read the model itself and send no body.
	headersOnly = mode{"headers only", false, changes(append(readModel,
		setExtProc(map[string]any{"processing_mode": modes("NONE", nil)}))...)}
	// asking is headersOnly, except that extproc can ask for the body if it needs it.
	asking = mode{"headers only, with mode override", true, func(c *rig.Config) {
		headersOnly.setting(c)
		changes(setExtProc(map[string]any{"allow_mode_override": true}))(c)
		extprocFlags("--allow-mode-override")(c)
	}}
	// duplex is how other gateways call endpoint pickers: over TCP, with all headers, and with both
	// bodies in chunks. Other gateways do not learn endpoints from their picker; here Envoy learns
	// them from extproc's Unix socket.
	duplex = mode{"duplex", true, func(c *rig.Config) {
		host, _, _ := net.SplitHostPort(c.Listen)
		extprocFlags("--grpc-host", host, "--grpc-port", "9002")(c)
		c.EnvoyChanges = append(c.EnvoyChanges, copyCluster("extproc", "beside"),
			setEDSCluster("beside"),
			removeRoutesBy("content-length"), // other gateways send extproc large bodies, too
			atExtproc("socket_address", map[string]any{"address": host, "port_value": 9002}), atExtproc("pipe", nil),
			setExtProc(map[string]any{
				"processing_mode": modes("FULL_DUPLEX_STREAMED", map[string]any{
					"request_trailer_mode": "SEND", "response_header_mode": "SEND", "response_body_mode": "FULL_DUPLEX_STREAMED",
					"response_trailer_mode": "SEND",
				}),
				"metadata_options": map[string]any{
					"forwarding_namespaces": map[string]any{"untyped": []any{"envoy.lb", "envoy.lb.subset_hint"}},
					"receiving_namespaces":  map[string]any{"untyped": []any{"envoy.lb"}},
				},
				"forward_rules": nil, "mutation_rules": nil, // other gateways do not have these rules
			}),
		)
	}}
	everyMode = []mode{buffered, partial, headersOnly, asking, duplex}
)

// readModel makes Envoy read a request's model and send it to extproc in metadata.
var readModel = []adapt.Change{
	insertFilter(map[string]any{
		"name": "model",
		"typed_config": map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
			"request_rules": map[string]any{
				"allow_content_types_regex": map[string]any{"regex": "application/json.*"},
				"rules": []any{map[string]any{
					"selectors":  []any{map[string]any{"key": "model"}},
					"on_present": map[string]any{"metadata_namespace": "gateway.request", "key": "model", "type": "STRING"},
				}},
			},
		},
	}),
	setExtProc(map[string]any{"metadata_options": map[string]any{
		"forwarding_namespaces": map[string]any{"untyped": []any{"gateway.request"}},
		"receiving_namespaces":  map[string]any{"untyped": []any{"envoy.lb", "gateway.pick"}},
	}}),
}

func changes(all ...adapt.Change) setting {
	return func(c *rig.Config) { c.EnvoyChanges = append(c.EnvoyChanges, all...) }
}

// modes returns the processing modes of the ext_proc filter: body is the mode of the request body,
// and other contains the other fields.
func modes(body string, other map[string]any) map[string]any {
	all := map[string]any{
		"request_header_mode": "SEND", "request_body_mode": body, "request_trailer_mode": "SKIP",
		"response_header_mode": "SKIP", "response_body_mode": "NONE", "response_trailer_mode": "SKIP",
	}
	maps.Copy(all, other)
	return all
}

// recorder is an engine with constant metrics that records the requests it gets.
type recorder struct {
	address string

	mu     sync.Mutex // guards bodies
	bodies [][32]byte
}

// record serves a recorder at an address until the test ends. Its metrics list the models and the
// active adapters.
func record(t *testing.T, address string, models, active []string) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{address: address}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w,
			"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\nvllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"%s\",waiting_lora_adapters=\"\"} 1\n",
			len(active), strings.Join(active, ","))
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"data":[{"id":%q,"parent":null}`, baseName)
		for _, m := range models {
			fmt.Fprintf(w, `,{"id":%q,"parent":%q}`, m, baseName)
		}
		fmt.Fprint(w, "]}")
	})
	mux.HandleFunc("POST /v1/", func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			t.Error(err)
		}
		if n := q.ContentLength; n >= 0 && n != int64(len(body)) {
			t.Errorf("the content length says %d of %d bytes", n, len(body))
		}
		for name := range q.Header {
			if strings.HasPrefix(strings.ToLower(name), "x-llm-d-") || strings.EqualFold(name, "x-gateway-inference-objective") {
				t.Errorf("the engine sees the header %s", name)
			}
		}
		r.mu.Lock()
		r.bodies = append(r.bodies, sha256.Sum256(body))
		r.mu.Unlock()
		if bytes.Contains(body, []byte(`"stream":true`)) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
			w.(http.Flusher).Flush()
			fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"cmpl-1","choices":[{"text":"xy"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		_ = server.Serve(l)
		close(done)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return r
}

// startRecorded runs extproc and Envoy, in one mode, in front of four recorders.
func startRecorded(t *testing.T, m mode, settings ...setting) (*stack, []*recorder) {
	t.Helper()
	var all []*recorder
	s := start(t, append([]setting{func(c *rig.Config) {
		prefix, _, _ := strings.Cut(c.Listen, "1:8080")
		for i, active := range [][]string{{"a01", "a02"}, {"a03"}, nil, {"a01"}} {
			all = append(all, record(t, fmt.Sprintf("%s%d:8000", prefix, 11+i), adapters[:6], active))
		}
		// The recorders replace the simulated engines.
		file := filepath.Join(c.Objects, "engines.yaml")
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, bytes.ReplaceAll(text, []byte(", "+rig.SimulateLabel+": 'true'"), nil), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		// With these timeouts extproc scrapes once at the start, and never while requests are in
		// flight.
		patient := "apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: patient}\nspec: {poolRef: {name: pool}, timeouts: {staleAfter: 2h, lostAfter: 2h}}\n"
		if err := os.WriteFile(filepath.Join(c.Objects, "patient.yaml"), []byte(patient), 0o644); err != nil {
			t.Fatal(err)
		}
		c.ExtprocFlags = append(c.ExtprocFlags, "--seed", "7", "--scrape-interval", "1h", "--models-scrape-interval", "1h",
			"--stale-after", "2h")
		c.EnvoyChanges = append(c.EnvoyChanges, replaceEverywhere("buffer_size_bytes", 16384.0, 0)) // makes Envoy flush outcomes at once
	}, m.setting}, settings...)...)
	return s, all
}

// idle reports whether extproc counts zero requests in flight.
func (s *stack) idle() bool {
	page := s.page(s.Metrics)
	return strings.Contains(page, "\nheadgate_requests_in_flight 0\n") && !inFlight.MatchString(page)
}

var inFlight = regexp.MustCompile(`(?m)^headgate_endpoint_in_flight\{.*\} [1-9]`)

// The same requests, sent one at a time, with one random seed and with constant engine metrics,
// give the same result in every mode of the data plane: the same picks, the same bytes at the
// engines and the same outcomes.
func TestModesMakeTheSameDecisions(t *testing.T) {
	runs(t)
	const n = 500
	type result struct {
		bodies   map[string][][32]byte
		outcomes []string
	}
	run := func(m mode) result {
		s, engines := startRecorded(t, m)
		for i := range n {
			r := completion(adapters[i*5%6], 10+i%7, i%3 == 0)
			if i%4 == 0 {
				r.path = "/v1/chat/completions"
				r.body = fmt.Sprintf(`{"messages":[{"role":"user","content":"%s"}],"model":%q,"stream":%t}`,
					strings.Repeat("é", i*37%70_000), adapters[i%6], i%8 == 0)
			}
			r.header = map[string]string{"X-Llm-D-Slo-Ttft-Ms": "5", "X-Gateway-Inference-Objective": "gold"}
			if m.name != duplex.name {
				r.header = nil // Headgate's own Envoy need not remove headers that only other gateways set
			}
			if a := s.must(r); a.status != 200 || i%3 == 0 && i%4 != 0 && !a.done() {
				t.Fatalf("%s: request %d: %d %s", m.name, i, a.status, a.body)
			}
			s.await("the request is counted as gone", s.idle)
		}
		s.await("every outcome is known", func() bool { return s.sum(s.Metrics, "headgate_requests_total") == n })
		got := result{bodies: make(map[string][][32]byte)}
		network, _, _ := strings.Cut(s.Listen, "1:8080")
		for _, e := range engines {
			got.bodies[strings.TrimPrefix(e.address, network)] = e.bodies
		}
		for line := range strings.Lines(s.page(s.Metrics)) {
			for _, name := range []string{
				"headgate_requests_total{", "headgate_failures_total{", "headgate_tokens_total{", "headgate_picks_total{",
				"headgate_time_to_first_token_seconds_count{", "headgate_request_tokens_sum{",
				"headgate_endpoint_requests_total{", "headgate_endpoint_failures_total{", "headgate_endpoint_retries_total{",
			} {
				if strings.HasPrefix(line, name) {
					got.outcomes = append(got.outcomes, strings.ReplaceAll(line, network, "127.x.y."))
				}
			}
		}
		s.Stop(5 * time.Second)
		return got
	}
	want := run(buffered)
	total := 0
	for _, bodies := range want.bodies {
		total += len(bodies)
	}
	if total != n || len(want.bodies) != 4 || len(want.outcomes) < 20 {
		t.Fatalf("%d bodies at %d engines, %d lines of outcomes", total, len(want.bodies), len(want.outcomes))
	}
	for _, m := range []mode{headersOnly, duplex} {
		got := run(m)
		for host, bodies := range want.bodies {
			if !slices.Equal(got.bodies[host], bodies) {
				t.Errorf("%s: %s gets %d requests, or others; want %d", m.name, host, len(got.bodies[host]), len(bodies))
			}
		}
		if !slices.Equal(got.outcomes, want.outcomes) {
			t.Errorf("%s: the outcomes are\n%s\nwant\n%s", m.name, strings.Join(got.outcomes, ""), strings.Join(want.outcomes, ""))
		}
	}
}

// Every mode serves valid requests, and rejects invalid ones with the same errors.
func TestEveryModeServes(t *testing.T) {
	runs(t)
	for _, m := range everyMode {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s, engines := startRecorded(t, m)
			s.write("more.yaml", strings.ReplaceAll(routes("a02"), "name: a02}\nspec:", "name: renamed}\nspec:\n  modelNames: [renamed]"))
			s.await("a new route is in force", func() bool {
				return strings.Contains(s.must(request{method: "GET", path: "/v1/models"}).body, "renamed")
			})

			for _, body := range []string{
				`{"model":"a01","prompt":"x"}`,
				`{"model":"a01","stream":true,"prompt":"x"}`,
				`{"model":"a01","prompt":"` + strings.Repeat("long ", 1_000_000) + `"}`,
			} {
				for _, header := range []map[string]string{nil, {"Transfer-Encoding": "chunked"}} {
					if a := s.must(request{body: body, header: header}); a.status != 200 {
						t.Errorf("%d bytes, %v: %d %s", len(body), header, a.status, a.body)
					}
					last := sha256.Sum256([]byte(body))
					if !slices.ContainsFunc(engines, func(r *recorder) bool { return slices.Contains(r.bodies, last) }) {
						t.Errorf("%d bytes, %v: no engine got them", len(body), header)
					}
				}
			}

			// If the mode permits it, extproc replaces a route's model name by the adapter's name.
			a := s.must(request{body: `{"model":"renamed","prompt":"x"}`})
			renamed := sha256.Sum256([]byte(`{"model":"a02","prompt":"x"}`))
			switch got := slices.ContainsFunc(engines, func(r *recorder) bool { return slices.Contains(r.bodies, renamed) }); {
			case m.renames && (a.status != 200 || !got):
				t.Errorf("a renamed request gets %d %s", a.status, a.body)
			case !m.renames && (a.status != 500 || !strings.Contains(a.body, `"rename_impossible"`)):
				t.Errorf("a request that cannot be renamed gets %d %s", a.status, a.body)
			}

			refused(t, "unknown model", s.must(request{body: `{"model":"nobody"}`}), 404, "model_not_found")
			refused(t, "no model", s.must(request{body: `{"prompt":"x"}`}), 400, "invalid_request")
			refused(t, "a path", s.must(request{body: `{"model":"../a01"}`}), 400, "invalid_request")
			refused(t, "no body", s.must(request{body: ""}), 400, "invalid_request")
			refused(t, "admin path", s.must(request{path: "/v1/load_lora_adapter", body: `{}`}), 404, "unknown_url")
			if m.name != partial.name && m.name != headersOnly.name && m.name != asking.name {
				refused(t, "too large", s.must(request{body: `{"model":"a01","prompt":"` + strings.Repeat("x", 33<<20) + `"}`}), 413,
					"request_too_large")
			}
			s.await("nothing is in flight", s.idle)
			if n := s.sum(s.Metrics, "headgate_requests_in_flight_expired_total"); n != 0 {
				t.Errorf("%v leases ran out", n)
			}
		})
	}
}
