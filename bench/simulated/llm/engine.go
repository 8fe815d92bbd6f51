// Package llm is a simulated vLLM endpoint: the HTTP server of vLLM 0.32 around the step model of internal/sim, on
// the real clock. It computes nothing, yet requests queue, share steps, hit the prefix cache, wait for adapter slots
// and stream at the pace that a profile gives, so a gateway can be tested and measured without a GPU.
//
// What it says on the wire is held to recordings of a real vLLM 0.32.0 (bench/testdata/vllm-0.32): a test replays every
// recorded request and compares status, headers and the shape of the body. It differs on purpose in these points, each
// a row of the test's table:
//
//   - It serves embeddings, rerank, score, pooling, classify and audio beside chat; a vLLM serves what its one model can
//     do. What pooling and classify answer was not recorded: it has the fields that 0.32.0's code gives it.
//   - It has no render and token-in endpoints (403 in the recording) and none of the newer endpoints that are no
//     inference (kv_event_sources, systemone, generative_scoring, elastic expert parallelism); 404 here.
//     /v1/responses keeps no responses, so asking for one is a path that does not exist; but see Config.StoreResponses.
//   - Its tokens are at most 4 bytes, so the bound in the message about too long prompts is another one.
//   - It has no LoRA resolver plugin: an adapter is served when it was loaded by name.
//
// Beyond the recordings: n greater than 1 and batches of completion prompts are refused, not simulated; logprobs,
// tools and penalties are ignored; asleep, requests wait and keep their KV, where vLLM aborts them; a streamed message
// of /v1/messages follows Anthropic's specification, which vLLM abridges. Metrics of its own are named sim:, never
// vllm:.
//
// As SGLang (Config.Kind) it is the same engine with SGLang's adapter API and the names of SGLang's metrics, as they are
// documented: no real SGLang was seen. An adapter is asked for as BASE:ADAPTER there; its own name alone does here too.
//
// A stream's headers are sent at once and its first data chunk with the first token, as in vLLM, whose scheduler gives
// no output before the whole prompt is computed.
package llm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// ServedHeader names the endpoint, HOST:PORT, that served; it is on every response.
const ServedHeader = "X-Served-Endpoint"

// idleTimeout is when vLLM closes a connection without a request (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, default 5 s): short
// enough that a proxy with a longer one meets closed connections.
const idleTimeout = 5 * time.Second

//go:embed default.yaml
var defaultProfile []byte

// DefaultProfile is a 70B model on four A100 GPUs: the figures of internal/profile/testdata.
func DefaultProfile() profile.Profile {
	p, err := profile.Parse(defaultProfile)
	if err != nil {
		panic(fmt.Sprintf("engine: the embedded profile: %v", err))
	}
	return p
}

// Config is how an engine is set up. The zero value is an engine with DefaultProfile that serves the model "base" to
// callers of Handler.
type Config struct {
	// Profile is how fast the engine is and what it holds; the zero value means DefaultProfile.
	Profile profile.Profile
	// Model is what vLLM was told to serve: the root of the base model in /v1/models. "" means "base".
	Model string
	// ServedNames are the names of the base model, the first its own; none means Model.
	ServedNames []string
	// MaxModelLen is the most tokens, prompt and output, of a request; 0 means 4096 or what the KV cache holds.
	MaxModelLen int
	// MaxLoRARank is the largest rank of an adapter; 0 means 16, as in vLLM.
	MaxLoRARank int
	// Adapters are loaded at the start.
	Adapters []Adapter
	// ShutdownTimeout is how long requests may go on after Run's context has ended. 0 means vLLM's default: they hang,
	// without a byte and without an end, until their clients give up.
	ShutdownTimeout time.Duration
	// ShutdownDelay is how long, within ShutdownTimeout, the server answers on after the last request has ended: a vLLM takes
	// some seconds to end its processes.
	ShutdownDelay time.Duration
	// MaxQueued is the most requests, waiting and running, that are taken in; 0 means any number.
	MaxQueued int
	// APIKey is what /v1 paths ask for; "" means nothing.
	APIKey string
	// KeepAlive is the silence after which a stream gets a comment; 0 means never.
	KeepAlive time.Duration
	// Faults happen to requests for inference.
	Faults []Fault
	// Seed makes what is generated, the ids, the load times and the draws of faults repeatable.
	Seed uint64
	// RequestIDHeaders puts x-request-id on every response, and SleepMode serves /sleep, /wake_up and /is_sleeping.
	RequestIDHeaders, SleepMode bool
	// StoreResponses keeps the responses of /v1/responses, as vLLM does with VLLM_ENABLE_RESPONSES_API_STORE=1: they may be asked for, cancelled,
	// deleted and continued here and nowhere else, until the engine ends.
	StoreResponses bool
	// Kind is the engine that it is: engine.VLLM, which is meant by "", or engine.SGLang.
	Kind engine.Kind
	// Events is where the event log is written; nil means nowhere.
	Events io.Writer
	// Listener is where Run serves; Run closes it. nil means that the caller serves Handler itself.
	Listener net.Listener
}

// Adapter is a LoRA adapter: the name that it is served by, and where its weights are.
type Adapter struct {
	Name string
	// Path is a folder with adapter_config.json, or "sim:" or "sim:rank=N", which always exists. Loads of "sim:hang" are never answered, after those of
	// "sim:unlisted" the adapter is not listed, and of "sim:busy=N" so many are answered with 503 first.
	Path string
}

// Server is one simulated engine. Make it with New. Its methods are safe for concurrent use.
type Server struct {
	// Immutable after New.
	config   Config
	driver   *driver
	adapters *registry
	models   baseModels
	traffic  *traffic
	events   *Events
	born     time.Time

	requests atomic.Uint64 // numbered, for ids and faults
	inFlight atomic.Int64  // requests that ask the engine
	turns    turns         // of loads and unloads, by the adapter's name
	door     door
	stored   sync.Map      // the ids of responses
	killed   chan struct{} // closed by Kill
	kill     func()
}

// New checks the configuration and returns an engine with its adapters loaded. Nothing moves until Run.
func New(c Config) (*Server, error) {
	c = c.withDefaults()
	driver, err := newDriver(c)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if c.MaxModelLen > driver.sim.MaxTokens() {
		return nil, fmt.Errorf("engine: max-model-len %d: the KV cache of the profile holds %d tokens", c.MaxModelLen, driver.sim.MaxTokens())
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
		return nil, fmt.Errorf("engine: there is no simulated engine of the kind %q here", c.Kind)
	}
	if c.Events != nil {
		address := ""
		if c.Listener != nil {
			address = c.Listener.Addr().String()
		}
		s.events = NewEvents(c.Events, address)
	}
	for _, a := range c.Adapters {
		if err := s.preload(a); err != nil {
			return nil, fmt.Errorf("engine: lora-modules: %w", err)
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

// Kill lets Run end where a load hangs in an engine that is stopping, which nothing else does: as SIGKILL ends a vLLM.
func (s *Server) Kill() { s.kill() }

// Run drives the engine, and serves on Config.Listener where there is one, until ctx ends. Then it stops as vLLM does
// on SIGTERM: see Config.ShutdownTimeout. It returns when every request has ended, and leaves nothing behind; where a load
// came that hangs, only after Kill. It may be called once.
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
		return fmt.Errorf("engine: serve: %w", err)
	case <-ctx.Done():
	}
	if s.config.ShutdownTimeout == 0 {
		kill()
	}
	return s.stop(server)
}

// stop ends the server. With a timeout, requests in flight finish, new ones are answered with an error, and what is
// left when the time is over is cut off. Without one the driver is gone: requests in flight hang until their clients
// leave, and nobody new is let in.
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
		return fmt.Errorf("engine: shutdown: %w", err)
	}
	// Shutdown knows nothing of requests that came to Handler another way.
	<-s.door.empty
	return nil
}

// door counts the requests inside and knows when, after closing, the last one has left.
type door struct {
	mu     sync.Mutex // guards the fields below but empty
	inside int
	closed bool
	done   bool
	empty  chan struct{} // closed once, when the door is closed and nobody is inside
}

// enter counts one request in and reports whether the door is still open. The caller calls leave in either case.
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

// signal closes empty when it is time. The caller holds mu.
func (d *door) signal() {
	if d.closed && d.inside == 0 && !d.done {
		d.done = true
		close(d.empty)
	}
}
