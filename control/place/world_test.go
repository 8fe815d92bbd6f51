package place_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/headgate/simulated/runtime"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
)

var pool = objects.Name{Namespace: "default", Name: "p"}

func key(id string) decide.Key { return decide.Key{Pool: pool, ID: id} }

// world is a Placer with simulated engines. The Placer can be restarted with the same file, while
// the engines keep running.
type world struct {
	*testing.T
	*place.Placer
	file  string
	board *board
	stop  func()
	told  *recorder // records what is stored; nil: nothing is recorded
	world *objects.World
	// tokens are the tokens of engines; nil if the engines need none.
	tokens *engineclient.Tokens
	tick   time.Duration // tick interval; 0: the default
	scrape time.Duration // scrape interval; 0: 20 ms
	log    log
}

// recorder is a store.Memory that records what is written to it.
type recorder struct {
	store.Memory
	mu       sync.Mutex // guards the fields below
	refuses  error      // error to return when a model is deleted; may be nil
	away     error      // error to return when a copy is written; may be nil
	keeps    error      // error to return when a VModel is written; may be nil
	copies   []store.Copy
	statuses []store.Status
	vmodels  map[string]v1alpha1.VModelStatus // last written status, by id
	deleted  []string                         // deleted copies, as "ENDPOINT ID"
	gates    []string                         // published readiness gates of pods
}

func (s *recorder) PutGate(g store.Gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gates = append(s.gates, fmt.Sprintf("%s %s %v %s: %s", g.Pod, g.UID, g.Open, g.Reason, g.Message))
}

// publishedGates returns the published readiness gates of pods, in order.
func (s *recorder) publishedGates() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.gates)
}

// setAway sets the error that writing a copy returns; it may be nil.
func (s *recorder) setAway(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = err
}

// asked returns how many times a copy was written.
func (s *recorder) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.copies)
}

func (s *recorder) DeleteCopy(endpoint, pool, id string) {
	s.mu.Lock()
	s.deleted = append(s.deleted, endpoint+" "+id)
	s.mu.Unlock()
	s.Memory.DeleteCopy(endpoint, pool, id)
}

func (s *recorder) PutCopy(c store.Copy, wait bool) error {
	s.mu.Lock()
	s.copies = append(s.copies, c)
	away := s.away
	s.mu.Unlock()
	if away != nil {
		return away
	}
	return s.Memory.PutCopy(c, wait)
}

func (s *recorder) DeleteModel(m *v1alpha1.Model) (wait func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses != nil {
		return func() error { return s.refuses }
	}
	return s.Memory.DeleteModel(m)
}

func (s *recorder) setKeeps(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeps = err
}

func (s *recorder) PutVModel(v *v1alpha1.VModel, fresh bool) (wait func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.keeps; err != nil {
		return func() error { return err }
	}
	return s.Memory.PutVModel(v, fresh)
}

func (s *recorder) PutVModelStatuses(all []store.VModelStatus) {
	s.mu.Lock()
	if s.vmodels == nil {
		s.vmodels = make(map[string]v1alpha1.VModelStatus)
	}
	for _, st := range all {
		if s.vmodels[st.ID] = st.Status; st.Gone {
			delete(s.vmodels, st.ID)
		}
	}
	s.mu.Unlock()
	s.Memory.PutVModelStatuses(all)
}

// vmodel returns the last written status of a VModel as "ACTIVE REASON: message"; empty if there is
// none.
func (s *recorder) vmodel(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.vmodels[id].Conditions {
		if c.Type == v1alpha1.ConditionReady {
			return s.vmodels[id].Active + " " + c.Reason + ": " + c.Message
		}
	}
	return ""
}

// ready returns the last written condition Ready of a model as "STATUS REASON: message"; empty if
// there is none.
func (s *recorder) ready(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range slices.Backward(s.statuses) {
		if c := meta.FindStatusCondition(st.Status.Conditions, v1alpha1.ConditionReady); st.ID == id && c != nil {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// previous returns the model that a VModel used before, and until when that model keeps its copies;
// empty if there is none.
func (s *recorder) previous(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.vmodels[id]; st.PreviousUntil != nil {
		return fmt.Sprintf("%s until %d", st.Previous, st.PreviousUntil.UnixMilli())
	}
	return ""
}

func (s *recorder) PutStatuses(all []store.Status) {
	s.mu.Lock()
	s.statuses = append(s.statuses, all...)
	s.mu.Unlock()
	s.Memory.PutStatuses(all)
}

// board records what the Placer publishes. It reports each draining copy as drained at once, since
// there are no requests.
type board struct {
	placer *place.Placer

	mu        sync.Mutex // guards the fields below
	ready     bool
	endpoints []string
	vmodels   map[decide.Key]decide.Switch
	names     map[decide.Key]bool
	behind    []string
	methods   map[string]engine.Methods
	limits    map[decide.CopyKey]int // concurrency limits of loaded copies
	awaited   []decide.Key           // models passed to AwaitRegistered
	gone      []decide.CopyKey       // removed copies, in order
}

// SetMethods records the gRPC methods of an endpoint.
func (b *board) SetMethods(endpoint string, methods engine.Methods) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.methods == nil {
		b.methods = make(map[string]engine.Methods)
	}
	b.methods[endpoint] = methods
}

// takes returns the published gRPC methods of an endpoint.
func (b *board) takes(endpoint string) engine.Methods {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.methods[endpoint]
}

// limit returns the published concurrency limit of a copy; -1 if the copy is not loaded.
func (b *board) limit(id, endpoint string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if limit, there := b.limits[decide.CopyKey{ModelKey: key(id), Endpoint: endpoint}]; there {
		return limit
	}
	return -1
}

func (b *board) Publish(c decide.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Endpoints != nil {
		b.endpoints = c.Endpoints
	}
	maps.Copy(b.vmodels, c.VModels)
	maps.Copy(b.names, c.Registered)
	for key, of := range c.Copies {
		if b.limits == nil {
			b.limits = make(map[decide.CopyKey]int)
		}
		if delete(b.limits, key); of.State == decide.Loaded {
			b.limits[key] = of.Limit
		}
		if of.State == decide.Gone {
			b.gone = append(b.gone, key)
		}
		if of.State == decide.Draining {
			go b.placer.Drained(key)
		}
	}
}

// Behind returns the names passed to setBehind.
func (b *board) Behind(decide.Key) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.behind
}

func (b *board) setBehind(all ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.behind = all
}

// registered reports whether a model was published as registered.
func (b *board) registered(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.names[key(id)]
}

// StillSending returns no extproc.
func (b *board) StillSending([]string) []string { return nil }

// AwaitRegistered records the model and returns at once.
func (b *board) AwaitRegistered(key decide.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.awaited = append(b.awaited, key)
}

func (b *board) Ready() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = true
}

func (b *board) isReady() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready
}

// goes returns where the requests of a VModel go, such as "a, 10 % to b".
func (b *board) goes(vmodel string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	to := b.vmodels[key(vmodel)]
	if to.Canary != "" {
		return fmt.Sprintf("%s, %d %% to %s", to.Active, to.Percent, to.Canary)
	}
	return to.Active
}

// seen returns the published addresses of endpoints.
func (b *board) seen() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.endpoints)
}

type noMeter struct{}

func (noMeter) LoadCalled(time.Duration, time.Duration)   {}
func (noMeter) LoadEnded(time.Duration, bool)             {}
func (noMeter) UnloadEnded(time.Duration, bool)           {}
func (noMeter) Evicted()                                  {}
func (noMeter) Decided(decide.ActionKind, decide.Purpose) {}
func (noMeter) CannotLoad(decide.Reason)                  {}

// newWorld starts a Placer without objects.
func newWorld(t *testing.T) *world { return newRecordedWorld(t, nil) }

// newRecordedWorld starts a Placer. The recorder told records what the Placer stores; nil records
// nothing.
func newRecordedWorld(t *testing.T, told *recorder) *world {
	t.Helper()
	w := &world{T: t, file: filepath.Join(t.TempDir(), "control.db"), told: told}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *world) start() {
	w.Helper()
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	file, err := store.Open(w.file, log)
	if err != nil {
		w.Fatal(err)
	}
	w.board = &board{vmodels: make(map[decide.Key]decide.Switch), names: make(map[decide.Key]bool)}
	remembers := store.Memory(file)
	if w.told != nil {
		w.told.Memory = file
		remembers = w.told
	}
	p, err := place.New(place.Config{
		Memory: remembers, Log: log, Publisher: w.board, Meter: noMeter{},
		ScrapeInterval: cmp.Or(w.scrape, 20*time.Millisecond), ObserveInterval: 20 * time.Millisecond,
		TickInterval: w.tick, RegisteredPool: pool, Access: engineclient.Access{Tokens: w.tokens},
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Placer, w.board.placer = p, p
	ctx, cancel := context.WithCancel(context.Background())
	begun, over := make(chan struct{}), make(chan error, 1)
	go func() { over <- p.Run(ctx, func() { close(begun) }) }()
	<-begun
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			w.Error(err)
		}
		if err := file.Close(); err != nil {
			w.Error(err)
		}
	})
}

// restart stops the Placer, and starts another one with its records.
func (w *world) restart() {
	w.Helper()
	w.stop()
	w.start()
	w.SetWorld(w.world)
}

// set applies objects given as YAML. It adds a pool p that selects the lists with the label app: p.
func (w *world) set(yaml ...string) {
	w.Helper()
	w.world = w.build(yaml...)
	w.SetWorld(w.world)
}

// build returns the World of objects given as YAML, with the pool p.
func (w *world) build(yaml ...string) *objects.World {
	w.Helper()
	folder := w.TempDir()
	all := append([]string{"apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\nspec: {selector: {matchLabels: {app: p}}, targetPorts: [{number: 8000}]}\n"},
		yaml...)
	if err := os.WriteFile(filepath.Join(folder, "objects.yaml"), []byte(strings.Join(all, "---\n")), 0o644); err != nil {
		w.Fatal(err)
	}
	set, err := dir.Read(folder, kinds.All())
	if err != nil {
		w.Fatal(err)
	}
	world := objects.Build(set)
	for _, p := range world.Problems {
		w.Error(p)
	}
	return world
}

// list returns the YAML of an EndpointList with one engine; more is appended to its spec.
func list(address string, more string) string {
	return fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: %s, labels: {app: p}}\nspec: {addresses: ['%s']%s}\n",
		"at-"+strings.NewReplacer(".", "-", ":", "-").Replace(address), address, more)
}

func managed(at string) string { return ", engine: modelruntime, management: '" + at + "'" }

func object(id, more string) string {
	return fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: Model\nmetadata: {name: '%s'}\nspec: {poolRef: {name: p}%s}\n",
		id, more)
}

func settings(placement string) string {
	return "apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: p}\nspec: {poolRef: {name: p}, placement: {" +
		placement + "}}\n"
}

// await waits until holds returns true.
func (w *world) await(what string, holds func() bool) {
	w.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(20 * time.Second); !holds(); {
		select {
		case <-tick.C:
		case <-limit:
			w.Fatalf("it does not come that %s; the models are\n%+v", what, w.Statuses())
		}
	}
}

// copies returns the copies of a model with their states, as "ADDRESS loaded, ADDRESS loading".
func (w *world) copies(id string) string {
	var all []string
	for _, st := range w.Statuses() {
		if st.ID == id {
			for _, c := range st.Copies {
				all = append(all, c.Endpoint+" "+c.State.String())
			}
		}
	}
	return strings.Join(all, ", ")
}

func (w *world) awaitCopies(id, want string) {
	w.Helper()
	w.await(fmt.Sprintf("%s is at %q", id, want), func() bool { return w.copies(id) == want })
}

// log is an in-memory log of an engine's events, or of text.
type log struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// events returns the calls to an engine as "EVENT MODEL", in order.
func (l *log) events() (all []string) {
	for _, e := range l.all() {
		all = append(all, strings.TrimSpace(e.Event+" "+e.Model))
	}
	return all
}

func (l *log) all() (all []llm.Event) {
	for line := range strings.Lines(l.String()) {
		var e llm.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			panic(err)
		}
		all = append(all, e)
	}
	return all
}

func (l *log) count(event string) int {
	return len(slices.DeleteFunc(l.events(), func(e string) bool { return e != event }))
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve runs an engine until the test ends.
func serve(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// vllm is a simulated vLLM.
type vllm struct {
	*log
	address string
	stop    func()
	over    <-chan struct{} // closed when the vLLM has ended
}

func serveVLLM(t *testing.T) vllm { return serveVLLMThat(t, 10*time.Millisecond, 0) }

// awaitLogged waits until the Placer's log contains these words.
func (w *world) awaitLogged(words string) {
	w.Helper()
	w.await("the log has "+words, func() bool { return strings.Contains(w.log.String(), words) })
}

// serveVLLMThat serves a vLLM whose loads take the given time. While the vLLM is stopping, it still
// answers for the given delay.
func serveVLLMThat(t *testing.T, load, delay time.Duration) vllm {
	t.Helper()
	return serveSimulated(t, load, llm.Config{ShutdownTimeout: delay + time.Second, ShutdownDelay: delay})
}

// serveVLLMOfRank serves a vLLM that loads adapters up to this rank.
func serveVLLMOfRank(t *testing.T, rank int) vllm {
	t.Helper()
	return serveSimulated(t, 10*time.Millisecond, llm.Config{MaxLoRARank: rank})
}

func serveSimulated(t *testing.T, load time.Duration, c llm.Config) vllm {
	t.Helper()
	l, events := listen(t, "tcp", "127.0.0.1:0"), &log{}
	p := llm.DefaultProfile()
	p.AdapterLoad.Mean, p.AdapterLoad.StdDev = load.Seconds(), 0
	c.Profile, c.Listener, c.Events = p, l, llm.NewEvents(events, l.Addr().String())
	s, err := llm.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		s.Kill()
		<-over
	})
	return vllm{events, l.Addr().String(), cancel, over}
}

// serveHanging serves a vLLM that never answers calls to these paths about the model "hangs". It
// counts these calls in hung.
func serveHanging(t *testing.T, paths ...string) (v vllm, hung *atomic.Int64) {
	t.Helper()
	v, hung = serveVLLM(t), new(atomic.Int64)
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: v.address})
	l := listen(t, "tcp", "127.0.0.1:0")
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if slices.Contains(paths, r.URL.Path) && strings.Contains(string(body), `"hangs"`) {
			hung.Add(1)
			<-r.Context().Done()
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		to.ServeHTTP(w, r)
	})}
	serve(t, func(ctx context.Context) error {
		context.AfterFunc(ctx, func() { _ = s.Close() })
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	v.address = l.Addr().String()
	return v, hung
}

// tell sends a call to an engine, as an operator would.
func (v vllm) tell(t *testing.T, path, body string) {
	t.Helper()
	response, err := http.Post("http://"+v.address+path, "application/json", strings.NewReader(body)) //nolint:noctx // one call
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, response.Status)
	}
}

// modelRuntime is a simulated model runtime with 1 GiB, models of 50 MiB, and six concurrent loads.
type modelRuntime struct {
	*log
	*runtime.Runtime
	address, management string
}

// serveRuntime serves a runtime that is managed at a socket, or over TCP if socket is empty.
func serveRuntime(t *testing.T, socket string, change func(*runtime.Config)) modelRuntime {
	t.Helper()
	data, events := listen(t, "tcp", "127.0.0.1:0"), &log{}
	c := runtime.Config{
		Capacity: 1 << 30, DefaultSize: 50 << 20, LoadingThreads: 6, LoadTimeout: time.Minute,
		Events: llm.NewEvents(events, data.Addr().String()),
	}
	if change != nil {
		change(&c)
	}
	m := modelRuntime{events, runtime.New(c), data.Addr().String(), "unix:" + socket}
	var management net.Listener
	if socket != "" {
		management = listen(t, "unix", socket)
	} else {
		management = listen(t, "tcp", "127.0.0.1:0")
		_, port, _ := net.SplitHostPort(management.Addr().String())
		m.management = "port:" + port
	}
	serve(t, func(ctx context.Context) error { return runtime.Serve(ctx, m.Runtime, data, management) })
	return m
}
