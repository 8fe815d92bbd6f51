//go:build real

package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/test/times"
)

var mlserverDir = flag.String("mlserver", root+"/.cache/mlserver", "where bench/real/mlserver installed")

// mlserver is a real MLServer at a host. Its ports are 8000 for HTTP, 8001 for gRPC and 8002 for
// metrics. Its log spans its restarts.
type mlserver struct {
	t         *testing.T
	host, dir string
	folder    string
	*process.Process
}

func (m *mlserver) start() {
	m.t.Helper()
	m.Process = startEngine(m.t, m.dir, "mlserver",
		exec.Command("../real/mlserver", "serve", *mlserverDir, m.folder, m.host, "8000")) //nolint:gosec // paths of this test
}

// newMLServer runs an MLServer with models until the test ends.
func newMLServer(t *testing.T, host string, models []string) *mlserver {
	t.Helper()
	dir := t.TempDir()
	m := &mlserver{t: t, host: host, dir: dir, folder: filepath.Join(dir, "models")}
	if out, err := exec.CommandContext(t.Context(), "../real/mlserver",
		append([]string{"model", *mlserverDir, m.folder}, models...)...).CombinedOutput(); err != nil { //nolint:gosec // names of this test
		t.Fatalf("%v: %s", err, out)
	}
	m.start()
	t.Cleanup(func() {
		m.KillGroup()
		if t.Failed() {
			text, _ := os.ReadFile(m.Log)
			t.Logf("%s ends with\n%s", host, text[max(0, len(text)-3000):])
		}
	})
	return m
}

// repositories writes the objects of two engines that have a model repository. Each engine has room
// for the given number of models. It returns the engines' hosts. Their ports are 8000 for HTTP,
// 8001 for gRPC and 8002 for metrics.
func repositories(t *testing.T, c *rig.Config, kind engine.Kind, room int, models []string) []string {
	t.Helper()
	c.EngineFlags = nil
	net := strings.TrimSuffix(c.Listen, "1:8080")
	pool, _, _ := strings.Cut(engines(net, 0), "---")
	objects := pool +
		"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: repositories, labels: {app: llama}}\n" +
		fmt.Sprintf("spec: {addresses: ['%s11:8000', '%s12:8000'], engine: %s, ports: {grpc: 8001, metrics: 8002}}\n", net, net, kind)
	for _, m := range models {
		objects += modelObject(m, "type: any")
	}
	settings := fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: pool}\nspec: {poolRef: {name: pool}, placement: {maxModels: %d}}\n", room)
	for file, text := range map[string]string{"engines.yaml": objects, "settings.yaml": settings} {
		if err := os.WriteFile(filepath.Join(c.Objects, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return []string{net + "11", net + "12"}
}

// listening waits until engines answer at port 8000, so that programs that start later reach them
// at the first scrape.
func listening(t *testing.T, hosts []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for _, host := range hosts {
		for {
			q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+":8000/v2/health/live", nil)
			if err != nil {
				t.Fatal(err)
			}
			a, err := http.DefaultClient.Do(q)
			if err == nil {
				_ = a.Body.Close()
			}
			if err == nil && a.StatusCode == http.StatusOK {
				break
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%s does not answer within a minute: %v", host, err)
			case <-again.C:
			}
		}
	}
}

// Two real MLServers have room for half of the models. Half of the models are objects, and a
// ModelMesh client registers the others. Requests over REST and gRPC are answered by the right
// model. One server is killed and restarted. The only requests that fail are those in flight there,
// and those sent there before extproc learns that the server is dead.
func TestRealMLServersThroughEnvoy(t *testing.T) {
	runs(t, alone)
	var models []string
	for i := range 20 {
		models = append(models, fmt.Sprintf("m%02d", i))
	}
	var servers []*mlserver
	s := start(t, standalone, placed(t, 1), func(c *rig.Config) {
		hosts := repositories(t, c, engine.MLServer, 5, models[:10])
		for _, host := range hosts {
			servers = append(servers, newMLServer(t, host, models))
		}
		listening(t, hosts)
	})
	for _, model := range models[10:] {
		if _, err := s.mesh().RegisterModel(t.Context(),
			&mmesh.RegisterModelRequest{ModelId: model, ModelInfo: &mmesh.ModelInfo{Type: "any"}}); err != nil {
			t.Fatal(err)
		}
	}
	var sent atomic.Int64
	var mu sync.Mutex // guards the variables below
	var faults []string
	var last time.Time // when the last failed request began
	var took times.Times
	note := func(began time.Time, fault string) {
		mu.Lock()
		defer mu.Unlock()
		if took = append(took, time.Since(began)); fault != "" {
			faults = append(faults, fault)
			last = began
		}
	}
	calls := s.calls()
	infer := func(model string, class int64) string {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		a, err := calls.ModelInfer(ctx, &inference.ModelInferRequest{
			ModelName: model,
			Inputs: []*inference.ModelInferRequest_InferInputTensor{{
				Name: "x", Datatype: "FP64", Shape: []int64{1, 1},
				Contents: &inference.InferTensorContents{Fp64Contents: []float64{float64(3 * class)}},
			}},
		})
		if err != nil {
			return "gRPC: " + err.Error()
		}
		if a.GetModelName() != model || len(a.GetOutputs()) != 1 || a.GetOutputs()[0].GetContents().GetInt64Contents()[0] != class {
			return fmt.Sprintf("gRPC: %v", a)
		}
		return ""
	}
	post := func(model string, class int64) string {
		response, err := s.client.Post(s.url+"/v2/models/"+model+"/infer", "application/json",
			strings.NewReader(fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"FP64","shape":[1,1],"data":[%d]}]}`, 3*class)))
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		var a classified
		if err != nil || response.StatusCode != http.StatusOK || json.Unmarshal(text, &a) != nil || a.Name != model ||
			len(a.Outputs) != 1 || a.Outputs[0].Data[0] != class {
			return fmt.Sprintf("REST: %d %s %v", response.StatusCode, text, err)
		}
		return ""
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	draw := byChance(models)
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				model, class, began, ask := draw(), rand.Int64N(2), time.Now(), infer
				if rand.IntN(2) == 0 {
					ask = post
				}
				fault := ask(model, class)
				if fault != "" {
					fault = fmt.Sprintf("%s after %v: %s", model, time.Since(began).Round(time.Millisecond), fault)
				}
				note(began, fault)
				sent.Add(1)
			}
		})
	}
	more := func(n int64, what string) {
		t.Helper()
		before := sent.Load()
		s.awaitWithin(time.Minute, what, func() bool { return sent.Load() >= before+n })
	}
	more(300, "requests are answered")
	had := s.sum(s.Metrics, "headgate_endpoint_in_flight", "endpoint", s.endpoint(1))
	servers[0].KillGroup()
	killed := time.Now()
	more(100, "requests are answered without one of them")
	servers[0].start()
	served := func() float64 { return s.sum(s.Metrics, "headgate_endpoint_requests_total", "endpoint", s.endpoint(1)) }
	was := served()
	s.awaitWithin(time.Minute, "the one that was killed serves again", func() bool { return served() > was+20 })
	more(200, "requests are answered by both")
	cancel()
	clients.Wait()
	mlserversClient(t, s.Listen)
	// A request for an unknown version does not make extproc forget the model's copies.
	missing := s.sum(s.Metrics, "headgate_endpoint_failures_total", "kind", "missing")
	for range 3 {
		a := s.must(request{
			method: "POST", path: "/v2/models/m00/versions/9/infer",
			body: `{"inputs":[{"name":"x","datatype":"FP64","shape":[1,1],"data":[0]}]}`,
		})
		if a.status != http.StatusNotFound || !strings.Contains(a.body, "Model m00 with version 9 not found") {
			t.Errorf("a version that there is not gets %d %s", a.status, a.body)
		}
		_, err := calls.ModelInfer(t.Context(), &inference.ModelInferRequest{ModelName: "m00", ModelVersion: "9"})
		if is := status.Convert(err); is.Code() != codes.NotFound || is.Message() != "Model m00 with version 9 not found" {
			t.Errorf("a version that there is not gets %v", err)
		}
	}
	if is := s.sum(s.Metrics, "headgate_endpoint_failures_total", "kind", "missing"); is != missing {
		t.Errorf("%v times a model was missing, and %v before", is, missing)
	}
	t.Logf("%d requests, %d lost with the one that was killed, which had %v: %v", sent.Load(), len(faults), had, took)
	for _, fault := range faults {
		t.Log(fault)
	}
	// Two kinds of requests fail: those on the killed server, and, until extproc learns that the
	// server is dead, those for models without another copy.
	if late := last.Sub(killed); late > time.Second {
		t.Errorf("a request fails that began %v after the kill", late)
	}
}

// classified is MLServer's REST response.
type classified struct {
	Name    string `json:"model_name"`
	Outputs []struct {
		Data []int64 `json:"data"`
	} `json:"outputs"`
}

// mlserversClient sends requests with MLServer's own client.
func mlserversClient(t *testing.T, address string) {
	t.Helper()
	in, out := filepath.Join(t.TempDir(), "in.jsonl"), filepath.Join(t.TempDir(), "out.jsonl")
	line := `{"inputs":[{"name":"x","datatype":"FP64","shape":[1,1],"data":[%d]}]}` + "\n"
	if err := os.WriteFile(in, fmt.Appendf(nil, line+line, 0, 3), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := exec.CommandContext(t.Context(), *mlserverDir+"/venv/bin/mlserver", "infer", "-u", address, "-m", "m03", "-i", in, "-o",
		out, "-w", "1").CombinedOutput() //nolint:gosec // of this test
	if err != nil {
		t.Errorf("%v: %s", err, said)
		return
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var a classified
		if json.Unmarshal([]byte(line), &a) != nil || a.Name != "m03" || len(a.Outputs) != 1 || a.Outputs[0].Data[0] != int64(i) {
			t.Errorf("line %d of what MLServer's client was answered: %s", i, line)
		}
	}
}

// Two real MLServers with room for one model each are killed in turn while control unloads their
// models. No room leaks: in the end every model answers.
func TestRealMLServersThatDieLoseNoRoom(t *testing.T) {
	runs(t, alone)
	models := []string{"sk0", "sk1", "sk2", "sk3"}
	var servers []*mlserver
	s := start(t, standalone, placed(t, 1), func(c *rig.Config) {
		hosts := repositories(t, c, engine.MLServer, 1, nil)
		settings := "apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: pool}\nspec: {poolRef: {name: pool}, placement: {capacity: 1M, defaultSize: 1M}}\n"
		if err := os.WriteFile(filepath.Join(c.Objects, "settings.yaml"), []byte(settings), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, host := range hosts {
			servers = append(servers, newMLServer(t, host, models))
		}
		listening(t, hosts)
	})
	var victims []victim
	for i, server := range servers {
		victims = append(victims, victim{s.endpoint(i + 1), func() { server.KillGroup() }, func() {
			server.start()
			listening(t, []string{server.host})
		}})
	}
	calls := s.calls()
	s.crash(victims, models, func(ctx context.Context, model string) error {
		a, err := calls.ModelInfer(ctx, &inference.ModelInferRequest{
			ModelName: model,
			Inputs: []*inference.ModelInferRequest_InferInputTensor{{
				Name: "x", Datatype: "FP64", Shape: []int64{1, 1}, Contents: &inference.InferTensorContents{Fp64Contents: []float64{3}},
			}},
		})
		if err == nil && (a.GetModelName() != model || len(a.GetOutputs()) != 1 ||
			a.GetOutputs()[0].GetContents().GetInt64Contents()[0] != 1) {
			err = fmt.Errorf("%s answers %v", model, a)
		}
		return err
	})
}
