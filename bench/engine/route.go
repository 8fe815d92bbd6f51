package engine

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	kinds "github.com/headgate/headgate/internal/engine"
)

// route is what is served at a path.
type route struct {
	method string
	serve  func(*call)
	engine bool // asks the engine: faults apply, and a server that drains refuses it
}

// adapterPath is followed by the adapter's name: SageMaker's way to unload it.
const adapterPath = "/adapters/"

// routes are the paths with nothing after them. vLLM's own inference paths are the ones that ask the engine.
var routes = map[string]route{
	"/v1/chat/completions":      {http.MethodPost, (*call).chat, true},
	"/v1/completions":           {http.MethodPost, (*call).completions, true},
	"/v1/messages":              {http.MethodPost, (*call).messages, true},
	"/v1/messages/count_tokens": {http.MethodPost, (*call).countTokens, false},
	"/v1/responses":             {http.MethodPost, (*call).responses, true},
	"/v1/embeddings":            {http.MethodPost, (*call).embeddings, true},
	"/v1/rerank":                {http.MethodPost, (*call).rerank, true},
	"/rerank":                   {http.MethodPost, (*call).rerank, true},
	"/v1/score":                 {http.MethodPost, (*call).score, true},
	"/score":                    {http.MethodPost, (*call).score, true},
	"/pooling":                  {http.MethodPost, (*call).pooling, true},
	"/classify":                 {http.MethodPost, (*call).classify, true},
	"/v1/audio/transcriptions":  {http.MethodPost, (*call).audio, true},
	"/v1/audio/translations":    {http.MethodPost, (*call).audio, true},
	"/invocations":              {http.MethodPost, (*call).invocations, true},
	"/tokenize":                 {http.MethodPost, (*call).tokenize, false},
	"/detokenize":               {http.MethodPost, (*call).detokenize, false},
	"/v1/models":                {http.MethodGet, (*call).listModels, false},
	"/health":                   {http.MethodGet, (*call).healthy, false},
	"/ping":                     {http.MethodGet, (*call).healthy, false},
	"/version":                  {http.MethodGet, (*call).version, false},
	"/load":                     {http.MethodGet, (*call).load, false},
}

// kindRoutes are what the kinds of engines have each of its own.
var kindRoutes = map[kinds.Kind]map[string]route{
	kinds.VLLM: {
		"/v1/load_lora_adapter":   {http.MethodPost, (*call).loadAdapter, true},
		"/v1/unload_lora_adapter": {http.MethodPost, (*call).unloadAdapter, false},
		"/adapters":               {http.MethodPost, (*call).registerAdapter, true},
		"/metrics":                {http.MethodGet, func(c *call) { c.s.serveMetrics(c) }, false},
	},
	kinds.SGLang: {
		"/load_lora_adapter":   {http.MethodPost, (*call).loadSGLang, true},
		"/unload_lora_adapter": {http.MethodPost, (*call).unloadSGLang, false},
		"/metrics":             {http.MethodGet, func(c *call) { c.s.serveSGLangMetrics(c) }, false},
	},
}

// sleepRoutes are served with Config.SleepMode.
var sleepRoutes = map[string]route{
	"/sleep":       {http.MethodPost, (*call).sleep, false},
	"/wake_up":     {http.MethodPost, (*call).wakeUp, false},
	"/is_sleeping": {http.MethodGet, (*call).isSleeping, false},
}

// route finds what is served at a path, and a name for the path that is one of few.
func (s *Server) route(path string) (r route, name string) {
	if r, ok := routes[path]; ok {
		return r, path
	}
	if r, ok := kindRoutes[s.config.Kind][path]; ok {
		return r, path
	}
	if r, ok := sleepRoutes[path]; ok && s.config.SleepMode {
		return r, path
	}
	if name, ok := strings.CutPrefix(path, adapterPath); ok && s.config.Kind == kinds.VLLM && name != "" && !strings.Contains(name, "/") {
		return route{http.MethodDelete, (*call).unregisterAdapter, false}, adapterPath + "{name}"
	}
	return route{}, "other"
}

// healthy answers even asleep and while stopping, as vLLM does.
func (c *call) healthy() { c.respond(http.StatusOK, "", nil) }

func (c *call) version() { c.json(http.StatusOK, []byte(`{"version":"0.32.0"}`)) }

// load counts as vLLM does with --enable-server-load-tracking.
func (c *call) load() {
	c.json(http.StatusOK, fmt.Appendf(nil, `{"server_load":%d}`, c.s.inFlight.Load()))
}

// sleep stops the engine between two steps; level 1 keeps the weights in host memory, level 2 drops them.
func (c *call) sleep() {
	level := 1
	if text := c.r.URL.Query().Get("level"); text != "" {
		var err error
		if level, err = strconv.Atoi(text); err != nil || level < 1 || level > 2 {
			c.fail(bad("level", "level must be 1 or 2, got %s", text))
			return
		}
	}
	c.setAsleep(level, fmt.Sprintf(`{"status":"sleeping","level":%d}`, level))
}

func (c *call) wakeUp() { c.setAsleep(0, `{"status":"awake"}`) }

func (c *call) setAsleep(level int, answer string) {
	if _, f := c.readAll(); f != nil {
		c.fail(f)
		return
	}
	if !c.s.driver.do(c.r.Context(), func() { c.s.driver.asleep = level }) {
		c.abandon()
		return
	}
	c.json(http.StatusOK, []byte(answer))
}

func (c *call) isSleeping() {
	asleep := false
	if !c.s.driver.do(c.r.Context(), func() { asleep = c.s.driver.asleep != 0 }) {
		c.abandon()
		return
	}
	c.json(http.StatusOK, fmt.Appendf(nil, `{"is_sleeping":%v}`, asleep))
}
