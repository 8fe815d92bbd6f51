// Package llm is a simulated vLLM endpoint: the HTTP server of vLLM 0.32 around the step model of
// internal/sim, in real time. It computes nothing, but requests queue, share steps, use the prefix
// cache, wait for adapter slots and stream with the timing of a profile. So a gateway can be tested
// and measured without a GPU.
//
// Its wire format is checked against recordings of a real vLLM 0.32.0 (bench/testdata/vllm-0.32): a
// test replays every recorded request and compares status, headers and the shape of the body. It
// deliberately differs in these points, each a row in the table of the test:
//
//   - It serves embeddings, rerank, score, pooling, classify and audio in addition to chat; a vLLM
//     serves what its model supports. The answers of pooling and classify were not recorded: they
//     follow the code of 0.32.0.
//   - It has no render and token-in endpoints (403 in the recording). It answers 404 for the newer
//     endpoints that are not inference: kv_event_sources, systemone, generative_scoring and elastic
//     expert parallelism. /v1/responses stores no responses unless Config.StoreResponses is set.
//   - Its tokens have at most 4 bytes, so the limit in the error for long prompts differs.
//   - It has no LoRA resolver plugin: an adapter is served after it was loaded by name.
//
// It also differs in points that were not recorded. It rejects n greater than 1 and batches of
// completion prompts, and ignores logprobs, tools and penalties. During sleep, requests wait and
// keep their KV cache, where vLLM aborts them. Streams of /v1/messages follow Anthropic's
// specification, which vLLM implements only in part. Its own metrics start with sim:, never with
// vllm:.
//
// As SGLang (Config.Kind) it has SGLang's adapter API and metric names, from the documentation: no
// real SGLang was recorded. SGLang requires the name BASE:ADAPTER for an adapter; here the
// adapter's own name works too.
//
// A stream sends its headers immediately, and its first data chunk with the first token. So does
// vLLM, whose scheduler outputs nothing before the whole prompt is computed.
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

// ServedHeader is the response header with the endpoint that served the request, as HOST:PORT.
const ServedHeader = "X-Served-Endpoint"

// idleTimeout is the idle time after which vLLM closes a connection (VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
// default 5 s). A proxy that keeps connections for longer may send requests on closed ones.
const idleTimeout = 5 * time.Second

//go:embed default.yaml
var defaultProfile []byte

// DefaultProfile is the profile of a 70B model on four A100 GPUs, from internal/profile/testdata.
func DefaultProfile() profile.Profile {
	p, err := profile.Parse(defaultProfile)
	if err != nil {
		panic(fmt.Sprintf("engine: the embedded profile: %v", err))
	}
	return p
}

// Config configures an engine. The zero Config means an engine with DefaultProfile and the model
// "base", without a listener: the caller serves Handler.
type Config struct {
	// Profile has the latencies and limits of the engine; zero means DefaultProfile.
	Profile profile.Profile
	// Model is the model argument of vLLM, and the root of the base model in /v1/models; "" means
	// "base".
	Model string
	// ServedNames are the names of the base model, the main one first; empty means Model.
	ServedNames []string
	// MaxModelLen limits the sum of prompt and output tokens of a request. 0 means 4096, or the
	// size of the KV cache if that is smaller.
	MaxModelLen int
	// MaxLoRARank is the largest adapter rank; 0 means 16, as in vLLM.
	MaxLoRARank int
	// Adapters are the adapters that the engine loads when it starts.
	Adapters []Adapter
	// ShutdownTimeout is how long requests may continue after the context of Run ends. 0 is vLLM's
	// default: requests in flight hang until their clients give up.
	ShutdownTimeout time.Duration
	// ShutdownDelay is how long the server still answers after its last request has ended, within
	// ShutdownTimeout. A real vLLM takes some seconds to end its processes.
	ShutdownDelay time.Duration
	// MaxQueued limits the total of waiting and running requests; 0 means no limit.
	MaxQueued int
	// APIKey is the key that /v1 paths require; "" means that they require none.
	APIKey string
	// KeepAlive is the time without output after which a stream sends a comment; 0 means never.
	KeepAlive time.Duration
	// Faults are the faults that inference requests may suffer.
	Faults []Fault
	// Seed determines generated texts, ids, load times and faults.
	Seed uint64
	// RequestIDHeaders sets the header x-request-id on every response. SleepMode enables the paths
	// /sleep, /wake_up and /is_sleeping.
	RequestIDHeaders, SleepMode bool
	// StoreResponses stores the responses of /v1/responses until the engine ends, as vLLM does with
	// VLLM_ENABLE_RESPONSES_API_STORE=1. Only the engine that stored a response can get, cancel,
	// delete or continue it.
	StoreResponses bool
	// Kind is engine.VLLM or engine.SGLang; empty means engine.VLLM.
	Kind engine.Kind
	// Events is the event log; nil for none.
	Events *Events
	// Listener is where Run serves; Run closes it. If it is nil, the caller serves Handler.
	Listener net.Listener
}

// Adapter is a LoRA adapter: its name and the path of its weights.
type Adapter struct {
	Name string
	// Path is a directory with adapter_config.json, or a simulated path, which always exists:
	// "sim:" or "sim:rank=N". Simulated paths may name faults: a load of "sim:hang" is never
	// answered, an adapter at "sim:unlisted" is not listed after its load, and the first N loads of
	// "sim:busy=N" are answered with 503.
	Path string
}

// Server is a simulated engine. Create it with New. Its methods are safe for concurrent use.
type Server struct {
	// These fields do not change after New.
	config   Config
	driver   *driver
	adapters *registry
	models   baseModels
	traffic  *traffic
	born     time.Time

	requests atomic.Uint64 // number of requests so far; numbers them and selects those with a fault
	inFlight atomic.Int64  // number of requests that the engine has now
	turns    turns         // serializes loads and unloads of each adapter
	door     door
	stored   sync.Map      // set of the ids of stored responses
	killed   chan struct{} // closed by Kill
	kill     func()
}

// simulated reports whether this package simulates engines of a kind.
func simulated(kind engine.Kind) bool { return kind == engine.VLLM || kind == engine.SGLang }

// errKind returns the error for a kind that this package does not simulate.
func errKind(kind engine.Kind) error {
	return fmt.Errorf("there is no simulated engine of the kind %q here", kind)
}

// New checks the configuration and returns an engine that has loaded its adapters. Its clock starts
// when Run is called.
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
	if !simulated(c.Kind) {
		return nil, errKind(c.Kind)
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

// Kill makes Run return even if a load hangs in the stopping engine, as SIGKILL ends a vLLM.
func (s *Server) Kill() { s.kill() }

// Run runs the engine, and serves Config.Listener if it is set, until ctx ends. Then it stops as
// vLLM does on SIGTERM: see Config.ShutdownTimeout. It returns when every request has ended. If a
// load hangs, it returns only after Kill. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	alive, kill := context.WithCancel(context.Background())
	var owned sync.WaitGroup
	defer owned.Wait()
	defer kill()
	owned.Go(func() { s.driver.run(alive) })
	defer s.driver.cutOff()

	server := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	closeIdle(server)
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

// stop ends the server. With a ShutdownTimeout, requests in flight continue until it has passed,
// and new ones get an error. Without one, the driver has stopped: requests in flight hang until
// their clients disconnect, and new ones are rejected.
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
	// Shutdown does not wait for requests of a caller that serves Handler itself.
	<-s.door.empty
	return nil
}

// door counts the requests that are being served. After it is closed, it signals when the last one
// has ended.
type door struct {
	mu     sync.Mutex // guards the fields below, except empty
	inside int
	closed bool
	done   bool
	empty  chan struct{} // closed once, when the door is closed and no request is being served
}

// enter counts a request and reports whether the door is still open. The caller must call leave in
// either case.
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

// signal closes empty if the door is closed and no request is being served. The caller holds mu.
func (d *door) signal() {
	if d.closed && d.inside == 0 && !d.done {
		d.done = true
		close(d.empty)
	}
}
