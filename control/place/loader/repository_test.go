package loader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/headgate/simulated/repository"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// repositoryEngine is an engine with a model repository, simulated or real. Its methods are what a
// test does to the engine without the driver.
type repositoryEngine interface {
	endpoint() Endpoint
	access() engineclient.Access
	// put puts a model into the repository.
	put(name string, m repository.Model)
	// loads returns how often the engine began to load a model since its start.
	loads(name string) int
	// kill ends the engine at once; start starts it again.
	kill()
	start()
}

// scene is one run of a scenario.
type scene struct {
	*testing.T
	repositoryEngine
	kind   engine.Kind
	loader *Loader
}

// within returns a context with a timeout.
func (p *scene) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(p.Context(), d)
	p.Cleanup(cancel)
	return ctx
}

// archive returns the source of a model at TorchServe. At other engines, the source is a folder.
func archive(name string) string { return name + ".mar" }

// model returns a model in the form that the Loader receives.
func (p *scene) model(name string) Model {
	m := Model{ID: name, Source: "/models/" + name}
	if p.kind == engine.TorchServe {
		m.Source = archive(name)
	}
	return m
}

// loadIn loads a model with a timeout.
func (p *scene) loadIn(name string, d time.Duration) *Error {
	_, err := p.loader.driver.Load(p.within(d), p.model(name))
	return faultOf(err)
}

func (p *scene) unloadIn(name string, d time.Duration) *Error {
	return faultOf(p.loader.driver.Unload(p.within(d), name))
}

// must loads a model, and ends the test if the load fails.
func (p *scene) must(name string) {
	p.Helper()
	if err := p.loadIn(name, time.Minute); err != nil {
		p.Fatalf("a load of %s: %v: %s", name, err.Outcome, err.Message)
	}
}

// want checks an error: its outcome, and a part of its message; an empty message means no error.
func (p *scene) want(what string, err *Error, outcome Outcome, words string) {
	p.Helper()
	if err == nil || err.Outcome != outcome || !strings.Contains(err.Message, words) {
		p.Errorf("%s: %+v, want %v: %q", what, err, outcome, words)
	}
}

func (p *scene) done(what string, err *Error) {
	p.Helper()
	if err != nil {
		p.Errorf("%s: %v: %s", what, err.Outcome, err.Message)
	}
}

// look scrapes the engine. It checks that the first list of models is listed as ready, and that the
// other models are not listed.
func (p *scene) look(r Record, listed []string, not ...string) ScrapeResult {
	p.Helper()
	seen, err := p.loader.Scrape(p.within(time.Minute), r)
	if err != nil || !seen.Lists || !seen.Takes || seen.Limits.Loads == 0 {
		p.Fatalf("a look: %+v, %v", seen, err)
	}
	ready := make(map[string]bool)
	for _, m := range seen.Models {
		ready[m.ID] = m.State == Ready
	}
	for _, name := range listed {
		if !ready[name] {
			p.Errorf("%s is not listed as ready: %v", name, seen.Models)
		}
	}
	for _, name := range not {
		if _, there := ready[name]; there {
			p.Errorf("%s is listed: %v", name, seen.Models)
		}
	}
	return seen
}

// loaded checks how often the load of a model began.
func (p *scene) loaded(name string, n int) {
	p.Helper()
	if got := p.loads(name); got != n {
		p.Errorf("the engine loaded %s %d times, want %d", name, got, n)
	}
}

// behind makes a call to the engine without the driver.
func (p *scene) behind(c engine.RepositoryCall, name string) {
	p.Helper()
	e := p.endpoint()
	if e.Kind == engine.TorchServe {
		d := openTorchServe(e, p.access())
		defer d.Close()
		method, path := http.MethodPost, engine.TorchRegister(name, archive(name))
		if c == engine.UnloadCall {
			method, path = http.MethodDelete, engine.TorchModel(name)
		}
		if said, err := d.call(p.within(time.Minute), method, path); err != nil ||
			engine.ReadTorchAnswer(said.status, said.body) != engine.Done {
			p.Fatalf("%s %s: %v, %v", method, path, said.answer, err)
		}
		limited := p.within(time.Minute)
		for now, err := d.describe(limited, name); err == nil && now.Stage == engine.Coming; now, err = d.describe(limited, name) {
			time.Sleep(minPoll)
		}
		return
	}
	d, err := openRepository(e, p.access())
	if err != nil {
		p.Fatal(err)
	}
	defer d.Close()
	if said, err := d.api.about(p.within(time.Minute), c, name); err != nil || said.status != http.StatusOK {
		p.Fatalf("%s of %s: %v, %v", c, name, said.answer, err)
	}
}

const (
	slowly = 3 * time.Second // duration of a load that outlives its caller
	late   = time.Second
)

var afresh = Record{Stale: true}

// repositoryScenarios test the driver together with an engine that has a model repository. With the
// build tag real, they run with real engines, to check that the simulated ones behave like them.
//
// They fail if a model is loaded twice, a restart goes unnoticed, an unload ends before the memory
// is free, or an answer is misread.
var repositoryScenarios = []struct {
	name string
	of   []engine.Kind
	run  func(p *scene)
}{
	{"a model is loaded, once, and listed", all, func(p *scene) {
		p.put("first", repository.Model{})
		p.look(Record{}, nil, "first")
		p.must("first")
		p.look(Record{}, []string{"first"})
		p.must("first")
		p.loaded("first", 1)
	}},
	{"a model that the repository has not", only(engine.MLServer, engine.Triton, engine.TorchServe), func(p *scene) {
		err := p.loadIn("unknown", time.Minute)
		p.want("a load", err, Refused, "unknown")
		if err != nil && err.Fault != engine.FilesMissing {
			p.Errorf("the fault is %v", err.Fault)
		}
		p.done("an unload", p.unloadIn("unknown", time.Minute))
	}},
	{"a model that cannot be loaded", all, func(p *scene) {
		p.put("corrupt", repository.Model{Fail: "no weights"})
		p.want("a load", p.loadIn("corrupt", time.Minute), Refused, "")
		p.want("a load again", p.loadIn("corrupt", time.Minute), Refused, "")
		p.look(Record{}, nil, "corrupt")
		p.done("an unload", p.unloadIn("corrupt", time.Minute))
		p.want("the same by the Loader", faultOf(second(p.loader.Load(p.within(time.Minute), p.model("corrupt"), time.Minute))),
			Refused, "")
		p.put("corrupt", repository.Model{})
		p.must("corrupt")
	}},
	{"a model without its files", only(engine.MLServer), func(p *scene) {
		p.put("fileless", repository.Model{Fileless: true})
		err := p.loadIn("fileless", time.Minute)
		p.want("a load", err, Refused, "Invalid URI")
		if err != nil && err.Fault != engine.FilesMissing {
			p.Errorf("the fault is %v", err.Fault)
		}
	}},
	{"a model is unloaded, and what is not there is unloaded", all, func(p *scene) {
		p.put("leaves", repository.Model{})
		p.must("leaves")
		p.done("an unload", p.unloadIn("leaves", time.Minute))
		p.look(Record{}, nil, "leaves")
		p.done("an unload again", p.unloadIn("leaves", time.Minute))
		p.must("leaves")
		p.loaded("leaves", 2)
		p.look(Record{}, []string{"leaves"})
	}},
	{"the memory is free when an unload has ended", only(engine.MLServer, engine.Triton, engine.TFServing), func(p *scene) {
		p.put("lingers", repository.Model{Unload: slowly})
		p.must("lingers")
		began := time.Now()
		p.done("an unload", p.unloadIn("lingers", time.Minute))
		if took := time.Since(began); took < slowly {
			p.Errorf("it took %v", took)
		}
		p.look(Record{}, nil, "lingers")
	}},
	{
		"an unload that takes too long is unclear, and is waited for the next time", only(engine.MLServer, engine.Triton, engine.TFServing),
		func(p *scene) {
			p.put("stays", repository.Model{Unload: slowly})
			p.must("stays")
			p.want("an unload", p.unloadIn("stays", late), Unclear, "")
			time.Sleep(slowly)
			p.done("an unload again", p.unloadIn("stays", time.Minute))
			p.look(Record{}, nil, "stays")
		},
	},
	{"a load waits for the end of an unload", only(engine.Triton, engine.TFServing), func(p *scene) { // MLServer answers after the unload
		p.put("returns", repository.Model{Unload: slowly})
		p.must("returns")
		p.want("an unload", p.unloadIn("returns", late), Unclear, "")
		began := time.Now()
		p.must("returns")
		if took := time.Since(began); took < slowly-2*late {
			p.Errorf("it took %v", took)
		}
		p.loaded("returns", 2)
	}},
	{"a load that outlives its caller is taken up", all, func(p *scene) {
		p.put("outlives", repository.Model{Load: slowly})
		p.want("a load", p.loadIn("outlives", late), Unclear, "")
		p.look(Record{}, nil)
		p.must("outlives")
		p.loaded("outlives", 1)
		p.look(Record{}, []string{"outlives"})
	}},
	// MLServer's index does not report why a load failed.
	{"a load that outlives its caller, and fails", only(engine.Triton, engine.TFServing), func(p *scene) {
		p.put("fails", repository.Model{Load: slowly, Fail: "no weights"})
		p.want("a load", p.loadIn("fails", late), Unclear, "")
		p.want("a load that takes it up", p.loadIn("fails", time.Minute), Refused, "no weights")
		p.loaded("fails", 1)
	}},
	{"a load that outlives two callers", all, func(p *scene) {
		p.put("long", repository.Model{Load: slowly})
		p.want("a load", p.loadIn("long", late), Unclear, "")
		p.want("another one", p.loadIn("long", late/2), Unclear, "")
		p.must("long")
		p.loaded("long", 1)
	}},
	{"a model is unloaded during its load", only(engine.MLServer, engine.Triton, engine.TFServing), func(p *scene) {
		p.put("unwanted", repository.Model{Load: slowly})
		p.want("a load", p.loadIn("unwanted", late), Unclear, "")
		p.want("an unload that takes too long", p.unloadIn("unwanted", late/2), Unclear, "still loading")
		p.done("an unload", p.unloadIn("unwanted", time.Minute))
		p.look(Record{}, nil, "unwanted")
		p.loaded("unwanted", 1)
	}},
	{"the Loader leaves nothing of a load that takes too long", all, func(p *scene) {
		p.put("late", repository.Model{Load: slowly})
		p.want("a load", faultOf(second(p.loader.Load(p.within(time.Minute), p.model("late"), late))), Refused, "")
		p.look(Record{}, nil, "late")
		p.loaded("late", 1)
	}},
	{"a load whose process ends is made up for by the next one", only(engine.MLServer, engine.Triton), func(p *scene) {
		p.put("left", repository.Model{Load: slowly})
		p.put("other", repository.Model{})
		var over sync.WaitGroup
		over.Go(func() { _ = p.loadIn("left", time.Minute) })
		time.Sleep(late)
		if err := p.loader.Close(); err != nil {
			p.Error(err)
		}
		over.Wait()
		time.Sleep(slowly)
		l, err := Open(p.endpoint(), p.access(), nil)
		if err != nil {
			p.Fatal(err)
		}
		defer l.Close()
		p.loader = l
		p.look(Record{}, nil, "other")
		p.must("left")
		p.look(Record{}, []string{"left"}, "other")
		p.done("an unload", p.unloadIn("left", time.Minute))
		p.look(Record{}, nil, "left", "other")
	}},
	{"names that no model in a repository has", all, func(p *scene) {
		for _, name := range []string{"org/m", "..", ".", "a/../b", "/m"} {
			p.want("a load of "+name, p.loadIn(name, time.Minute), Refused, "is called")
			p.done("an unload of "+name, p.unloadIn(name, time.Minute))
		}
		p.loaded("..", 0)
	}},
	{"names that a path must be made of", all, func(p *scene) {
		for _, name := range []string{"a%2Fb", "m+1", "v1.0~rc"} {
			p.put(name, repository.Model{})
			p.must(name)
			p.look(Record{}, []string{name})
			p.loaded(name, 1)
			p.done("an unload", p.unloadIn(name, time.Minute))
		}
	}},
	{"what others do is seen when something came of it", only(engine.MLServer, engine.Triton, engine.TorchServe), func(p *scene) {
		p.put("kept", repository.Model{})
		p.put("theirs", repository.Model{})
		p.must("kept")
		p.look(Record{}, []string{"kept"}, "theirs")
		p.behind(engine.LoadCall, "theirs")
		p.look(afresh, []string{"kept", "theirs"})
		p.behind(engine.UnloadCall, "theirs")
		time.Sleep(2 * time.Second)
		if p.look(afresh, []string{"kept"}, "theirs").Purged {
			p.Error("the engine is taken to have begun anew")
		}
	}},
	{"an engine that begins anew has nothing, and is seen to", all, func(p *scene) {
		for _, name := range []string{"one", "two"} {
			p.put(name, repository.Model{})
			p.must(name)
		}
		for range 2 {
			if p.look(Record{}, []string{"one", "two"}).Purged {
				p.Error("it is taken to have begun anew before it has")
			}
		}
		p.kill()
		p.start()
		if !p.look(Record{}, nil, "one", "two").Purged {
			p.Error("it is not seen to have begun anew")
		}
		if p.look(Record{}, nil, "one", "two").Purged {
			p.Error("it is seen to have begun anew twice")
		}
		p.must("one")
		p.loaded("one", 1)
		if p.look(Record{}, []string{"one"}, "two").Purged {
			p.Error("it is seen to have begun anew after a load")
		}
	}},
	{"an engine that begins anew after its first load", all, func(p *scene) {
		p.put("only", repository.Model{})
		p.look(Record{}, nil, "only")
		p.must("only")
		p.kill()
		p.start()
		if !p.look(Record{}, nil, "only").Purged {
			p.Error("it is not seen to have begun anew")
		}
	}},
	{"an engine that begins anew during a load", all, func(p *scene) {
		p.put("had", repository.Model{})
		p.put("during", repository.Model{Load: slowly})
		p.must("had")
		p.look(Record{}, []string{"had"})
		var over sync.WaitGroup
		over.Go(func() {
			p.want("a load", p.loadIn("during", time.Minute), Unclear, "")
		})
		time.Sleep(late)
		p.kill()
		over.Wait()
		p.start()
		p.must("during")
		if !p.look(Record{}, []string{"during"}, "had").Purged {
			p.Error("it is not seen to have begun anew")
		}
	}},
	{"a model without a process gets one", only(engine.TorchServe), func(p *scene) {
		p.put("idle", repository.Model{})
		p.register("idle")
		p.look(afresh, nil, "idle")
		p.must("idle")
		p.loaded("idle", 1)
		p.look(Record{}, []string{"idle"})
	}},
	{"an unload ends a load", only(engine.TorchServe), func(p *scene) {
		p.put("unwanted", repository.Model{Load: slowly})
		p.want("a load", p.loadIn("unwanted", late), Unclear, "still loading")
		began := time.Now()
		p.done("an unload", p.unloadIn("unwanted", time.Minute))
		if took := time.Since(began); took > late {
			p.Errorf("it took %v", took)
		}
		time.Sleep(slowly)
		p.look(Record{}, nil, "unwanted")
	}},
	{"a model that fails is not started for ever", only(engine.TorchServe), func(p *scene) {
		p.put("crashes", repository.Model{Fail: "no weights"})
		p.want("a load", p.loadIn("crashes", time.Minute), Refused, "log says why")
		n := p.loads("crashes")
		time.Sleep(3 * slowly)
		p.loaded("crashes", n)
	}},
	{"a load of somebody else that fails is taken up", only(engine.TorchServe), func(p *scene) {
		p.put("theirs", repository.Model{Fail: "no weights"})
		p.register("theirs")
		d := openTorchServe(p.endpoint(), p.access())
		defer d.Close()
		_, _ = d.call(p.within(time.Minute), http.MethodPut, engine.TorchScale("theirs"))
		p.want("a load", p.loadIn("theirs", time.Minute), Refused, "log says why")
		p.look(Record{}, nil, "theirs")
	}},
	{"an engine that takes no connection", all, func(p *scene) {
		p.put("m", repository.Model{})
		p.kill()
		// This call may still begin on the broken connection, so it is unclear whether it reached
		// the engine.
		if _, err := p.loader.Scrape(p.within(time.Minute), Record{}); err == nil {
			p.Error("a look at an engine that is gone finds something")
		}
		p.want("a load", p.loadIn("m", time.Minute), Unreached, "")
		p.want("an unload", p.unloadIn("m", time.Minute), Unreached, "")
		p.start()
		p.must("m")
	}},
}

// all are the kinds with a model repository.
var all = append(only(engine.TorchServe, engine.TFServing), v2Kinds...)

func only(kinds ...engine.Kind) []engine.Kind { return kinds }

// register registers a model at a TorchServe without a process to serve it.
func (p *scene) register(name string) {
	p.Helper()
	d := openTorchServe(p.endpoint(), p.access())
	defer d.Close()
	if said, err := d.call(p.within(time.Minute), http.MethodPost, "/models?url="+archive(name)+"&model_name="+name); err != nil ||
		said.status != http.StatusOK {
		p.Fatalf("%v, %v", said.answer, err)
	}
}

func second(_ Loaded, err error) error { return err }

// perform runs all scenarios for each kind. The function shelf makes the engine of a scenario. The
// function in runs the scenario, for example in a synctest bubble.
func perform(t *testing.T, shelf func(t *testing.T, kind engine.Kind) repositoryEngine, kinds []engine.Kind,
	in func(t *testing.T, run func(t *testing.T)),
) {
	for _, kind := range kinds {
		for _, c := range repositoryScenarios {
			if !slices.Contains(c.of, kind) {
				continue
			}
			t.Run(string(kind)+"/"+c.name, func(t *testing.T) {
				in(t, func(t *testing.T) {
					s := shelf(t, kind)
					l, err := Open(s.endpoint(), s.access(), nil)
					if err != nil {
						t.Fatal(err)
					}
					defer l.Close()
					p := &scene{T: t, repositoryEngine: s, kind: kind, loader: l}
					if kind.Recalled() { // the first load needs an earlier scrape
						p.look(Record{}, nil)
					}
					c.run(p)
				})
			})
		}
	}
}

var v2Kinds = []engine.Kind{engine.MLServer, engine.Triton}

func TestRepositories(t *testing.T) {
	perform(t, newSimulatedEngine, all, func(t *testing.T, run func(t *testing.T)) {
		synctest.Test(t, run)
	})
}

// The same holds for a model repository whose gRPC port alone is open.
func TestRepositoriesOverGRPC(t *testing.T) {
	perform(t, newGRPCEngine, v2Kinds, func(t *testing.T, run func(t *testing.T)) {
		synctest.Test(t, run)
	})
}

func newGRPCEngine(t *testing.T, kind engine.Kind) repositoryEngine {
	s := &simulatedEngine{t: t, kind: kind, grpc: true, models: map[string]repository.Model{}}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// simulatedEngine is a simulated engine in memory.
type simulatedEngine struct {
	t      *testing.T
	kind   engine.Kind
	at     site
	models map[string]repository.Model
	server *repository.Server
	fixed  bool
	grpc   bool // the model repository is called over gRPC
	end    func()

	mu     sync.Mutex // guards events
	events bytes.Buffer
}

func newSimulatedEngine(t *testing.T, kind engine.Kind) repositoryEngine {
	s := &simulatedEngine{t: t, kind: kind, models: map[string]repository.Model{}}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *simulatedEngine) endpoint() Endpoint {
	e := Endpoint{Address: address, Kind: s.kind, RepositoryOverGRPC: s.grpc}
	if s.kind == engine.TorchServe {
		e.Management = address
	}
	return e
}

func (s *simulatedEngine) access() engineclient.Access { return engineclient.Access{Dial: s.at.dial} }

func (s *simulatedEngine) put(name string, m repository.Model) {
	s.models[name] = m
	s.server.Put(name, m)
}

func (s *simulatedEngine) start() {
	s.server = repository.New(repository.Config{Kind: s.kind, Models: s.models, Fixed: s.fixed, Events: llm.NewEvents(s, "")})
	s.mu.Lock()
	s.events.Reset()
	s.mu.Unlock()
	listener := s.at.listen()
	ctx, cancel := context.WithCancel(context.Background())
	var over sync.WaitGroup
	server, serve := s.server, repository.Serve
	if s.grpc {
		serve = repository.ServeGRPC
	}
	over.Go(func() { _ = serve(ctx, server, listener) })
	s.end = func() { cancel(); over.Wait() }
	if s.kind == engine.TFServing || s.grpc {
		time.Sleep(2 * time.Second) // connected clients reconnect meanwhile
	}
}

func (s *simulatedEngine) kill() {
	s.at.close()
	s.end()
}

// Write receives the engine's event log.
func (s *simulatedEngine) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events.Write(p)
}

func (s *simulatedEngine) loads(name string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := json.NewDecoder(bytes.NewReader(s.events.Bytes())); d.More(); {
		var e llm.Event
		if err := d.Decode(&e); err != nil {
			s.t.Fatal(err)
		}
		if e.Event == "load" && e.Model == name {
			n++
		}
	}
	return n
}

// Scrapes of an MLServer read the index only when necessary; scrapes of a Triton read it each time.
// The test fails if the driver reads MLServer's index at each scrape, misses the outcome of a load
// or an unload, or never reads the index again.
func TestIndexIsReadWhenNecessary(t *testing.T) {
	testIndexReads(t, newSimulatedEngine)
	testIndexReads(t, newGRPCEngine)
}

func testIndexReads(t *testing.T, shelf func(t *testing.T, kind engine.Kind) repositoryEngine) {
	for _, kind := range v2Kinds {
		synctest.Test(t, func(t *testing.T) {
			s := shelf(t, kind).(*simulatedEngine)
			l, err := Open(s.endpoint(), s.access(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p := &scene{T: t, repositoryEngine: s, kind: kind, loader: l}
			p.put("a", repository.Model{})
			p.put("b", repository.Model{Load: slowly})
			read := func(what string, want int, of func()) {
				t.Helper()
				before := s.server.Asked("POST " + engine.IndexPath)
				of()
				if kind == engine.Triton && strings.Contains(what, "look") {
					want = 1
				}
				if n := s.server.Asked("POST "+engine.IndexPath) - before; n != want {
					t.Errorf("%s: %s: the index was read %d times, want %d", kind, what, n, want)
				}
			}
			look := func() { p.look(Record{}, nil) }
			read("the first look", 1, look)
			read("a look at an engine with nothing", 0, look)
			p.must("a")
			for range 5 {
				read("a look after a load", 0, func() { p.look(Record{}, []string{"a"}, "b") })
			}
			read("a look afresh", 1, func() { p.look(afresh, []string{"a"}) })
			p.done("an unload", p.unloadIn("a", time.Minute))
			read("a look after an unload", 0, func() { p.look(Record{}, nil, "a") })
			p.want("a load of nothing", p.loadIn("unknown", time.Minute), Refused, "")
			read("a look after a load of nothing", 0, look)
			time.Sleep(5 * time.Minute)
			read("a look after a while", 1, look)
			p.want("a load", p.loadIn("b", late), Unclear, "")
			read("a look during a load of somebody who has gone", 1, look)
			read("another look", 1, look)
			time.Sleep(slowly)
			read("a look after it", 1, look)
			read("one more look", 0, func() { p.look(Record{}, []string{"b"}) })
			p.done("an unload", p.unloadIn("b", time.Minute))
			p.want("an unload that ends in the midst", p.unloadIn("b", 0), Unreached, "")
			read("a look after what is not sure", 1, look)
			p.want("an unload that ends in the midst", p.unloadIn("b", 0), Unreached, "")
			p.must("a")
			read("a look after that and a load", 1, look)
			if n := s.server.Asked("POST /v2/repository/models/" + noSuchModel + "/unload"); n != 1 {
				t.Errorf("%s: whether it lets models be loaded it was asked %d times", kind, n)
			}
		})
	}
}

// Scrapes query another loaded model each time. So a missing model is noticed before the index is
// too old and is read again.
func TestModelsAreQueriedInRotation(t *testing.T) {
	for _, kind := range v2Kinds {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulatedEngine(t, kind)
			l, err := Open(s.endpoint(), s.access(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p := &scene{T: t, repositoryEngine: s, kind: kind, loader: l}
			for _, name := range []string{"a", "b", "c"} {
				p.put(name, repository.Model{})
				p.must(name)
			}
			p.look(Record{}, []string{"a", "b", "c"})
			p.behind(engine.UnloadCall, "b")
			time.Sleep(time.Second)
			for range 3 {
				_, _ = l.Scrape(t.Context(), Record{})
			}
			if p.look(Record{}, []string{"a", "c"}, "b").Purged {
				t.Errorf("%s is taken to have begun anew", kind)
			}
		})
	}
}

// If a Triton does not allow loads, the scrape reports that, with advice. Its models are listed.
func TestTritonWithoutExplicitControl(t *testing.T) {
	t.Run("HTTP", func(t *testing.T) { testWithoutExplicitControl(t, false) })
	t.Run("gRPC", func(t *testing.T) { testWithoutExplicitControl(t, true) })
}

func testWithoutExplicitControl(t *testing.T, grpc bool) {
	synctest.Test(t, func(t *testing.T) {
		s := &simulatedEngine{t: t, kind: engine.Triton, models: map[string]repository.Model{"m": {}}, fixed: true, grpc: grpc}
		s.start()
		defer s.kill()
		l, err := Open(s.endpoint(), s.access(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for range 2 {
			seen, err := l.Scrape(t.Context(), Record{})
			if err != nil || seen.Takes || !seen.Lists || !slices.Equal(seen.Models, []Listed{{ID: "m"}}) {
				t.Errorf("a look: %+v, %v", seen, err)
			}
		}
		p := &scene{T: t, repositoryEngine: s, kind: engine.Triton, loader: l}
		s.put("other", repository.Model{})
		p.want("a load", p.loadIn("other", time.Minute), Refused, "--model-control-mode=explicit")
		p.want("an unload", p.unloadIn("m", time.Minute), Refused, "--model-control-mode=explicit")
	})
}

// answering returns the Loader of an engine with fixed answers for some paths. Answers separated by
// a line "--" are given one after the other; the last one is repeated. Other paths do not exist.
func answering(t *testing.T, kind engine.Kind, answers map[string]string) *Loader {
	t.Helper()
	at := &site{}
	listener := at.listen()
	var mu sync.Mutex                                                                               // guards answers
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // in memory
		call := r.Method + " " + r.URL.Path
		mu.Lock()
		text, ok := answers[call]
		if first, rest, more := strings.Cut(text, "\n--\n"); more {
			text, answers[call] = first, rest
		}
		mu.Unlock()
		if !ok {
			text = `404 {"detail":"Not Found"}`
		}
		status, body, _ := strings.Cut(text, " ")
		var n int
		if err := json.Unmarshal([]byte(status), &n); err != nil {
			t.Error(err)
		}
		if n/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(n)
		_, _ = w.Write([]byte(body))
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	l, err := Open(Endpoint{Address: address, Kind: kind, Management: map[engine.Kind]string{engine.TorchServe: address}[kind]},
		engineclient.Access{Dial: at.dial}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// An answer that is not in the engine's format has an unclear outcome, and the engine's models
// decide. The test fails if the outcome is another.
func TestOutcomesAtRepositories(t *testing.T) {
	const ready, load, unload, index = "GET /v2/models/m/ready", "POST /v2/repository/models/m/load", "POST /v2/repository/models/m/unload",
		"POST /v2/repository/index"
	const failed = `400 {"error":"load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: no;\n"}`
	for _, c := range []struct {
		name         string
		kind         engine.Kind
		answers      map[string]string
		load, unload string // expected errors; empty for none
	}{
		{
			"a proxy that lost the engine", engine.Triton,
			map[string]string{ready: "400 ", index: `200 [{"name":"m"}]`, load: "502 <html>", unload: "502 <html>"},
			"unclear: 502: <html>", "unclear: 502: <html>",
		},
		{
			"a load that failed and left a version", engine.Triton,
			map[string]string{
				ready: "400 ", index: `200 [{"name":"m","version":"1"},{"name":"m","version":"2","state":"UNLOADING"}]`,
				load: failed, unload: "200 ",
			},
			"unclear: the engine is still unloading the model: context deadline exceeded",
			"unclear: the engine is still unloading the model: context deadline exceeded",
		},
		{
			"a load that failed, and after which a version serves", engine.Triton,
			map[string]string{ready: "400 ", index: `200 [{"name":"m"}]` + "\n--\n" +
				`200 [{"name":"m","version":"1","state":"UNAVAILABLE","reason":"no"},{"name":"m","version":"2","state":"READY"}]` +
				"\n--\n" + `200 [{"name":"m"}]`, load: failed, unload: "200 "},
			"unclear: 400: load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: no;\n", "",
		},
		{
			"one that failed and left nothing", engine.Triton,
			map[string]string{
				ready: "400 ", index: `200 [{"name":"m","version":"1","state":"UNAVAILABLE","reason":"no"}]`, load: failed,
				unload: "200 ",
			},
			"refused: 400: load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: no;\n", "",
		},
		{
			"one that is done, of a model that does not serve", engine.MLServer,
			map[string]string{ready: `404 {"error":"Model m not found"}`, load: "200 ", unload: `404 {"error":"Model m not found"}`},
			"unclear: the engine answered 200, but the model does not serve", "",
		},
		{
			"one that lets nobody in", engine.MLServer,
			map[string]string{ready: `404 {"error":"Model m not found"}`, load: `401 {"error":"no"}`, unload: `403 {"error":"no"}`},
			"refused: 401: no: " + engineclient.WantsToken, "refused: 403: no: " + engineclient.WantsToken,
		},
		{
			"a redirect", engine.MLServer,
			map[string]string{ready: `404 {"error":"Model m not found"}`, load: "307 ", unload: "308 "},
			"refused: 307: a redirect, which is not followed", "refused: 308: a redirect, which is not followed",
		},
		{
			"one without a repository", engine.MLServer,
			map[string]string{ready: `404 {"detail":"Not Found"}`},
			`refused: 404: {"detail":"Not Found"}: it has no V2 model repository there`,
			`refused: 404: {"detail":"Not Found"}: it has no V2 model repository there`,
		},
		{
			"an unload of what is being unloaded", engine.MLServer,
			map[string]string{ready: "200 ", unload: "500 Traceback (most recent call last):\nKeyError: 'm'\n"},
			"", "unclear: 500: Traceback (most recent call last):\nKeyError: 'm'",
		},
		{
			"an index that cannot be read", engine.Triton,
			map[string]string{ready: "400 ", index: `200 [{"name":"m"}]` + "\n--\n" + "200 <html>", load: "200 ", unload: "200 "},
			"unclear: the engine answered 200, but does not say what it has: index of the model repository: invalid character '<' looking for beginning of value",
			"unclear: index of the model repository: invalid character '<' looking for beginning of value",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &scene{T: t, kind: c.kind, loader: answering(t, c.kind, c.answers)}
			say := func(err *Error) string {
				if err == nil {
					return ""
				}
				return said(err, "")
			}
			if got := say(p.loadIn("m", time.Minute)); got != c.load {
				t.Errorf("%s: a load: %q, want %q", c.name, got, c.load)
			}
			if got := say(p.unloadIn("m", time.Minute)); got != c.unload {
				t.Errorf("%s: an unload: %q, want %q", c.name, got, c.unload)
			}
			_ = p.loader.Close()
			time.Sleep(time.Minute) // idle connections close meanwhile
		})
	}
}

// An engine without an index gives no list and cannot load models. If the index cannot be read, the
// scrape fails.
func TestScrapeWithoutAnIndex(t *testing.T) {
	for _, c := range []struct {
		index string
		seen  bool
		want  string // expected error of a scrape
	}{
		{"404 nothing", true, ""},
		{"405 ", true, ""},
		{"501 ", true, ""},
		{"500 broken", false, "unclear: 500: broken"},
		{`401 {"error":"no"}`, false, "refused: 401: no: " + engineclient.WantsToken},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := answering(t, engine.Triton, map[string]string{"POST /v2/repository/index": c.index})
			seen, err := l.Scrape(t.Context(), Record{})
			if seen.Lists || seen.Takes || (err == nil) != c.seen {
				t.Errorf("%s: %+v, %v", c.index, seen, err)
			}
			if own := (*Error)(nil); errors.As(err, &own) && said(err, "") != c.want {
				t.Errorf("%s: %q, want %q", c.index, said(err, ""), c.want)
			}
			_ = l.Close()
			time.Sleep(time.Minute)
		})
	}
}
