package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/provision"
	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/headgate/rig"
	profiles "github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/times"
)

var (
	estimates = flag.Int("estimates", 0,
		"send so many queries through chains of two models at each load and print their times beside what is estimated")
	again = flag.Int("estimates-again", 3, "do so as often, at the same times")
)

// tookHeader is the response header with the time that the request spent at a sleeper.
const tookHeader = "X-Took"

// sleeper is a V2 server of one model that behaves as the estimates assume. It runs one batch at a
// time, which contains all queued requests up to a maximum number of rows. For each batch it sleeps
// for a fixed time plus a time per row.
type sleeper struct {
	base, each time.Duration
	rows       int

	come chan *asleep
}

// asleep is a request at a sleeper.
type asleep struct {
	rows int
	done chan struct{}
}

// run serves batches until ctx ends.
func (s *sleeper) run(ctx context.Context) {
	var waiting []*asleep
	for {
		if len(waiting) == 0 {
			select {
			case a := <-s.come:
				waiting = append(waiting, a)
			case <-ctx.Done():
				return
			}
		}
		for more := true; more; {
			select {
			case a := <-s.come:
				waiting = append(waiting, a)
			default:
				more = false
			}
		}
		n, rows := 1, waiting[0].rows
		for n < len(waiting) && rows+waiting[n].rows <= s.rows {
			rows += waiting[n].rows
			n++
		}
		time.Sleep(s.base + time.Duration(rows)*s.each)
		for _, a := range waiting[:n] {
			close(a.done)
		}
		waiting = waiting[n:]
	}
}

func (s *sleeper) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if !strings.HasSuffix(q.URL.Path, "/infer") {
		if q.URL.Path != "/health" {
			http.NotFound(w, q)
		}
		return
	}
	var asked struct{ Inputs []struct{ Shape []int } }
	if err := json.NewDecoder(q.Body).Decode(&asked); err != nil || len(asked.Inputs) != 1 || asked.Inputs[0].Shape[0] > s.rows {
		http.Error(w, fmt.Sprintf(`{"error":"want one input of %d rows at most"}`, s.rows), http.StatusBadRequest)
		return
	}
	began := time.Now()
	a := &asleep{rows: asked.Inputs[0].Shape[0], done: make(chan struct{})}
	select {
	case s.come <- a:
	case <-q.Context().Done():
		return
	}
	select {
	case <-a.done:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(tookHeader, time.Since(began).String())
		_, _ = io.WriteString(w, `{"model_name":"sleeper","outputs":[]}`)
	case <-q.Context().Done():
	}
}

// sleep serves a sleeper at an address until the test ends.
func sleep(t *testing.T, address string, s sleeper) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s.come = make(chan *asleep, 1<<14)
	go s.run(t.Context())
	server := &http.Server{Handler: &s, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

// oneRow is the body of a V2 request with one row.
const oneRow = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]}`

// manyConnections returns a client that keeps connections open between bursts of requests.
func manyConnections(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 2048}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// chained is a chain of models behind a gateway. Each model has its own pool.
type chained struct {
	client  *http.Client
	servers []string // by model, the URL of one of its servers
	urls    []string // by model, the URL at the gateway
	models  []string
	setting []estimate.Setting
	ask     []string // by model, the request body
	most    float64  // queries per second at load 1
	hops    float64  // gateway overhead of a lone query, in seconds

	lone func() []float64 // by model, the slowdown of lone queries since its profile was measured; nil if not measured
}

// throughput returns the number of queries per second that the chain can serve.
func (c *chained) throughput() float64 {
	least := 0.0
	for i, s := range c.setting {
		mine := float64(s.Replicas*s.Batch) / s.Times.(*profiles.Batches).MeanTime(s.Batch)
		if i == 0 || mine < least {
			least = mine
		}
	}
	return least
}

// infer requests one row from a model and returns how long the server says it took.
func infer(client *http.Client, url, model, body string) (there time.Duration, err error) {
	r, err := client.Post(url+"/v2/models/"+model+"/infer", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s is answered with %d %s", model, r.StatusCode, text)
	}
	there, _ = time.ParseDuration(r.Header.Get(tookHeader))
	return there, err
}

// pass sends one query through the models of the chain, in order. It returns the time spent at the
// servers and the latency at each model.
func (c *chained) pass() (there time.Duration, stages []time.Duration, err error) {
	for i, model := range c.models {
		began := time.Now()
		took, err := infer(c.client, c.urls[i], model, c.ask[i])
		if err != nil {
			return 0, nil, err
		}
		there += took
		stages = append(stages, time.Since(began))
	}
	return there, stages, nil
}

// drive sends queries at the given times, without waiting for earlier queries to end.
func (c *chained) drive(t *testing.T, at []float64) round {
	n := len(at)
	r := round{sent: make([]float64, n), took: make(times.Times, n), there: make(times.Times, n), stages: make([][]time.Duration, n)}
	var queries sync.WaitGroup
	var failed atomic.Int64
	began := time.Now()
	for i, seconds := range at {
		due := began.Add(time.Duration(seconds * float64(time.Second)))
		time.Sleep(time.Until(due))
		r.late = append(r.late, time.Since(due))
		r.sent[i] = time.Since(began).Seconds()
		queries.Go(func() {
			from := began.Add(time.Duration(r.sent[i] * float64(time.Second)))
			there, stages, err := c.pass()
			r.took[i], r.there[i], r.stages[i] = time.Since(from), there, stages
			if err != nil && failed.Add(1) == 1 {
				t.Error(err)
			}
		})
	}
	queries.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d queries failed", n, len(at))
	}
	return r
}

// poolAt returns the YAML of a pool with an endpoint at port 8000 of each host, and of a route for
// the pool's model.
func poolAt(model string, hosts []string) string {
	return strings.NewReplacer("MODEL", model, "ADDRESSES", strings.Join(hosts, ":8000', '")+":8000").Replace(`---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: MODEL}
spec: {selector: {matchLabels: {app: MODEL}}, targetPorts: [{number: 8000}]}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: EndpointList
metadata: {name: MODEL, labels: {app: MODEL}}
spec: {addresses: ['ADDRESSES']}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: {name: MODEL}
spec: {backendRefs: [{name: MODEL}]}
`)
}

// pools configures the rig's objects: for each model a pool at that model's hosts.
func pools(t *testing.T, c *rig.Config, hosts map[string][]string) {
	t.Helper()
	var objects strings.Builder
	for model, at := range hosts {
		objects.WriteString(poolAt(model, at))
	}
	if err := os.Remove(filepath.Join(c.Objects, "routes.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.Objects, "engines.yaml"), []byte(objects.String()),
		0o644); err != nil { //nolint:gosec // extproc reads it
		t.Fatal(err)
	}
}

// measured returns the profile that "headgate profile" measures at a host.
func measured(t *testing.T, host, model, row, batches string) *profiles.Batches {
	t.Helper()
	body := filepath.Join(t.TempDir(), "row.json")
	if err := os.WriteFile(body, []byte(row), 0o600); err != nil {
		t.Fatal(err)
	}
	_, text := headgateProfile(t, "--url", "http://"+host+":8000", "--model", model, "--api", "v2", "--body", body, "--batches", batches,
		"--min-samples", "60", "--precision", "0.01", "--max-samples", "200", "--time-limit", "10s")
	p, err := profiles.ParseBatches(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range p.Batches {
		t.Logf("%s: a batch of %d takes %.2f ms", p.Name, b.Size, 1e3*b.Mean)
	}
	return p
}

// headgateProfile runs "headgate profile" and returns its output and the profile.
func headgateProfile(t *testing.T, args ...string) (said, text []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "profile.yaml")
	said, err := exec.CommandContext(t.Context(), programs(t).Headgate,
		append([]string{"profile", "-o", file}, args...)...).CombinedOutput() //nolint:gosec // of tests
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if text, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	return said, text
}

// took returns how long a query takes, in seconds.
func took(t *testing.T, ask func() error) float64 {
	t.Helper()
	began := time.Now()
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	return time.Since(began).Seconds()
}

// findHops measures the gateway overhead: it sends lone queries alternately through the gateway and
// directly to the servers.
func (c *chained) findHops(t *testing.T) {
	t.Helper()
	var direct, hops []float64
	for i := range 65 {
		there := 0.0
		for stage, model := range c.models {
			there += took(t, func() error {
				_, err := infer(c.client, c.servers[stage], model, c.ask[stage])
				return err
			})
		}
		through := took(t, func() error {
			_, _, err := c.pass()
			return err
		})
		if i >= 5 {
			direct, hops = append(direct, there), append(hops, through-there)
		}
	}
	c.hops = max(0, middle(hops))
	t.Logf("%v: one query alone takes %.2f ms at the servers, and %.2f ms more through the gateway", c.models, 1e3*middle(direct),
		1e3*c.hops)
}

// estimated simulates the queries of a round, with service times multiplied by scale.
func (c *chained) estimated(t *testing.T, r round, scale float64) (times.Times, *estimate.Result) {
	t.Helper()
	settings := append([]estimate.Setting(nil), c.setting...)
	p := &estimate.Pipeline{Stages: len(settings)}
	for i := range settings {
		settings[i].Times = settings[i].Times.(*profiles.Batches).Times(scale * r.slowness(i))
		if i > 0 {
			p.Edges = append(p.Edges, estimate.Edge{From: i - 1, To: i, Share: 1})
		}
	}
	all := make(times.Times, len(r.sent))
	result, err := estimate.Run(p, settings, estimate.Arrivals(r.sent), 1, func(q int, took estimate.QueryTimes) bool {
		all[q] = time.Duration(took.Latency * float64(time.Second))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, result
}

// measure sends n queries in each of several rounds, with the same arrival times, at a load and a
// coefficient of variation. It returns measured and estimated times.
func (c *chained) measure(t *testing.T, n int, load, cv float64) *cell {
	at := provision.Gamma(rand.NewPCG(uint64(100*load), uint64(cv)), n, load*c.most, cv)
	var all []round
	for range *again {
		var before, after []float64
		if c.lone != nil {
			before = c.lone()
		}
		r := c.drive(t, at)
		if c.lone != nil {
			after = c.lone()
		}
		for i := range before {
			r.slower = append(r.slower, (before[i]+after[i])/2)
		}
		all = append(all, r)
	}
	is := c.compared(t, all, load, cv)
	t.Logf("%v", is)
	return is
}

// compared returns a cell that compares the measurements of rounds with their estimates.
func (c *chained) compared(t *testing.T, rounds []round, load, cv float64) *cell {
	is := &cell{replicas: c.setting[0].Replicas, cv: cv, load: load, rounds: rounds}
	for _, r := range rounds {
		is.add(r, c.hops, func(scale float64) times.Times {
			all, of := c.estimated(t, r, scale)
			if scale == 1 {
				is.ofStages = of.Stages
			}
			return all
		})
	}
	return is
}

// The estimates agree with the latencies of queries through a real Envoy and extproc, in chains of
// two models that sleep. "headgate profile" measures the profile of each model at a single server.
// No measurement under load is used for the estimate.
func TestEstimatesAreAsMeasured(t *testing.T) {
	runs(t, alone)
	if *estimates == 0 {
		t.Skip("-estimates says of how many queries")
	}
	kinds := []sleeper{
		{base: 30 * time.Millisecond, each: 10 * time.Millisecond, rows: 2},
		{base: 20 * time.Millisecond, each: 10 * time.Millisecond, rows: 4},
	}
	sizes := []string{"1,2", "1,2,4"}
	hosts := make(map[string][]string)
	var models [][]string // models of five chains: four with one replica, whose loads run side by side, and one with four replicas
	for _, chain := range []string{"a", "b", "c", "d", "four"} {
		models = append(models, []string{chain + "-first", chain + "-second"})
	}
	s := start(t, standalone, func(c *rig.Config) {
		net, next := strings.TrimSuffix(c.Listen, "1:8080"), 11
		for i, chain := range models {
			for stage, model := range chain {
				for range []int{1, 1, 1, 1, 4}[i] {
					hosts[model] = append(hosts[model], fmt.Sprintf("%s%d", net, next))
					sleep(t, hosts[model][len(hosts[model])-1]+":8000", kinds[stage])
					next++
				}
			}
		}
		pools(t, c, hosts)
	})
	client := manyConnections(t)
	chains := make([]*chained, len(models))
	var found []*profiles.Batches
	for i, chain := range models {
		c := &chained{client: client, urls: []string{s.url, s.url}, models: chain, ask: []string{oneRow, oneRow}}
		for stage, model := range chain {
			c.servers = append(c.servers, "http://"+hosts[model][0]+":8000")
			if i == 0 {
				found = append(found, measured(t, hosts[model][0], model, oneRow, sizes[stage]))
			}
			c.setting = append(c.setting, estimate.Setting{Times: found[stage], Batch: kinds[stage].rows, Replicas: len(hosts[model])})
		}
		c.most = c.throughput()
		c.findHops(t)
		chains[i] = c
	}
	var table comparison
	for _, loads := range [][2]float64{{0.3, 0.5}, {0.7, 0.85}} {
		var singles [4]*cell
		var sides sync.WaitGroup
		for i := range singles {
			sides.Go(func() { singles[i] = chains[i].measure(t, *estimates, loads[i/2], []float64{1, 4}[i%2]) })
		}
		sides.Wait()
		table = append(table, singles[:]...)
	}
	for _, load := range []float64{0.3, 0.5, 0.7, 0.85} {
		for _, cv := range []float64{1, 4} {
			table = append(table, chains[4].measure(t, *estimates, load, cv))
		}
	}
	t.Logf("\n%v", table)
}
