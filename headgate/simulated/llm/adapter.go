package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/internal/engine"
)

// simulatedPath is the prefix of an adapter path without a directory.
const simulatedPath = "sim:"

// Faults of loads that a path with simulatedPath may name.
const (
	loadHangs    = "hang"     // a load is never answered
	loadUnlisted = "unlisted" // a load is answered with 200, but the adapter is not listed
	loadBusy     = "busy="    // busy=N: the first N loads are answered with 503
)

// simulatedRank is the rank of an adapter whose path has simulatedPath and no rank.
const simulatedRank = 8

// baseModels has the names and the limits of the base model. It is immutable.
type baseModels struct {
	names  []string // the main name is first
	root   string
	maxLen int
}

// registry has the addressable adapters: those that requests may name. Which adapters are resident
// is known only to the step model. A registry is safe for concurrent use.
type registry struct {
	mu     sync.RWMutex // guards the fields below
	byName map[string]Adapter
	names  []string       // names of adapters in order of loading
	failed map[string]int // number of failed loads by adapter name
}

func newRegistry() *registry {
	return &registry{byName: map[string]Adapter{}, failed: map[string]int{}}
}

// busy counts a load of an adapter with the fault busy=N, and reports whether it fails: whether it
// is one of the first N.
func (g *registry) busy(name, times string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, _ := strconv.Atoi(times)
	g.failed[name]++
	return g.failed[name] <= n
}

func (g *registry) has(name string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	_, ok := g.byName[name]
	return ok
}

func (g *registry) put(a Adapter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, there := g.byName[a.Name]; !there {
		g.names = append(g.names, a.Name)
	}
	g.byName[a.Name] = a
}

// remove removes an adapter and reports whether there was one with the name.
func (g *registry) remove(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, there := g.byName[name]; !there {
		return false
	}
	delete(g.byName, name)
	g.names = slices.DeleteFunc(g.names, func(n string) bool { return n == name })
	return true
}

func (g *registry) all() []Adapter {
	g.mu.RLock()
	defer g.mu.RUnlock()
	all := make([]Adapter, 0, len(g.names))
	for _, name := range g.names {
		all = append(all, g.byName[name])
	}
	return all
}

// resolve resolves the model that a request names. It returns the name for the answer, and the
// adapter, "" for the base model. As in vLLM, a request without a model is for the base model.
func (s *Server) resolve(model string) (name, adapter string, f *failure) {
	if model == "" {
		return s.models.names[0], "", nil
	}
	if s.models.has(model) {
		return model, "", nil
	}
	if s.config.Kind == engine.SGLang {
		// In SGLang the name of an adapter is BASE:ADAPTER. The base model serves all other names
		// without a colon.
		_, adapter, named := strings.Cut(model, ":")
		if !named || s.adapters.has(adapter) {
			return model, adapter, nil
		}
	} else if s.adapters.has(model) {
		return model, model, nil
	}
	return "", "", notFound("model", "The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(s.models.names, ", "))
}

func (m *baseModels) has(name string) bool { return slices.Contains(m.names, name) }

// listModels serves GET /v1/models. As in vLLM, each answer has new permission ids and times.
func (c *call) listModels() *failure {
	s := c.s
	b := []byte(`{"object":"list","data":[`)
	card := func(id, root, parent, maxLen string) {
		if b[len(b)-1] == '}' {
			b = append(b, ',')
		}
		b = fmt.Appendf(b,
			`{"id":%s,"object":"model","created":%d,"owned_by":%s,"root":%s,"parent":%s,"max_model_len":%s,"permission":[{"id":"modelperm-%s","object":"model_permission","created":%[2]d,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}`,
			quote(id), unixNow(), quote(string(s.config.Kind)), quote(root), parent, maxLen, c.newID())
	}
	for _, name := range s.models.names {
		card(name, s.models.root, "null", strconv.Itoa(s.models.maxLen))
	}
	for _, a := range s.adapters.all() {
		card(a.Name, a.Path, string(quote(s.models.names[0])), "null")
	}
	return c.json(http.StatusOK, append(b, "]}"...))
}

// loadAdapter serves POST /v1/load_lora_adapter.
func (c *call) loadAdapter() *failure {
	root, f := c.read()
	var a Adapter
	if f == nil {
		a.Name, f = member(root, "lora_name")
	}
	if f == nil {
		a.Path, f = member(root, "lora_path")
	}
	if f == nil && (a.Name == "" || a.Path == "") {
		f = invalidInput("Both 'lora_name' and 'lora_path' must be provided.")
	}
	if f != nil {
		return f
	}
	return c.register(a, root.Get("load_inplace").Bool(), fmt.Sprintf("Success: LoRA adapter '%s' added successfully.", a.Name))
}

// registerAdapter serves POST /adapters, SageMaker's API for loading an adapter.
func (c *call) registerAdapter() *failure {
	root, f := c.read()
	var a Adapter
	if f == nil {
		a.Name, f = member(root, "name")
	}
	if f == nil {
		a.Path, f = member(root, "src")
	}
	if f != nil {
		return f
	}
	return c.register(a, false, fmt.Sprintf("Adapter %s registered", a.Name))
}

// register loads an adapter and sends the answer.
func (c *call) register(a Adapter, inPlace bool, answer string) *failure {
	f := c.inTurn("load", a, func(done func(*failure)) { c.s.bring(a, inPlace, done) })
	if f != nil {
		return f
	}
	return c.respond(http.StatusOK, "", []byte(answer))
}

// inTurn runs an operation on an adapter after the pending operations on that adapter, and returns
// the result. If the client disconnects, the operation continues.
func (c *call) inTurn(event string, a Adapter, do func(done func(*failure))) *failure {
	s := c.s
	ended := s.config.Events.Begin(event, event+"ed", a.Name)
	over := make(chan *failure, 1)
	s.turns.do(a.Name, func(next func()) {
		do(func(f *failure) {
			if f == nil {
				ended("")
			} else {
				ended(f.message)
			}
			over <- f
			next()
		})
	})
	select {
	case f := <-over:
		return f
	case <-c.r.Context().Done():
	case <-s.driver.cut:
	}
	return abandoned
}

// bring makes an adapter addressable after loading it into host memory. The profile has the
// duration of the load.
func (s *Server) bring(a Adapter, inPlace bool, done func(*failure)) {
	if !inPlace && s.adapters.has(a.Name) {
		done(invalidInput("The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.",
			a.Name))
		return
	}
	if f := s.checkAdapter(a); f != nil {
		done(f)
		return
	}
	switch fault, _ := strings.CutPrefix(a.Path, simulatedPath); {
	case fault == loadHangs:
		return // never calls done: later operations on this adapter wait for ever
	case fault == loadUnlisted:
		done(nil)
		return
	case strings.HasPrefix(fault, loadBusy) && s.adapters.busy(a.Name, fault[len(loadBusy):]):
		done(&failure{http.StatusServiceUnavailable, "Service Unavailable", "the engine is busy", ""})
		return
	}
	s.driver.load(a.Name, func(err error) {
		if err != nil {
			done(&failure{
				http.StatusInternalServerError, "InternalServerError",
				fmt.Sprintf("Call to add_lora method failed: %v", err), "",
			})
			return
		}
		s.adapters.put(a)
		done(nil)
	})
}

// preload makes a configured adapter addressable and loads it before the clock starts.
func (s *Server) preload(a Adapter) error {
	if a.Name == "" || a.Path == "" {
		return fmt.Errorf("adapter %q at %q: both a name and a path are needed", a.Name, a.Path)
	}
	if f := s.checkAdapter(a); f != nil {
		return fmt.Errorf("adapter %q: %w", a.Name, f)
	}
	if err := s.driver.preload(a.Name); err != nil {
		return err
	}
	s.adapters.put(a)
	return nil
}

// machinePath matches local file paths, which vLLM hides in its answers (seen on vLLM 0.32.0).
var machinePath = regexp.MustCompile(`/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.-]+)+`)

// checkAdapter checks the weights of an adapter as vLLM does: that they exist and have a permitted
// rank.
func (s *Server) checkAdapter(a Adapter) *failure {
	if s.models.has(a.Name) {
		return invalidInput("The lora adapter '%s' conflicts with a served base model.", a.Name)
	}
	rank, err := adapterRank(a.Path)
	if err != nil {
		return notFound("", "Loading lora %s failed: No adapter found for %s", a.Name, machinePath.ReplaceAllString(a.Path, "<path>"))
	}
	if rank > s.config.MaxLoRARank {
		return &failure{http.StatusInternalServerError, "InternalServerError", fmt.Sprintf(
			"Call to add_lora method failed: Worker failed with error 'LoRA rank %d is greater than max_lora_rank %d.', please check the stack trace above for the root cause",
			rank, s.config.MaxLoRARank), ""}
	}
	return nil
}

// adapterRank reads the rank of the adapter at a path.
func adapterRank(path string) (int, error) {
	if spec, ok := strings.CutPrefix(path, simulatedPath); ok {
		if spec == "" || spec == loadHangs || spec == loadUnlisted || strings.HasPrefix(spec, loadBusy) {
			return simulatedRank, nil
		}
		text, ok := strings.CutPrefix(spec, "rank=")
		rank, err := strconv.Atoi(text)
		if !ok || err != nil || rank < 1 {
			return 0, fmt.Errorf("%q is not %srank=N", path, simulatedPath)
		}
		return rank, nil
	}
	config, err := os.ReadFile(filepath.Join(path, "adapter_config.json"))
	if err != nil {
		return 0, err
	}
	var peft struct {
		R int `json:"r"`
	}
	if err := json.Unmarshal(config, &peft); err != nil {
		return 0, err
	}
	if peft.R < 1 {
		return 0, errors.New("adapter_config.json has no rank")
	}
	return peft.R, nil
}

// unloadAdapter serves POST /v1/unload_lora_adapter. It only removes the name: running requests
// continue, and the weights stay until their slot is needed.
func (c *call) unloadAdapter() *failure {
	root, f := c.read()
	name := ""
	if f == nil {
		name, f = member(root, "lora_name")
	}
	if f == nil && name == "" {
		f = invalidInput("'lora_name' needs to be provided to unload a LoRA adapter.")
	}
	if f != nil {
		return f
	}
	return c.unregister(name, fmt.Sprintf("Success: LoRA adapter '%s' removed successfully.", name))
}

// unregisterAdapter serves DELETE /adapters/{name}.
func (c *call) unregisterAdapter() *failure {
	name := strings.TrimPrefix(c.r.URL.Path, adapterPath)
	return c.unregister(name, fmt.Sprintf("Adapter %s unregistered", name))
}

func (c *call) unregister(name, answer string) *failure {
	f := c.inTurn("unload", Adapter{Name: name}, func(done func(*failure)) { done(c.s.remove(name, "The lora adapter '%s' cannot be found.")) })
	if f != nil {
		return f
	}
	return c.respond(http.StatusOK, "", []byte(answer))
}

// remove makes an adapter unknown. format is the error message if no adapter has the name.
func (s *Server) remove(name, format string) *failure {
	if !s.adapters.remove(name) {
		return notFound("", format, name)
	}
	return nil
}

// member returns a required string of the body.
func member(root gjson.Result, key string) (string, *failure) {
	v := root.Get(key)
	if !v.Exists() {
		return "", malformed("missing", "body."+key, "Field required", describe(root))
	}
	return text(key, v)
}
