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

// simulatedPath is the prefix of an adapter path that needs no directory.
const simulatedPath = "sim:"

// Faults of loads that such a path may name.
const (
	loadHangs    = "hang"     // loads are never answered
	loadUnlisted = "unlisted" // loads are answered with 200, but the adapter is not listed
	loadBusy     = "busy="    // this many loads are answered with 503 first
)

// simulatedRank is the default rank of such an adapter.
const simulatedRank = 8

// baseModels are the names of the base model. Immutable.
type baseModels struct {
	names  []string // the first one is its own
	root   string
	maxLen int
}

// registry has the addressable adapters: those that requests may name. The step model knows which
// are resident. It is safe for concurrent use.
type registry struct {
	mu     sync.RWMutex // guards the fields below
	byName map[string]Adapter
	names  []string       // in order of loading
	failed map[string]int // failed loads by name
}

func newRegistry() *registry {
	return &registry{byName: map[string]Adapter{}, failed: map[string]int{}}
}

// busy reports whether a load fails because of the fault busy=N.
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

// remove removes an adapter and reports whether it was there.
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

// resolve resolves the model of a request: the name for the answer, and the adapter, "" for the
// base model. As in vLLM, a request without a model is for the base model.
func (s *Server) resolve(model string) (name, adapter string, f *failure) {
	if model == "" {
		return s.models.names[0], "", nil
	}
	if s.models.has(model) {
		return model, "", nil
	}
	if s.config.Kind == engine.SGLang {
		// An adapter is BASE:ADAPTER in SGLang. Any other name without a colon is served by the
		// base model.
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

// listModels serves GET /v1/models. As in vLLM, permission ids and times are new for each call.
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

// registerAdapter serves POST /adapters, SageMaker's API for loading.
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

// register loads an adapter and answers.
func (c *call) register(a Adapter, inPlace bool, answer string) *failure {
	f := c.inTurn("load", a, func(done func(*failure)) { c.s.bring(a, inPlace, done) })
	if f != nil {
		return f
	}
	return c.respond(http.StatusOK, "", []byte(answer))
}

// inTurn runs an operation on an adapter after the pending ones for the same adapter, and returns
// the result. A client that leaves does not undo it.
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

// bring loads an adapter into host memory, which takes the time of the profile, and makes it
// addressable.
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
		return // only later operations on this adapter wait
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

// machinePath matches the local paths that vLLM hides in its answers (seen on vLLM 0.32.0).
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

// remove makes an adapter unknown. format is the message of the failure if there is none.
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
