package loader

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// listServer is a simulated OpenVINO Model Server, as its documentation describes it: it reads a
// file of models when it starts and when it is asked to.
type listServer struct {
	*testing.T
	at   site
	file string
	turn chan struct{} // capacity 1: full while a list is applied

	mu     sync.Mutex // guards the fields below
	fail   map[string]bool
	slow   map[string]time.Duration // duration of a load by model
	states map[string]*listed
	loads  []string
	asked  int // number of reloads
	blind  int // number of reloads that do not notice a change
	server *http.Server
}

type listed struct{ folder, state, code string }

func newListServer(t *testing.T) *listServer {
	t.Helper()
	s := &listServer{
		T: t, file: filepath.Join(t.TempDir(), "models.json"), fail: make(map[string]bool), slow: make(map[string]time.Duration),
		turn: make(chan struct{}, 1),
	}
	return s
}

func (s *listServer) start() {
	s.states = make(map[string]*listed)
	s.reload()
	listener := s.at.listen()
	s.server = &http.Server{Handler: http.HandlerFunc(s.serve)} //nolint:gosec // in memory
	go func(server *http.Server) { _ = server.Serve(listener) }(s.server)
}

func (s *listServer) kill() {
	s.at.close()
	_ = s.server.Close()
}

func (s *listServer) serve(w http.ResponseWriter, r *http.Request) {
	status := http.StatusOK
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/config":
	case "POST /v1/config/reload":
		s.mu.Lock()
		s.asked++
		blind := s.blind > 0
		if blind {
			s.blind--
		}
		s.mu.Unlock()
		if blind {
			break
		}
		if status = http.StatusCreated; !s.reload() {
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = w.Write([]byte(`{"error": "Reloading config file failed. Check server logs for more info."}`))
			return
		}
	default:
		http.NotFound(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]any)
	for name, m := range s.states {
		all[name] = map[string]any{"model_version_status": []any{map[string]any{
			"version": "1", "state": m.state, "status": map[string]string{"error_code": m.code, "error_message": m.code},
		}}}
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(all)
}

// reload applies the file, and reports whether all its models serve.
func (s *listServer) reload() (all bool) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	text, err := os.ReadFile(s.file)
	if err != nil {
		return false
	}
	list, err := engine.ReadOVMSModelList(text)
	if err != nil {
		s.Error(err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all = true
	for name, m := range s.states {
		if list[name] == "" && m.state != "END" {
			m.state, m.code = "END", "OK"
		}
	}
	for name, folder := range list {
		m := s.states[name]
		if m != nil && m.folder == folder && m.state == "AVAILABLE" {
			continue
		}
		m = &listed{folder, "LOADING", "OK"}
		s.states[name] = m
		s.loads = append(s.loads, name)
		takes := s.slow[name]
		s.mu.Unlock()
		time.Sleep(takes)
		s.mu.Lock()
		if m.state = "AVAILABLE"; s.fail[name] {
			m.state, m.code, all = "LOADING", "UNKNOWN", false
		}
	}
	return all
}

// open returns a Loader of the server, as a new process has it.
func (s *listServer) open() *Loader {
	s.Helper()
	l, err := Open(Endpoint{Address: address, Kind: engine.OVMS, ModelList: s.file}, engineclient.Access{Dial: s.at.dial}, nil)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = l.Close() })
	return l
}

// written returns the names on the list.
func (s *listServer) written() string {
	s.Helper()
	text, err := os.ReadFile(s.file)
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if name, is := strings.CutPrefix(strings.TrimSpace(line), `"name": `); is {
			names = append(names, strings.Trim(name, `",`))
		}
	}
	return strings.Join(names, " ")
}

var listScenariosOfOVMS = []struct {
	name string
	run  func(s *listServer, p *scene)
}{
	{"a model is loaded, once, and listed", func(s *listServer, p *scene) {
		p.look(Record{}, nil, "a")
		p.must("a")
		p.look(Record{}, []string{"a"})
		p.must("a")
		s.want("a", 1, "a")
		text, _ := os.ReadFile(s.file)
		if diff := cmp.Diff("{\n  \"model_config_list\": [\n    {\n      \"config\": {\n        \"name\": \"a\",\n        \"base_path\": \"/models/a\"\n"+
			"      }\n    }\n  ]\n}\n", string(text)); diff != "" {
			p.Error(diff)
		}
	}},
	{"a model that fails is taken off the list, and the others stay", func(s *listServer, p *scene) {
		p.must("a")
		s.fail["bad"] = true
		p.want("a load", p.loadIn("bad", time.Minute), Refused, "its log says why: LOADING, error UNKNOWN: UNKNOWN")
		p.look(Record{}, []string{"a"}, "bad")
		s.want("a", 3, "a", "bad")
		p.must("b")
		s.want("a b", 4, "a", "bad", "b")
		s.fail["bad"] = false
		p.must("bad")
		s.want("a b bad", 5, "a", "bad", "b", "bad")
	}},
	{"a model is unloaded, and what is not there is unloaded", func(s *listServer, p *scene) {
		p.must("a")
		p.must("b")
		p.done("an unload", p.unloadIn("a", time.Minute))
		p.look(Record{}, []string{"b"}, "a")
		s.want("b", 3, "a", "b")
		p.done("an unload again", p.unloadIn("a", time.Minute))
		p.done("an unload of what was never there", p.unloadIn("x", time.Minute))
		s.want("b", 3, "a", "b")
		p.must("a")
		s.want("a b", 4, "a", "b", "a")
	}},
	{"changes at the same time are applied together", func(s *listServer, p *scene) {
		p.must("old")
		var calls sync.WaitGroup
		for _, name := range []string{"a", "b", "c", "d"} {
			calls.Go(func() { p.must(name) })
		}
		calls.Go(func() { p.done("an unload", p.unloadIn("old", time.Minute)) })
		calls.Wait()
		p.look(Record{}, []string{"a", "b", "c", "d"}, "old")
		if s.asked != 2 {
			p.Errorf("the list was applied %d times, want 2", s.asked)
		}
	}},
	{"changes gather while a list is applied", func(s *listServer, p *scene) {
		s.slow["slow"] = slowly
		var calls sync.WaitGroup
		calls.Go(func() { p.must("slow") })
		time.Sleep(late)
		for _, name := range []string{"a", "b", "c"} {
			calls.Go(func() { p.must(name) })
		}
		calls.Wait()
		if s.asked != 2 {
			p.Errorf("the list was applied %d times, want 2", s.asked)
		}
	}},
	{"a load that outlives its caller is taken up", func(s *listServer, p *scene) {
		s.slow["a"] = slowly
		p.want("a load", p.loadIn("a", late), Unclear, "")
		p.must("a")
		p.look(Record{}, []string{"a"})
		s.want("a", 2, "a")
	}},
	{"the Loader leaves nothing of a load that takes too long", func(s *listServer, p *scene) {
		s.slow["a"] = slowly
		p.want("a load", faultOf(second(p.loader.Load(p.within(time.Minute), p.model("a"), late))), Refused, "")
		p.look(Record{}, nil, "a")
		s.want("", 2, "a")
	}},
	{"a list that is not noticed is sent again", func(s *listServer, p *scene) {
		s.blind = 2
		p.must("a")
		s.want("a", 3, "a")
		s.blind = 1
		p.done("an unload", p.unloadIn("a", time.Minute))
		p.look(Record{}, nil, "a")
	}},
	{"a model of another folder is loaded in its place", func(s *listServer, p *scene) {
		p.must("a")
		if _, err := p.loader.driver.Load(p.within(time.Minute), Model{ID: "a", Source: "/models/v2"}); err != nil {
			p.Error(err)
		}
		s.want("a", 2, "a", "a")
	}},
	{"an engine that begins anew has its models", func(s *listServer, p *scene) {
		p.must("a")
		p.must("b")
		p.look(Record{}, []string{"a", "b"})
		s.kill()
		s.start()
		if p.look(Record{}, []string{"a", "b"}).Purged {
			p.Error("it is taken to have lost its models")
		}
	}},
	{"an engine that begins anew with another disk has nothing", func(s *listServer, p *scene) {
		p.must("a")
		p.look(Record{}, []string{"a"})
		s.kill()
		if err := os.WriteFile(s.file, []byte("{}"), 0o600); err != nil {
			p.Fatal(err)
		}
		s.start()
		if !p.look(Record{}, nil, "a").Purged {
			p.Error("it is not seen to have lost its models")
		}
	}},
	{"what is on the list stays when this program begins anew", func(s *listServer, p *scene) {
		p.must("a")
		p.loader = s.open()
		p.look(Record{}, []string{"a"})
		p.must("b")
		p.look(Record{}, []string{"a", "b"})
		s.want("a b", 2, "a", "b")
	}},
	{"names that no model has", func(_ *listServer, p *scene) {
		for _, name := range []string{"org/m", "..", ""} {
			p.want("a load of "+name, p.loadIn(name, time.Minute), Refused, "is called")
			p.done("an unload of "+name, p.unloadIn(name, time.Minute))
		}
	}},
	{"an engine that takes no connection", func(s *listServer, p *scene) {
		p.must("a")
		s.kill()
		if _, err := p.loader.Scrape(p.within(time.Minute), Record{}); err == nil {
			p.Error("a look at an engine that is gone finds something")
		}
		p.want("a load", p.loadIn("b", time.Minute), Unreached, "")
		p.want("an unload", p.unloadIn("a", time.Minute), Unreached, "")
		s.start()
		p.done("an unload", p.unloadIn("a", time.Minute))
		p.must("b")
		s.want("b", 3, "a", "a", "b")
	}},
	{"a list that cannot be written", func(s *listServer, p *scene) {
		p.must("a")
		next := s.file + ".part"
		if err := os.Mkdir(next, 0o700); err != nil {
			p.Fatal(err)
		}
		p.want("a load", p.loadIn("b", time.Minute), Refused, "cannot be written")
		p.want("an unload", p.unloadIn("a", time.Minute), Unclear, "cannot be written")
		if err := os.Remove(next); err != nil {
			p.Fatal(err)
		}
		p.done("an unload", p.unloadIn("a", time.Minute))
		s.want("", 2, "a")
	}},
}

// want checks the names on the list, how often the list was applied, and the loads.
func (s *listServer) want(list string, asked int, loads ...string) {
	s.Helper()
	if got := s.written(); got != list {
		s.Errorf("the list has %q, want %q", got, list)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(loads, s.loads); diff != "" {
		s.Errorf("the loads: %s", diff)
	}
	if s.asked != asked {
		s.Errorf("the list was applied %d times, want %d", s.asked, asked)
	}
}

// The test fails if a model is loaded twice or unloaded without reason, a model that failed stays
// on the list, or changes are applied one by one.
func TestListOfModels(t *testing.T) {
	for _, c := range listScenariosOfOVMS {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newListServer(t)
				l := s.open() // writes the file, without which the server does not start
				s.start()
				defer s.kill()
				c.run(s, &scene{T: t, kind: engine.OVMS, loader: l})
			})
		})
	}
}

func TestListNeedsItsFileAndItsCalls(t *testing.T) {
	if _, err := Open(Endpoint{Address: address, Kind: engine.OVMS}, engineclient.Access{}, nil); err == nil {
		t.Error("a driver without a file opens")
	}
	file := filepath.Join(t.TempDir(), "models.json")
	if err := os.WriteFile(file, []byte("no JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Endpoint{Address: address, Kind: engine.OVMS, ModelList: file}, engineclient.Access{}, nil); err == nil {
		t.Error("a driver with a file that is no list opens")
	}
}
