package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// trouble is a fault that the script causes. It lasts until everything has recovered.
type trouble struct {
	what, endpoint string // endpoint is empty for faults of extproc and of objects
	from, to       time.Time
}

// aftermath is how long the effects of a fault may last after its end: responses are in flight, and
// connections must be reopened.
const aftermath = time.Second

// book records the faults. It is safe for concurrent use.
type book struct {
	mu  sync.Mutex
	all []*trouble
}

// begin records a fault that lasts until over is called.
func (b *book) begin(what, endpoint string) (over func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &trouble{what: what, endpoint: endpoint, from: time.Now()}
	b.all = append(b.all, t)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		t.to = time.Now()
	}
}

// during reports whether one of the faults in what affected an endpoint at any time between from
// and to. An empty endpoint matches every endpoint, and an empty what matches every fault.
func (b *book) during(from, to time.Time, endpoint string, what ...string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.all, func(t *trouble) bool {
		return (endpoint == "" || t.endpoint == endpoint) && (len(what) == 0 || slices.Contains(what, t.what)) &&
			t.from.Before(to) && (t.to.IsZero() || t.to.Add(aftermath).After(from))
	})
}

func (b *book) counts() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := make(map[string]int)
	for _, t := range b.all {
		n[t.what]++
	}
	return n
}

// until waits until a condition holds. If it does not hold in time, the test fails.
func (s *soak) until(what string, holds func() bool) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(soakPatience); !holds(); {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Errorf("the script waits in vain until %s", what)
			return
		}
	}
}

// is reports whether a metric has a value. It returns false if the program does not answer.
func (s *soak) is(want float64, address, metric string, labels ...string) bool {
	n, err := s.value(address, metric, labels...)
	return err == nil && n == want
}

// inTurns calls all steps again and again until ctx ends, each time in a new random order.
func inTurns(ctx context.Context, draws *rand.Rand, steps []func()) {
	for ctx.Err() == nil {
		for _, i := range draws.Perm(len(steps)) {
			if ctx.Err() == nil {
				steps[i]()
			}
		}
	}
}

// engineLane causes faults at some engines, one after the other, until ctx ends.
func (s *soak) engineLane(ctx context.Context, lane uint64, engines ...int) {
	draws := rand.New(rand.NewPCG(s.seed, 1000+lane))
	between := func(least, most time.Duration) time.Duration { return least + rand64(draws, most-least) }
	troubled := func(what string, suffer func(address string)) func() {
		return func() {
			address := s.endpoint(engines[draws.IntN(len(engines))])
			over := s.book.begin(what, address)
			suffer(address)
			s.until("the engine that was "+what+" is healthy", func() bool {
				return s.is(1, s.Metrics, "headgate_endpoint_state", "endpoint", address, "state", "healthy")
			})
			over()
			pause(ctx, between(0, time.Second))
		}
	}
	freeze := func(address string, d time.Duration) {
		s.process(address, syscall.SIGSTOP)
		<-time.After(d)
		s.process(address, syscall.SIGCONT)
	}
	// impaired runs an engine with the flag --fault for a duration.
	impaired := func(address string, d time.Duration, fault string) {
		s.stopEngine(address)
		s.startEngine(address, "--fault", fault)
		pause(ctx, d)
		s.stopEngine(address)
		s.startEngine(address)
	}
	inTurns(ctx, draws, []func(){
		troubled("killed", func(address string) {
			s.rigging.Lock()
			engine := s.Engines[address]
			s.rigging.Unlock()
			engine.Kill()
			pause(ctx, between(0, 2*time.Second))
			s.startEngine(address)
		}),
		troubled("stopped", func(address string) {
			s.stopEngine(address)
			s.startEngine(address)
		}),
		troubled("hung", func(address string) { freeze(address, between(time.Second, 4*time.Second)) }),
		troubled("hung for long", func(address string) { freeze(address, soakSilence+between(time.Second, 2*time.Second)) }),
		troubled("slow", func(address string) { impaired(address, 4*time.Second, "latency=400ms@0.5") }),
		troubled("errors", func(address string) { impaired(address, 4*time.Second, "status=500@0.3") }),
	})
}

// rand64 returns a random duration below a limit.
func rand64(draws *rand.Rand, below time.Duration) time.Duration {
	return time.Duration(draws.Int64N(int64(below)))
}

func (s *soak) process(address string, signal os.Signal) {
	s.rigging.Lock()
	defer s.rigging.Unlock()
	s.Engines[address].Signal(signal)
}

// stopEngine tells an engine to stop. It waits until the engine has finished its requests and
// ended.
func (s *soak) stopEngine(address string) {
	s.rigging.Lock()
	engine := s.Engines[address]
	s.rigging.Unlock()
	engine.Signal(syscall.SIGTERM)
	select {
	case <-engine.Done():
	case <-time.After(soakPatience):
		s.t.Errorf("an engine that was asked to stop goes on")
		engine.Kill()
	}
}

func (s *soak) startEngine(address string, flags ...string) {
	s.rigging.Lock()
	defer s.rigging.Unlock()
	usual := s.EngineFlags
	defer func() { s.EngineFlags = usual }()
	s.EngineFlags = slices.Concat(usual, flags)
	if err := s.StartEngine(s.t.Context(), address); err != nil {
		s.t.Error(err)
	}
}

// restartExtproc restarts extproc again and again during the first two fifths of the soak, at least
// twice. It returns when the last extproc started.
func (s *soak) restartExtproc(ctx context.Context) time.Time {
	interval := min(max(s.length/8, 5*time.Second), 20*time.Second)
	for n := 0; ; n++ {
		if time.Since(s.began)+interval > s.length*2/5 && n >= 2 {
			return time.Now()
		}
		pause(ctx, interval)
		what, signal := "extproc stopped", syscall.SIGTERM
		if n%2 == 1 {
			what, signal = "extproc killed", syscall.SIGKILL
		}
		s.invalid.Lock()
		over := s.book.begin(what, "")
		s.rigging.Lock()
		s.Extproc.Signal(signal)
		<-s.Extproc.Done()
		if err := s.StartExtproc(s.t.Context()); err != nil {
			s.t.Error(err)
		}
		s.rigging.Unlock()
		s.invalid.Unlock()
		s.until("requests are answered again", func() bool { return s.status("a01") == http.StatusOK })
		over()
	}
}

// status requests one token from a model and returns the status of the response.
func (s *soak) status(model string) int {
	a, err := s.ask(s.t.Context(), completion(model, 1, false))
	if err != nil {
		return 0
	}
	return a.status
}

// objectLane edits objects, one after the other, and restores each until ctx ends.
func (s *soak) objectLane(ctx context.Context) {
	draws := rand.New(rand.NewPCG(s.seed, 2000))
	net := strings.TrimSuffix(s.Listen, "1:8080")
	edited := func(what string, there func() bool, file, text string, gone func() bool) func() {
		return func() {
			over := s.book.begin(what, "")
			was, err := os.ReadFile(filepath.Join(s.objects, file))
			s.edit(file, []byte(text))
			s.until(what+" is in force", there)
			pause(ctx, rand64(draws, 2*time.Second))
			if err != nil {
				was = nil // the file did not exist
			}
			s.edit(file, was)
			s.until(what+" is so no more", gone)
			over()
			pause(ctx, rand64(draws, time.Second))
		}
	}
	refused := func(n float64) func() bool {
		return func() bool { return s.is(n, s.Metrics, "headgate_objects_rejected_files") }
	}
	answered := func(status int) func() bool { return func() bool { return s.status("newcomer") == status } }
	invalid := edited("a file that is invalid", refused(1), "invalid.yaml", routes("x")+"  priority: high\n", refused(0))
	pod := fmt.Sprintf("status: {podIP: %s14}", net)
	unready := strings.Replace(engines(net, 4), pod, strings.TrimSuffix(pod, "}")+", conditions: [{type: Ready, status: 'False'}]}", 1)
	state := func(n int, want float64) func() bool {
		return func() bool {
			return s.is(want, s.Metrics, "headgate_endpoint_state", "endpoint", s.endpoint(n), "state", "out")
		}
	}
	var tokens float64
	inTurns(ctx, draws, []func(){
		edited("a new route", answered(http.StatusOK), "newcomer.yaml",
			strings.Replace(routes("a01"), "name: a01}\nspec:", "name: newcomer}\nspec:\n  modelNames: [newcomer]", 1),
			answered(http.StatusNotFound)),
		func() {
			s.invalid.Lock()
			defer s.invalid.Unlock()
			invalid()
		},
		edited("settings of the pool", s.serves(draws), "settings.yaml",
			"apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: soak}\nspec: {poolRef: {name: pool}, policy: leastRequest, retry: {attempts: 1}, timeouts: {request: 20s, staleAfter: 2s}}\n",
			s.serves(draws)),
		edited("a pod that is not ready", state(4, 1), "engines.yaml", unready, state(4, 0)),
		edited("a list of endpoints", func() bool {
			n, err := s.value(s.endpoint(5), "vllm:generation_tokens_total")
			if tokens == 0 {
				tokens = n
			}
			return err == nil && n > tokens // ignores records of earlier rounds
		}, "list.yaml",
			fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: list, labels: {app: llama}}\nspec: {addresses: ['%s']}\n",
				s.endpoint(5)),
			func() bool { tokens = 0; return true }),
	})
}

// serves returns a condition that holds when a request has been answered.
func (s *soak) serves(draws *rand.Rand) func() bool {
	return func() bool { return s.status(adapters[draws.IntN(len(adapters))]) == http.StatusOK }
}

// edit replaces a file atomically, or removes the file if text is nil.
func (s *soak) edit(file string, text []byte) {
	path := filepath.Join(s.objects, file)
	if text == nil {
		if err := os.Remove(path); err != nil {
			s.t.Error(err)
		}
		return
	}
	if err := os.WriteFile(path+".new", text, 0o644); err != nil {
		s.t.Error(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.t.Error(err)
	}
}
