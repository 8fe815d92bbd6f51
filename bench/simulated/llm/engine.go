// Package llm is a simulated vLLM endpoint: the HTTP server of vLLM 0.32 around the step model of
// internal/sim, in real time. It computes nothing, but requests queue, share steps, use the prefix
// cache, wait for adapter slots and stream with the timing of a profile. So a gateway can be tested
// and measured without a GPU.
//
// Its wire format is checked against recordings of a real vLLM 0.32.0 (bench/testdata/vllm-0.32): a
// test replays every recorded request and compares status, headers and the shape of the body. It
// deliberately differs in these points, each a row in the table of the test:
//
//   - It serves embeddings, rerank, score, pooling, classify and audio beside chat; a vLLM serves
//     what its model supports. The answers of pooling and classify were not recorded: they follow
//     the code of 0.32.0.
//   - It has no render and token-in endpoints (403 in the recording) and none of the newer
//     endpoints that are not inference (kv_event_sources, systemone, generative_scoring, elastic
//     expert parallelism); 404 here.
//     /v1/responses stores no responses unless Config.StoreResponses is set.
//   - Its tokens have at most 4 bytes, so the limit in the error for long prompts differs.
//   - It has no LoRA resolver plugin: an adapter is served after it was loaded by name.
//
// Beyond the recordings: n greater than 1 and batches of completion prompts are rejected; logprobs,
// tools and penalties are ignored; during sleep, requests wait and keep their KV cache, where vLLM
// aborts them; streamed messages of /v1/messages follow Anthropic's specification, which vLLM
// abridges. Its own metrics start with sim:, never with vllm:.
//
// As SGLang (Config.Kind) it has SGLang's adapter API and metric names, from the documentation: no
// real SGLang was recorded. There an adapter is requested as BASE:ADAPTER; here its own name works
// too.
//
// A stream sends its headers at once and its first data chunk with the first token. So does vLLM,
// whose scheduler outputs nothing before the whole prompt is computed.
package llm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// ServedHeader has the endpoint that served, HOST:PORT, on every response.
const ServedHeader = "X-Served-Endpoint"

// idleTimeout is when vLLM closes an idle connection (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, default 5 s). A
// proxy with a longer timeout meets closed connections.
const idleTimeout = 5 * time.Second

//go:embed default.yaml
var defaultProfile []byte

// DefaultProfile is a 70B model on four A100 GPUs, from internal/profile/testdata.
func DefaultProfile() profile.Profile {
	p, err := profile.Parse(defaultProfile)
	if err != nil {
		panic(fmt.Sprintf("engine: the embedded profile: %v", err))
	}
	return p
}

// Config configures an engine. The zero value is an engine with DefaultProfile that serves the
// model "base" to callers of Handler.
type Config struct {
	// Profile has the latencies and limits of the engine; zero means DefaultProfile.
	Profile profile.Profile
	// Model is the model argument of vLLM: the root of the base model in /v1/models; "" means
	// "base".
	Model string
	// ServedNames are the names of the base model, the first one its own; empty means Model.
	ServedNames []string
	// MaxModelLen limits the prompt and output tokens of a request; 0 means 4096 or the size of the
	// KV cache.
	MaxModelLen int
	// MaxLoRARank is the largest adapter rank; 0 means 16, as in vLLM.
	MaxLoRARank int
	// Adapters are loaded at the start.
	Adapters []Adapter
	// ShutdownTimeout is how long requests may continue after the context of Run ends. 0 is vLLM's
	// default: they hang without a byte until their clients give up.
	ShutdownTimeout time.Duration
	// ShutdownDelay is how long the server keeps answering within ShutdownTimeout after the last
	// request: a vLLM takes some seconds to end its processes.
	ShutdownDelay time.Duration
	// MaxQueued limits the waiting and running requests; 0 means no limit.
	MaxQueued int
	// APIKey is required on /v1 paths; "" means none.
	APIKey string
	// KeepAlive is the silence after which a stream gets a comment; 0 means never.
	KeepAlive time.Duration
	// Faults apply to inference requests.
	Faults []Fault
	// Seed determines generated texts, ids, load times and faults.
	Seed uint64
	// RequestIDHeaders sets x-request-id on every response. SleepMode serves /sleep, /wake_up and
	// /is_sleeping.
	RequestIDHeaders, SleepMode bool
	// StoreResponses stores the responses of /v1/responses until the engine ends, as vLLM does with
	// VLLM_ENABLE_RESPONSES_API_STORE=1. Only this engine can get, cancel, delete and continue
	// them.
	StoreResponses bool
	// Kind is engine.VLLM, the default, or engine.SGLang.
	Kind engine.Kind
	// Events is the event log; nil for none.
	Events *Events
	// Listener is where Run serves; Run closes it. nil means that the caller serves Handler.
	Listener net.Listener
}

// Adapter is a LoRA adapter: its name and the path of its weights.
type Adapter struct {
	Name string
	// Path is a directory with adapter_config.json, or "sim:" or "sim:rank=N", which always exists.
	// Loads of "sim:hang" are never answered; after those of "sim:unlisted" the adapter is not
	// listed; "sim:busy=N" answers N loads with 503 first.
	Path string
}

// Server is a simulated engine. Create it with New. Its methods are safe for concurrent use.
type Server struct {
	// Immutable after New.
	config   Config
	driver   *driver
	adapters *registry
	models   baseModels
	traffic  *traffic
	born     time.Time

	requests atomic.Uint64 // for ids and faults
	inFlight atomic.Int64  // requests at the engine
	turns    turns         // of loads and unloads by adapter name
	door     door
	stored   sync.Map      // the ids of responses
	killed   chan struct{} // closed by Kill
	kill     func()
}

// New checks the configuration and returns an engine with its adapters loaded. The clock starts
// with Run.
func New(c Config) (*Server, error) {
	c = c.withDefaults()
	driver, err := newDriver(c)
	if err != nil {
		return nil, err
	}
	if c.MaxModelLen > driver.sim.MaxTokens() {
		return nil, fmt.Errorf("max-model-len %d: the KV cache of the profile holds %d tokens", c.MaxModelLen,
			driver.sim.MaxTokens())
	}
	s := &Server{
		config:   c,
		driver:   driver,
		adapters: newRegistry(),
		models:   baseModels{names: c.ServedNames, root: c.Model, maxLen: c.MaxModelLen},
		traffic:  newTraffic(),
		born:     time.Now(),
		door:     door{empty: make(chan struct{})},
		killed:   make(chan struct{}),
	}
	s.kill = sync.OnceFunc(func() { close(s.killed) })
	if c.Kind != engine.VLLM && c.Kind != engine.SGLang {
		return nil, fmt.Errorf("there is no simulated engine of the kind %q here", c.Kind)
	}
	for _, a := range c.Adapters {
		if err := s.preload(a); err != nil {
			return nil, fmt.Errorf("lora-modules: %w", err)
		}
	}
	return s, nil
}

func (c Config) withDefaults() Config {
	if c.Profile == (profile.Profile{}) {
		c.Profile = DefaultProfile()
	}
	if c.Kind == "" {
		c.Kind = engine.VLLM
	}
	if c.Model == "" {
		c.Model = "base"
	}
	if len(c.ServedNames) == 0 {
		c.ServedNames = []string{c.Model}
	}
	if c.MaxModelLen == 0 {
		c.MaxModelLen = min(4096, max(1, c.Profile.Limits.KVBlocks-1)*max(1, c.Profile.Limits.BlockSize))
	}
	if c.MaxLoRARank == 0 {
		c.MaxLoRARank = 16
	}
	return c
}

// Kill makes Run return although a load hangs in the stopping engine, as SIGKILL ends a vLLM.
func (s *Server) Kill() { s.kill() }

// Run drives the engine, and serves Config.Listener if it is set, until ctx ends. Then it stops as
// vLLM does on SIGTERM: see Config.ShutdownTimeout. It returns when every request has ended; after
// a hanging load only if Kill is called. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	alive, kill := context.WithCancel(context.Background())
	var owned sync.WaitGroup
	defer owned.Wait()
	defer kill()
	owned.Go(func() { s.driver.run(alive) })
	defer s.driver.cutOff()

	server := &http.Server{
		Handler:           s.Handler(),
		IdleTimeout:       idleTimeout,
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	trackIdle(server)
	failed := make(chan error, 1)
	if s.config.Listener != nil {
		owned.Go(func() { failed <- server.Serve(s.config.Listener) })
	}
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	if s.config.ShutdownTimeout == 0 {
		kill()
	}
	return s.stop(server)
}

// stop ends the server. With a timeout, requests in flight finish, new ones get an error, and the
// rest is cut off when the time is over. Without a timeout the driver has stopped: requests in
// flight hang until their clients leave, and new ones are rejected.
func (s *Server) stop(server *http.Server) error {
	s.door.close()
	if s.config.ShutdownTimeout > 0 {
		over := time.NewTimer(s.config.ShutdownTimeout)
		defer over.Stop()
		select {
		case <-s.door.empty:
			select {
			case <-time.After(s.config.ShutdownDelay):
			case <-over.C:
			}
		case <-over.C:
			s.driver.cutOff()
		}
	}
	if err := server.Shutdown(context.Background()); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("shutdown: %w", err)
	}
	// Shutdown does not know requests that came to Handler directly.
	<-s.door.empty
	return nil
}

// door counts the requests inside and signals, after closing, when the last one has left.
type door struct {
	mu     sync.Mutex // guards the fields below, except empty
	inside int
	closed bool
	done   bool
	empty  chan struct{} // closed once, when the door is closed and no request is inside
}

// enter counts a request and reports whether the door is open. The caller calls leave in either
// case.
func (d *door) enter() (open bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inside++
	return !d.closed
}

func (d *door) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inside--
	d.signal()
}

func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.signal()
}

// signal closes empty when the last request has left a closed door. The caller holds mu.
func (d *door) signal() {
	if d.closed && d.inside == 0 && !d.done {
		d.done = true
		close(d.empty)
	}
}
