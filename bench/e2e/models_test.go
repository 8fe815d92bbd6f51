package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/bench/leader"
)

// registered is how many models TestRegistrationsAreDurable and BenchmarkCatalogue register.
var registered = flag.Int("models", 20000, "register this many models")

// maxRSS is how much memory control may use with 20,000 models, in kB.
const maxRSS = 200 << 10

// mesh returns a ModelMesh client that is connected to the leading control, once that control's
// health check passes.
func (s *stack) mesh() mmesh.ModelMeshClient {
	s.t.Helper()
	conn, err := grpc.NewClient("unix:"+s.ControlSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	if err := leader.Await(ctx, conn); err != nil {
		s.t.Fatal(err)
	}
	return mmesh.NewModelMeshClient(conn)
}

func registeredID(i int) string { return fmt.Sprintf("registered/%05d", i) }

// register registers n models with 16 clients and returns how long that took.
func (s *stack) register(n int) time.Duration {
	s.t.Helper()
	began := time.Now()
	client := s.mesh()
	var next atomic.Int64
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				st, err := client.RegisterModel(s.t.Context(), &mmesh.RegisterModelRequest{
					ModelId: registeredID(i), ModelInfo: &mmesh.ModelInfo{Type: "lora", Path: "sim:"},
				})
				if err != nil || !isThere(st) {
					s.t.Errorf("%s: %v, %v", registeredID(i), st, err)
					return
				}
			}
		})
	}
	clients.Wait()
	return time.Since(began)
}

// isThere reports whether a status is that of a registered model. The model may be loaded: if there
// is room, control loads models that no request has named.
func isThere(st *mmesh.ModelStatusInfo) bool {
	switch st.GetStatus() {
	case mmesh.ModelStatusInfo_NOT_LOADED, mmesh.ModelStatusInfo_LOADING, mmesh.ModelStatusInfo_LOADED:
		return true
	}
	return false
}

// rss returns the resident memory of a process in kB, 0 if the system does not report it.
func rss(t testing.TB, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *stack) catalogue() int {
	s.t.Helper()
	return int(s.sum(s.ControlMetrics, "headgate_models", "which", "all"))
}

// Tens of thousands of models are registered without an effect on requests. When the call that
// registers a model returns, the registration is durable, even if control is then killed, and the
// model is loaded when a request names it.
func TestRegistrationsAreDurable(t *testing.T) {
	runs(t, alone)
	s := start(t, placed(t, 4, "b00"), controlFlags("--mesh-pool", "default/pool"))
	own := s.catalogue()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	var answered atomic.Int64
	for range 2 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if a, err := s.ask(t.Context(), completion("b00", 2, false)); err != nil || a.status != http.StatusOK {
					t.Errorf("%v, %d %s", err, a.status, a.body)
					return
				}
				answered.Add(1)
			}
		})
	}
	took := s.register(*registered)
	stop()
	clients.Wait()
	if got := s.catalogue(); got != own+*registered {
		t.Errorf("%d models are in the catalogue, want %d", got, own+*registered)
	}
	before := rss(t, s.Control.PID())

	s.Control.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	began := time.Now()
	if err := s.StartControl(ctx); err != nil {
		t.Fatal(err)
	}
	back := time.Since(began)
	if got := s.catalogue(); got != own+*registered {
		t.Errorf("after the restart %d models are in the catalogue, want %d", got, own+*registered)
	}
	client := s.mesh()
	for i := 1; i <= *registered; i += max(1, *registered/100) {
		st, err := client.GetModelStatus(ctx, &mmesh.GetStatusRequest{ModelId: registeredID(i)})
		if err != nil || !isThere(st) {
			t.Errorf("after the restart %s: %v, %v", registeredID(i), st, err)
		}
	}
	s.await("requests may name the last one", func() bool {
		return s.must(completion(registeredID(*registered), 2, false)).status == http.StatusOK
	})
	after := rss(t, s.Control.PID())
	if max(before, after) > maxRSS {
		t.Errorf("control has %d kB, and had %d before it was killed: at most %d are wanted", after, before, maxRSS)
	}
	t.Logf("%d models registered in %v with %d requests beside; control had %d kB, and %d after its restart, which took %v",
		*registered, took, answered.Load(), before, after, back)
}

// minimal returns the YAML of n Models, each of which requires at least one copy.
func minimal(n int, source string) string {
	var b strings.Builder
	for _, id := range numbered(n) {
		fmt.Fprintf(&b,
			"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: Model\nmetadata: {name: %s}\nspec: {poolRef: {name: pool}, source: '%s', copies: {min: 1, max: 1}}\n",
			id, source)
	}
	return b.String()
}

// everyLoaded reports whether there are n models and each has exactly one copy, which is loaded.
func (s *stack) everyLoaded(n int) bool {
	loaded := 0
	for _, m := range s.models() {
		for _, c := range m.Copies {
			if c.State != "loaded" {
				return false
			}
			loaded++
		}
	}
	return loaded == n
}

// count returns the number of events of a kind.
func count(events []engineEvent, kind string) int {
	return len(slices.DeleteFunc(slices.Clone(events), func(e engineEvent) bool { return e.Event != kind }))
}

// onceEach checks that the given number of models were loaded, that each has one copy in the end,
// and that no engine loaded a model that it already had.
func (s *stack) onceEach(events []engineEvent, models int) {
	s.t.Helper()
	has := make(map[[2]string]bool)
	loaded := make(map[string]int)
	for _, e := range events {
		at := [2]string{e.Engine, e.Model}
		switch {
		case e.Event == "loaded" && e.Error == "":
			if has[at] {
				s.t.Errorf("%s loads %s, which it has", e.Engine, e.Model)
			}
			has[at] = true
			loaded[e.Model]++
		case e.Event == "unload":
			if has[at] {
				loaded[e.Model]--
			}
			has[at] = false
		}
	}
	for _, n := range loaded {
		if n != 1 {
			s.t.Errorf("models are loaded so many times: %v", loaded)
			break
		}
	}
	if len(loaded) != models {
		s.t.Errorf("%d models were loaded, want %d", len(loaded), models)
	}
}

// Control is killed in the middle of 20 loads. After its restart, each model has been loaded once,
// and no request for a loaded model has failed.
func TestControlIsKilledDuringLoads(t *testing.T) {
	runs(t, alone, raced)
	slow := filepath.Join(t.TempDir(), "slow.yaml")
	if err := os.WriteFile(slow, []byte(strings.Replace(profile, "adapterLoad: {mean: 0.02}", "adapterLoad: {mean: 0.4}", 1)),
		0o644); err != nil {
		t.Fatal(err)
	}
	s := start(t, placed(t, 8), engineFlags("--profile", slow))
	s.write("models.yaml", minimal(20, "sim:"))
	s.await("some are loaded, and some are not", func() bool { e := s.events(); return count(e, "loaded") >= 5 })
	if n := count(s.events(), "load"); n >= 20 {
		t.Fatalf("all %d loads have begun", n)
	}
	var first string
	for _, e := range s.events() {
		if e.Event == "loaded" && first == "" {
			first = e.Model
		}
	}
	if a := s.must(completion(first, 2, false)); a.status != http.StatusOK {
		t.Errorf("a request for a loaded model: %d %s", a.status, a.body)
	}
	s.Control.Kill()
	if a := s.must(completion(first, 2, false)); a.status != http.StatusOK {
		t.Errorf("a request for a loaded model, without control: %d %s", a.status, a.body)
	}
	if err := s.StartControl(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.promised(5*time.Second, "every copy is known, and loaded", func() bool { return s.everyLoaded(20) && s.agreed() == "" })
	s.onceEach(s.events(), 20)
}

// runtimeAt runs a simulated model runtime. It returns the YAML of the object that makes the
// runtime an endpoint of the pool.
func runtimeAt(t *testing.T, address string, log string, flags ...string) (object string) {
	t.Helper()
	args := append([]string{
		"engine", "--kind", "modelruntime", "--host", address, "--port", "8000", "--management", address + ":8085",
		"--event-log", log,
	}, flags...)
	cmd := exec.Command(programs(t).Headgate, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // an end by a signal is not a failure
	})
	return fmt.Sprintf("---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: runtime, labels: {app: runtime}}\nspec: {addresses: ['%s:8000'], engine: modelruntime, management: 'port:8085'}\n",
		address)
}

// Control is killed during loads of a model runtime, which cannot list its models. The models that
// control recorded as loaded stay. A model whose load was interrupted is unloaded, then loaded
// again. The runtime is initialized only once.
func TestControlIsKilledDuringLoadsOfARuntime(t *testing.T) {
	runs(t, alone, raced)
	s := start(t, placed(t, 4))
	network := strings.TrimSuffix(s.Listen, "1:8080")
	log := s.EventLog(network + "31:8000")
	const runtimes = "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: runtimes}\nspec: {selector: {matchLabels: {app: runtime}}, targetPorts: [{number: 8000}]}\n"
	s.write("runtime.yaml", runtimes+runtimeAt(t, network+"31", log))
	s.write("models.yaml", strings.ReplaceAll(minimal(18, "sim:?load=400ms"), "name: pool}", "name: runtimes}"))
	told := func() []engineEvent {
		if _, err := os.Stat(log); err != nil {
			return nil
		}
		return s.eventsOf(log)
	}
	s.await("some are loaded, and some are being loaded", func() bool {
		return count(told(), "loaded") >= 8 && count(told(), "load") >= 13
	})
	before := time.Now()
	s.Control.Kill()
	killed := told()
	if err := s.StartControl(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.promised(5*time.Second, "every copy is known, and loaded", func() bool { return s.everyLoaded(18) })
	all := told()
	s.onceEach(all, 18)
	if n := count(all, "purge"); n != 1 {
		t.Errorf("the runtime was made ready %d times", n)
	}
	// A load may have ended just before the kill, so that control has not recorded it.
	cut, stands := make(map[string]bool), make(map[string]bool)
	for _, e := range killed {
		if e.Event == "load" || e.Event == "loaded" {
			cut[e.Model] = e.Event == "load" || e.Error != ""
			stands[e.Model] = !cut[e.Model] && e.Time.Before(before.Add(-200*time.Millisecond))
		}
	}
	for _, e := range all[len(killed):] {
		switch {
		case e.Event == "unload" && stands[e.Model]:
			t.Errorf("%s, which was loaded, is unloaded", e.Model)
		case e.Event == "unload":
			delete(cut, e.Model)
		case e.Event == "load" && cut[e.Model]:
			t.Errorf("%s, whose load was cut off, is loaded and was not unloaded first", e.Model)
		}
	}
	if n := len(stands); n < 6 {
		t.Errorf("%d loads had begun", n)
	}
	if !slices.Contains(slices.Collect(maps.Values(stands)), true) {
		t.Error("none was loaded for long enough")
	}
}

// BenchmarkCatalogue compares the cost of a request with registered models and without: the CPU
// time of extproc and control, and the median latency. The flag -models sets the number of models.
// Run it with go test ./bench/e2e -run "^$" -bench Catalogue -benchtime 12x.
func BenchmarkCatalogue(b *testing.B) {
	instant := engineFlags("--profile", "testdata/instant.yaml")
	var stacks [2]*stack
	for i := range stacks {
		stacks[i] = start(b, instant, placed(b, 4, "b00"), controlFlags("--mesh-pool", "default/pool"))
	}
	stacks[1].register(*registered)
	compare(b, stacks, "b00", func(s *stack) []int { return []int{s.Extproc.PID(), s.Control.PID()} })
}
