// Package e2e tests the whole system: real clients, a real Envoy, extproc and simulated engines,
// all as processes. Each test has its own loopback addresses. The tests see only what clients see,
// metrics and logs.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/headgate/headgate/headgate/rig"
)

const (
	root      = "../.."
	cache     = root + "/.cache"
	baseName  = "meta-llama/Llama-2-70b" // name of the base model at engines
	baseRoute = "llama"                  // name of the base model in requests
)

// adapters are registered on every engine. Each adapter has a route of the same name.
var adapters = []string{"a01", "a02", "a03", "a04", "a05", "a06", "a07", "a08", "a09", "a10", "a11", "a12"}

func TestMain(m *testing.M) {
	flag.Parse()
	if *beIdle != "" {
		fmt.Fprintln(os.Stderr, "e2e:", serveIdle(*beIdle))
		os.Exit(1)
	}
	if testing.Short() {
		fmt.Println("the end-to-end tests are left out of short runs")
		return
	}
	// By default a program with the race detector waits one second at its end for reports from
	// other threads.
	status, err := 1, os.Setenv("GORACE", "atexit_sleep_ms=50")
	if err == nil {
		status, err = run(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		status = 1
	}
	os.Exit(status)
}

// programsOf are the files and folders that the programs are built from.
var programsOf = []string{
	"api", "bench", "control", "extproc", "headgate", "internal", "manifests", "packaging", "test", "envoy.yaml", "go.mod", "headgate.go",
}

var looked sync.Once

// look calls stat for every file that the programs are built from, so that go test reruns the tests
// when one of these files changes. go test caches results until a file changes that the tests
// opened after TestMain has started them. It does not know what the tests build.
func look() {
	for _, folder := range programsOf {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			_, err = os.Stat(path)
			return err
		})
		if err != nil {
			panic(err)
		}
	}
}

func run(m *testing.M) (status int, err error) {
	if built, err = newBuilds(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(built.dir)) }()
	return m.Run(), nil
}

// profile makes engines ten times as fast as a small model on a GPU. Loading an adapter into a slot
// still takes long enough to be visible.
const profile = `name: fast
prefill: {base: 0.001, perToken: 0.00001}
decode: {base: 0.002, perSequence: 0.00002, perKVToken: 0}
adapterLoad: {mean: 0.02}
adapterActivation: {mean: 0.02}
limits: {maxSequences: 64, maxBatchedTokens: 8192, kvBlocks: 8192, blockSize: 16, gpuAdapters: 4, hostAdapters: 12}
`

var networks atomic.Int32

// network returns a loopback prefix for one test, such as "127.66.1.". Each test has a different
// prefix, because tests run in parallel, and so may several runs of all tests.
func network() string {
	n := int(networks.Add(1))
	return fmt.Sprintf("127.%d.%d.", 64+(2*os.Getpid()+n/250)%128, n%250)
}

// stack is a rig with helpers for tests.
type stack struct {
	*rig.Rig
	t       testing.TB
	url     string
	objects string // folder of the objects
	client  *http.Client
	gateway bool // Envoy is the data plane of a Gateway, to which all LLMRoutes attach
}

// setting changes a rig's configuration before it starts.
type setting func(*rig.Config)

func extprocFlags(flags ...string) setting {
	return func(c *rig.Config) { c.ExtprocFlags = append(c.ExtprocFlags, flags...) }
}

func controlFlags(flags ...string) setting {
	return func(c *rig.Config) { c.ControlFlags = append(c.ControlFlags, flags...) }
}

func engineFlags(flags ...string) setting {
	return func(c *rig.Config) { c.EngineFlags = append(c.EngineFlags, flags...) }
}

// originalDst makes Envoy run original-dst.yaml, which accepts only one pick.
func originalDst(c *rig.Config) { c.EnvoyYAML = root + "/bench/envoy/original-dst.yaml" }

// pods makes the rig run n simulated engines.
func pods(t testing.TB, n int) setting {
	return func(c *rig.Config) {
		text := engines(strings.TrimSuffix(c.Listen, "1:8080"), n)
		if err := os.WriteFile(filepath.Join(c.Objects, "engines.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// start runs four simulated engines, unless settings change that, with extproc and Envoy until the
// test ends.
func start(t testing.TB, settings ...setting) *stack {
	t.Helper()
	dir := t.TempDir()
	net := network()
	objects := filepath.Join(dir, "objects")
	if err := os.Mkdir(objects, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t, objects: objects, url: "http://" + net + "1:8080"}
	s.write("engines.yaml", engines(net, 4))
	s.write("routes.yaml", routes(append([]string{baseRoute}, adapters...)...))
	if err := os.WriteFile(filepath.Join(dir, "profile.yaml"), []byte(profile), 0o644); err != nil {
		t.Fatal(err)
	}
	c := rig.Config{
		Programs: programs(t), EnvoyYAML: root + "/envoy.yaml", Objects: objects, Dir: filepath.Join(dir, "run"),
		Listen: net + "1:8080", Admin: net + "1:9901", Metrics: net + "1:9090", Model: baseName,
		EngineFlags: []string{"--profile", filepath.Join(dir, "profile.yaml"), "--max-model-len", "16384"},
	}
	for _, set := range settings {
		set(&c)
	}
	if c.Gateway != "" || gateway.is(t) && c.EnvoyYAML == root+"/envoy.yaml" && len(c.EnvoyChanges) == 0 && c.ExtprocKube == "" {
		s.useGateway(&c)
	}
	r, err := rig.New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.Rig = r
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	s.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		r.Stop(5 * time.Second)
		if t.Failed() {
			s.tails()
		}
		s.noRaces()
	})
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.await("every engine is a candidate", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "state", "healthy") == float64(len(s.World().Addresses()))
	})
	return s
}

// write replaces a file of objects atomically. If the file were written in place, readers might
// read half of it on a busy machine.
func (s *stack) write(file, text string) {
	s.t.Helper()
	if s.gateway {
		text = attached(s.t, text)
	}
	whole := filepath.Join(s.t.TempDir(), file)
	if err := os.WriteFile(whole, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(whole, filepath.Join(s.objects, file)); err != nil {
		s.t.Fatal(err)
	}
}

// engines returns the YAML of a pool and of n pods for the rig to simulate. Their addresses begin
// at .11.
func engines(net string, n int) string {
	var b strings.Builder
	b.WriteString("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: pool}\nspec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}]}\n")
	for i := 11; i < 11+n; i++ {
		fmt.Fprintf(&b,
			"---\napiVersion: v1\nkind: Pod\nmetadata: {name: engine-%d, labels: {app: llama, %s: 'true'}}\nstatus: {podIP: %s%d}\n", i,
			rig.SimulateLabel, net, i)
	}
	return b.String()
}

// routes returns the YAML of an LLMRoute for each name. The route of baseRoute is for the base
// model; any other route is for the adapter with the same name.
func routes(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b,
			"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: %s}\nspec:\n  backendRefs: [{name: pool}]\n", name)
		if name != baseRoute {
			fmt.Fprintf(&b, "  adapter: {name: %s}\n", name)
		}
	}
	return b.String()
}

// tails prints the last lines of every log of a failed test.
func (s *stack) tails() {
	logs, _ := filepath.Glob(filepath.Join(s.Dir, "*.log"))
	for _, path := range logs {
		text, _ := os.ReadFile(path)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		s.t.Logf("%s:\n%s", filepath.Base(path), strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
}

// noRaces fails the test if a program logged a data race or a panic.
func (s *stack) noRaces() {
	logs, _ := filepath.Glob(filepath.Join(s.Dir, "*.log"))
	for _, path := range logs {
		text, _ := os.ReadFile(path)
		for _, word := range []string{"WARNING: DATA RACE", "panic:", "panic while serving a request"} { // the last is of a recovered panic
			if strings.Contains(string(text), word) {
				s.t.Errorf("%s tells of a race or a panic:\n%s", filepath.Base(path), text)
				break
			}
		}
	}
}

// await waits until a condition holds.
func (s *stack) await(what string, holds func() bool) {
	s.t.Helper()
	s.awaitWithin(20*time.Second, what, holds)
}

// promised waits until a condition holds. If that takes longer than documented, promised only logs
// it, because a busy machine may be slower. It fails the test before a fallback, such as rereading
// a folder without a change event, would make the condition hold.
func (s *stack) promised(limit time.Duration, what string, holds func() bool) {
	s.t.Helper()
	began := time.Now()
	s.awaitWithin(4*limit, what, holds)
	if took := time.Since(began); took > limit {
		s.t.Logf("%v is promised, and it took %v until it held that %s", limit, took.Round(time.Millisecond), what)
	}
}

func (s *stack) awaitWithin(limit time.Duration, what string, holds func() bool) {
	s.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(limit); !holds(); {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("after %v it does not hold that %s", limit, what)
		}
	}
}

// page returns the text of the metrics page at an address.
func (s *stack) page(address string) string {
	s.t.Helper()
	response, err := s.client.Get("http://" + address + "/metrics")
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

// sum adds up the series of a metric that have these labels, given as name, value, name, value.
func (s *stack) sum(address, metric string, labels ...string) float64 {
	s.t.Helper()
	total, err := total(strings.NewReader(s.page(address)), metric, labels...)
	if err != nil {
		s.t.Fatal(err)
	}
	return total
}

// histogram returns the value of a histogram that has only one series.
func (s *stack) histogram(address, metric string) *dto.Histogram {
	s.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(s.page(address)))
	if err != nil || len(families[metric].GetMetric()) != 1 {
		s.t.Fatalf("%s: %d series, %v", metric, len(families[metric].GetMetric()), err)
	}
	return families[metric].GetMetric()[0].GetHistogram()
}

// total adds up the series of a metric on a page, as [stack.sum] does.
func total(page io.Reader, metric string, labels ...string) (total float64, err error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return 0, err
	}
series:
	for _, m := range families[metric].GetMetric() {
		has := make(map[string]string)
		for _, l := range m.GetLabel() {
			has[l.GetName()] = l.GetValue()
		}
		for i := 0; i < len(labels); i += 2 {
			if has[labels[i]] != labels[i+1] {
				continue series
			}
		}
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
	}
	return total, nil
}

// engineSum adds up the series of a metric over all simulated engines.
func (s *stack) engineSum(metric string, labels ...string) float64 {
	s.t.Helper()
	total := 0.0
	for address := range s.Engines {
		total += s.sum(address, metric, labels...)
	}
	return total
}

// inFlight returns the number of requests that extproc counts as in flight.
func (s *stack) inFlight() float64 {
	s.t.Helper()
	return s.sum(s.Metrics, "headgate_endpoint_in_flight")
}

// modelsInFlight returns the number of models with requests in flight, added up over all endpoints,
// as extproc counts them.
func (s *stack) modelsInFlight() float64 {
	s.t.Helper()
	const metric = "headgate_endpoint_models_in_flight"
	if page := s.page(s.Metrics); !strings.Contains(page, metric+"{") {
		s.t.Errorf("extproc does not say how many models have requests:\n%s", page)
	}
	return s.sum(s.Metrics, metric)
}

// request is an HTTP request that a test sends.
type request struct {
	method, path string // POST /v1/completions by default
	body         string
	header       map[string]string
}

// completion returns a request for a number of tokens from a model.
func completion(model string, tokens int, stream bool) request {
	return request{body: fmt.Sprintf(`{"model":%s,"prompt":"hello","max_tokens":%d,"stream":%t}`, strconv.Quote(model), tokens, stream)}
}

// answer is the response to a request.
type answer struct {
	status int
	header http.Header
	body   string
	served string // address of the engine that served the request
	begun  time.Time
	stream bool
}

func (a answer) done() bool { return strings.HasSuffix(strings.TrimSpace(a.body), "data: [DONE]") }

// open sends a request and returns the response without reading its body.
func (s *stack) open(ctx context.Context, r request) (*http.Response, error) {
	if r.method == "" {
		r.method = http.MethodPost
	}
	if r.path == "" {
		r.path = "/v1/completions"
	}
	q, err := http.NewRequestWithContext(ctx, r.method, s.url+r.path, strings.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	for k, v := range r.header {
		q.Header.Set(k, v)
	}
	if host := r.header["Host"]; host != "" {
		q.Host = host
	}
	if r.header["Transfer-Encoding"] == "chunked" {
		q.ContentLength = -1 // otherwise Go's client sends a Content-Length
	}
	return s.client.Do(q)
}

// ask sends a request and reads the whole response.
func (s *stack) ask(ctx context.Context, r request) (answer, error) {
	a := answer{begun: time.Now()}
	response, err := s.open(ctx, r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	a.status, a.header, a.body, a.served = response.StatusCode, response.Header, string(body), response.Header.Get("x-served-endpoint")
	a.stream = strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream")
	return a, err
}

// must sends a request and returns the response, like ask. An error fails the test.
func (s *stack) must(r request) answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	a, err := s.ask(ctx, r)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

var errNotDone = errors.New("the stream did not end with [DONE]")
