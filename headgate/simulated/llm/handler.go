package llm

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/engine"
)

// handler serves a path. serve returns nil if it has answered, abandoned to end the request without
// an answer, or the failure to answer with.
type handler struct {
	method string
	serve  func(*call) *failure
	needs  needs
}

// needs is the part of the engine that a path needs. The HTTP server itself answers until the end.
type needs uint8

const (
	nothing needs = iota
	// tokenizer answers until the engine begins to stop.
	tokenizer
	// core is the engine core, with the tokenizer before it. Faults apply.
	core
	// loader is the engine core without the tokenizer. A load that arrives after the core has
	// stopped hangs. Faults apply.
	loader
)

// asksEngine reports whether a path needs the engine core.
func (n needs) asksEngine() bool { return n == core || n == loader }

// adapterPath precedes the name of an adapter in SageMaker's API for unloading.
const adapterPath = "/adapters/"

// handlers has the handlers of paths that every engine serves, by path.
var handlers = map[string]handler{
	"/v1/chat/completions":      {http.MethodPost, (*call).chat, core},
	"/v1/completions":           {http.MethodPost, (*call).completions, core},
	"/v1/messages":              {http.MethodPost, (*call).messages, core},
	"/v1/messages/count_tokens": {http.MethodPost, (*call).countTokens, tokenizer},
	"/v1/responses":             {http.MethodPost, (*call).responses, core},
	"/v1/embeddings":            {http.MethodPost, (*call).embeddings, core},
	"/v1/rerank":                {http.MethodPost, (*call).rerank, core},
	"/rerank":                   {http.MethodPost, (*call).rerank, core},
	"/v1/score":                 {http.MethodPost, (*call).score, core},
	"/score":                    {http.MethodPost, (*call).score, core},
	"/pooling":                  {http.MethodPost, (*call).pooling, core},
	"/classify":                 {http.MethodPost, (*call).classify, core},
	"/v1/audio/transcriptions":  {http.MethodPost, (*call).audio, core},
	"/v1/audio/translations":    {http.MethodPost, (*call).audio, core},
	"/invocations":              {http.MethodPost, (*call).invocations, core},
	"/tokenize":                 {http.MethodPost, (*call).tokenize, tokenizer},
	"/detokenize":               {http.MethodPost, (*call).detokenize, tokenizer},
	"/v1/models":                {http.MethodGet, (*call).listModels, nothing},
	"/health":                   {http.MethodGet, (*call).healthy, nothing},
	"/ping":                     {http.MethodGet, (*call).healthy, nothing},
	"/version":                  {http.MethodGet, (*call).version, nothing},
	"/load":                     {http.MethodGet, (*call).load, nothing},
}

// kindHandlers has the handlers of paths that only one kind of engine serves.
var kindHandlers = map[engine.Kind]map[string]handler{
	engine.VLLM: {
		"/v1/load_lora_adapter":   {http.MethodPost, (*call).loadAdapter, loader},
		"/v1/unload_lora_adapter": {http.MethodPost, (*call).unloadAdapter, nothing},
		"/adapters":               {http.MethodPost, (*call).registerAdapter, loader},
		"/metrics":                {http.MethodGet, (*call).metrics, nothing},
	},
	engine.SGLang: {
		"/load_lora_adapter":   {http.MethodPost, (*call).loadSGLang, loader},
		"/unload_lora_adapter": {http.MethodPost, (*call).unloadSGLang, nothing},
		"/metrics":             {http.MethodGet, (*call).sglangMetrics, nothing},
	},
}

// sleepHandlers has the handlers of paths that are served if Config.SleepMode is set.
var sleepHandlers = map[string]handler{
	"/sleep":       {http.MethodPost, (*call).sleep, nothing},
	"/wake_up":     {http.MethodPost, (*call).wakeUp, nothing},
	"/is_sleeping": {http.MethodGet, (*call).isSleeping, nothing},
}

// handler returns the handler of a path, and the path with ids and names replaced by placeholders;
// "other" if nothing serves the path.
func (s *Server) handler(path string) (h handler, name string) {
	if h, ok := handlers[path]; ok {
		return h, path
	}
	if h, ok := kindHandlers[s.config.Kind][path]; ok {
		return h, path
	}
	if h, ok := sleepHandlers[path]; ok && s.config.SleepMode {
		return h, path
	}
	if name, ok := strings.CutPrefix(path, adapterPath); ok && s.config.Kind == engine.VLLM && name != "" && !strings.Contains(name, "/") {
		return handler{http.MethodDelete, (*call).unregisterAdapter, nothing}, adapterPath + "{name}"
	}
	if id, ok := strings.CutPrefix(path, responsesPath); ok && s.config.StoreResponses && id != "" {
		return handler{"", (*call).storedResponse, nothing}, responsesPath + "{id}"
	}
	return handler{}, "other"
}

// healthy answers 200 even while the engine sleeps or stops, as vLLM does.
func (c *call) healthy() *failure { return c.respond(http.StatusOK, "", nil) }

func (c *call) version() *failure { return c.json(http.StatusOK, []byte(`{"version":"0.32.0"}`)) }

// load answers with the load of the server, as vLLM does with --enable-server-load-tracking.
func (c *call) load() *failure {
	return c.json(http.StatusOK, fmt.Appendf(nil, `{"server_load":%d}`, c.s.inFlight.Load()))
}

// sleep stops the engine between two steps. At level 1 it keeps the weights in host memory, at
// level 2 it drops them.
func (c *call) sleep() *failure {
	level := 1
	if text := c.r.URL.Query().Get("level"); text != "" {
		var err error
		if level, err = strconv.Atoi(text); err != nil || level < 1 || level > 2 {
			return bad("level", "level must be 1 or 2, got %s", text)
		}
	}
	return c.setAsleep(level, fmt.Sprintf(`{"status":"sleeping","level":%d}`, level))
}

func (c *call) wakeUp() *failure { return c.setAsleep(0, `{"status":"awake"}`) }

func (c *call) setAsleep(level int, answer string) *failure {
	if _, f := c.readAll(); f != nil {
		return f
	}
	if !c.s.driver.do(c.r.Context(), func() { c.s.driver.asleep = level }) {
		return abandoned
	}
	return c.json(http.StatusOK, []byte(answer))
}

func (c *call) isSleeping() *failure {
	asleep := false
	if !c.s.driver.do(c.r.Context(), func() { asleep = c.s.driver.asleep != 0 }) {
		return abandoned
	}
	return c.json(http.StatusOK, fmt.Appendf(nil, `{"is_sleeping":%v}`, asleep))
}
