package loader

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// Time limits and intervals, as in ModelMesh.
const (
	statusPause    = 2 * time.Second        // interval between queries whether a runtime is ready
	predictTimeout = 500 * time.Millisecond // a prediction that takes longer is useless
	sizeTimeout    = 30 * time.Second
)

const unixScheme = "unix:"

// modelRuntime is the driver of a program that serves mmesh.ModelRuntime. Such a program cannot
// list its models. When it is asked whether it is ready, it unloads all of them, so the driver asks
// only once per incarnation.
type modelRuntime struct {
	Endpoint
	access  engineclient.Access
	network string // network of address: "tcp" or "unix"
	address string
	conn    *grpc.ClientConn
	calls   mmesh.ModelRuntimeClient
	peer    func(net.Conn) string // identifies the process at the other end of a connection; empty if unknown

	dialled atomic.Int64       // number of connections opened so far
	reports lifeReports        // which connections are to an agent
	ended   atomic.Bool        // a dial was refused since the runtime was last made ready, so its process has ended
	stop    context.CancelFunc // stops redial

	looking chan struct{}     // capacity 1: full during a scrape; never closed
	mu      sync.Mutex        // guards life
	life    *incarnationState // incarnation at the last scrape; nil before the first
}

// incarnationState is what is known about one incarnation of a runtime.
type incarnationState struct {
	incarnation string
	limits      Limits

	// connection is the number of the connection over which the runtime was made ready.
	connection int64

	mu           sync.Mutex // guards the fields below
	doubtful     bool       // see [ScrapeResult.Doubtful]
	unpredicting bool       // the runtime does not implement predictions
}

func openRuntime(e Endpoint, a engineclient.Access) (*modelRuntime, error) {
	if e.Management == "" {
		return nil, errors.New("a model runtime needs an address to manage it at: set spec.management of its EndpointList, or spec.placement.management of the pool's PoolSettings")
	}
	r := &modelRuntime{Endpoint: e, access: a, network: "tcp", address: e.Management, peer: peerProcess, looking: make(chan struct{}, 1)}
	authority := e.Management
	var own *tls.Config
	var err error
	if path, ok := strings.CutPrefix(e.Management, unixScheme); ok {
		r.network, r.address, authority = "unix", path, "localhost"
	} else if own, err = a.Config(e.Host, e.Management); err != nil {
		return nil, err
	}
	r.conn, err = connect(a, own, authority, func(ctx context.Context) (net.Conn, error) {
		conn, err := r.dial(ctx)
		if err == nil {
			r.dialled.Add(1)
		}
		return conn, err
	})
	if err != nil {
		return nil, err
	}
	r.calls = mmesh.NewModelRuntimeClient(r.conn)
	running, stop := context.WithCancel(context.Background())
	r.stop = stop
	go r.redial(running)
	return r, nil
}

func (r *modelRuntime) Close() error {
	r.stop()
	return r.conn.Close()
}

func (r *modelRuntime) dial(ctx context.Context) (net.Conn, error) {
	conn, err := r.access.DialContext(ctx, r.network, r.address)
	// One refusal is enough. The kernel refuses a connection only if no process listens, and a
	// runtime listens until it ends. If it was a firewall that refused, control needlessly makes
	// the runtime ready and loads its models again.
	if errors.Is(err, syscall.ECONNREFUSED) {
		r.ended.Store(true)
	}
	return conn, err
}

// redial dials again as soon as a connection breaks, until ctx ends. If the process has ended, the
// new dial is refused, unless the next process already listens.
func (r *modelRuntime) redial(ctx context.Context) {
	for state := r.conn.GetState(); r.conn.WaitForStateChange(ctx, state); {
		was := state
		if state = r.conn.GetState(); was == connectivity.Ready && state == connectivity.Idle {
			r.conn.Connect()
		}
	}
}

// incarnation identifies the runtime at the address: by the life that an agent reports, else by its
// container, if known, else by the process at the other end of its socket.
func (r *modelRuntime) incarnation(ctx context.Context) (string, error) {
	conn, err := r.dial(ctx)
	if err != nil {
		return "", fault(Unreached, err.Error())
	}
	defer conn.Close()
	if life, err := r.reportedLife(ctx); life != "" || err != nil {
		return life, err
	}
	if r.Incarnation != "" {
		return r.Incarnation, nil
	}
	return r.peer(conn), nil
}

// Scrape makes the runtime ready if its present incarnation has no record.
func (r *modelRuntime) Scrape(ctx context.Context, record Record) (ScrapeResult, error) {
	select {
	case r.looking <- struct{}{}:
		defer func() { <-r.looking }()
	case <-ctx.Done():
		return ScrapeResult{}, fault(Unreached, "control did not ask the engine: "+ctx.Err().Error())
	}
	if strings.HasPrefix(record.Incarnation, LifePrefix) {
		r.reports.expected.Store(true)
	}
	incarnation, err := r.incarnation(ctx)
	known := r.current()
	if err != nil {
		if known != nil && known.incarnation == "" {
			known.doubt()
		}
		return ScrapeResult{}, err
	}
	anew := record.Restarted || incarnation == "" && r.ended.Load()
	if known != nil && known.incarnation == incarnation && !anew {
		if incarnation == "" {
			r.watch(known)
		}
		return known.seen(), nil
	}
	now := &incarnationState{incarnation: incarnation, limits: record.Limits}
	// If it is unknown whether this is the recorded incarnation, trust the record: a readiness
	// query would unload models that the runtime serves.
	purged := !record.Known || anew || record.Incarnation != incarnation && record.Incarnation != "" && incarnation != ""
	if purged {
		ended := r.ended.Swap(false)
		if now.limits, err = r.makeReady(ctx); err == nil {
			if after, gone := r.incarnation(ctx); gone != nil || after != incarnation {
				err = fault(Unclear, "the runtime restarted before it was ready")
			}
		}
		if err != nil {
			r.ended.CompareAndSwap(false, ended)
			return ScrapeResult{}, err
		}
		r.awaitState(ctx)
		now.connection = r.dialled.Load()
	} else if incarnation == "" { // without a connection, a restart may have gone unnoticed
		now.doubt()
	}
	if incarnation == "" {
		r.watch(now)
	}
	r.mu.Lock()
	r.life = now
	r.mu.Unlock()
	seen := now.seen()
	seen.Purged = purged
	return seen, nil
}

// awaitState waits until gRPC has reported the state of a new connection. Calls already succeed a
// moment before gRPC reports the connection as ready.
func (r *modelRuntime) awaitState(ctx context.Context) {
	for r.conn.GetState() == connectivity.Connecting && r.conn.WaitForStateChange(ctx, connectivity.Connecting) {
	}
}

// watch marks the incarnation as doubtful if the connection over which the runtime was made ready
// no longer exists, and reconnects. It is for runtimes whose restarts nothing else shows.
func (r *modelRuntime) watch(l *incarnationState) {
	if r.conn.GetState() != connectivity.Ready || r.dialled.Load() != l.connection {
		l.doubt()
	}
	r.conn.Connect()
}

func (r *modelRuntime) current() *incarnationState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.life
}

func (l *incarnationState) seen() ScrapeResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ScrapeResult{Takes: true, Incarnation: l.incarnation, Limits: l.limits, Doubtful: l.doubtful}
}

func (l *incarnationState) doubt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubtful = true
}

// makeReady queries the runtime until it is ready. The first query unloads its models.
func (r *modelRuntime) makeReady(ctx context.Context) (Limits, error) {
	for {
		s, err := r.calls.RuntimeStatus(ctx, &mmesh.RuntimeStatusRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return Limits{}, fault(Unclear, "runtimeStatus: "+formatStatus(err))
		}
		if s.GetStatus() == mmesh.RuntimeStatusResponse_READY {
			methods, err := methodsOf(s)
			if err != nil {
				return Limits{}, fault(Unclear, "runtimeStatus: methodInfos: "+err.Error())
			}
			return Limits{
				Bytes: int64(s.GetCapacityInBytes()), DefaultBytes: int64(s.GetDefaultModelSizeInBytes()),
				Loads:       max(1, int(s.GetMaxLoadingConcurrency())),
				LoadTimeout: time.Duration(s.GetModelLoadingTimeoutMs()) * time.Millisecond,
				Methods:     methods, LimitsConcurrency: s.GetLimitModelConcurrency(),
			}, nil
		}
		if !wait(ctx, statusPause) {
			return Limits{}, fault(Unclear, fmt.Sprintf("the runtime is not ready: it says %v: %v", s.GetStatus(), ctx.Err()))
		}
	}
}

// methodsOf returns the gRPC methods that a runtime serves.
func methodsOf(s *mmesh.RuntimeStatusResponse) (engine.Methods, error) {
	paths := make(map[string][]uint32, len(s.GetMethodInfos()))
	for method, info := range s.GetMethodInfos() {
		paths[method] = info.GetIdInjectionPath()
	}
	return engine.MethodsOf(paths, s.GetAllowAnyMethod())
}

// Load loads a model into the incarnation that was last scraped; another incarnation must be made
// ready first.
func (r *modelRuntime) Load(ctx context.Context, m Model) (Loaded, error) {
	known := r.current()
	if known == nil {
		return Loaded{}, fault(Unreached, "control has not looked at the runtime yet")
	}
	switch now, err := r.incarnation(ctx); {
	case err != nil:
		return Loaded{}, err
	case now != known.incarnation, now == "" && r.ended.Load():
		return Loaded{}, fault(Unreached, "the runtime restarted, and control has not looked at it since")
	}
	var to peer.Peer
	var header metadata.MD
	answer, err := r.calls.LoadModel(ctx, &mmesh.LoadModelRequest{
		ModelId: m.ID, ModelType: m.Type, ModelPath: m.Source, ModelKey: m.Info,
	}, grpc.Peer(&to), grpc.Header(&header))
	if err != nil {
		return Loaded{}, failed("loadModel", err, to)
	}
	if life := lifeIn(header); life != "" && life != known.incarnation {
		return Loaded{}, transientFault("the engine restarted during the load")
	}
	if r.current() != known {
		return Loaded{}, fault(Unclear, "control made the runtime ready again during the load")
	}
	loaded := Loaded{Bytes: int64(answer.GetSizeInBytes())}
	if known.limits.LimitsConcurrency {
		// A runtime that reports no limit gets one request at a time, as in ModelMesh. A limit
		// above any real concurrency means no limit.
		loaded.Concurrency = min(max(1, int(answer.GetMaxConcurrency())), maxConcurrency)
	}
	return loaded, nil
}

// maxConcurrency is the largest limit of a copy.
const maxConcurrency = 1 << 20

// Unload unloads a model. If the runtime does not have the model, it answers OK or NOT_FOUND; both
// are success.
func (r *modelRuntime) Unload(ctx context.Context, id string) error {
	var to peer.Peer
	_, err := r.calls.UnloadModel(ctx, &mmesh.UnloadModelRequest{ModelId: id}, grpc.Peer(&to))
	if err == nil || status.Code(err) == codes.NotFound {
		return nil
	}
	if e := failed("unloadModel", err, to); e.Outcome == Unreached {
		return e
	}
	return fault(Unclear, "unloadModel: "+formatStatus(err))
}

// Predict asks for an estimate. A runtime that does not implement predictions is not asked again in
// this incarnation.
func (r *modelRuntime) Predict(ctx context.Context, m Model) (int64, error) {
	known := r.current()
	if known == nil || known.silent() {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, predictTimeout)
	defer cancel()
	var to peer.Peer
	answer, err := r.calls.PredictModelSize(ctx, &mmesh.PredictModelSizeRequest{
		ModelId: m.ID, ModelType: m.Type, ModelPath: m.Source, ModelKey: m.Info,
	}, grpc.Peer(&to))
	if status.Code(err) == codes.Unimplemented {
		known.silence()
		return 0, nil
	}
	if err != nil {
		return 0, failed("predictModelSize", err, to)
	}
	return int64(answer.GetSizeInBytes()), nil
}

func (l *incarnationState) silent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unpredicting
}

func (l *incarnationState) silence() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unpredicting = true
}

// Size asks for the size of a loaded model in bytes.
func (r *modelRuntime) Size(ctx context.Context, id string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, sizeTimeout)
	defer cancel()
	var to peer.Peer
	answer, err := r.calls.ModelSize(ctx, &mmesh.ModelSizeRequest{ModelId: id}, grpc.Peer(&to))
	if status.Code(err) == codes.Unimplemented {
		return 0, nil
	}
	if err != nil {
		return 0, failed("modelSize", err, to)
	}
	return int64(answer.GetSizeInBytes()), nil
}

// failed converts a failed call to an Error. By the rules of the interface, two codes mean that the
// runtime did not try. With any other code, the outcome is unclear. A call that had no connection
// has no peer.
func failed(method string, err error, to peer.Peer) *Error {
	words := method + ": " + formatStatus(err)
	switch code := status.Code(err); {
	case code == codes.FailedPrecondition || code == codes.InvalidArgument:
		return fault(Refused, words)
	case unconnected(err, to):
		return fault(Unreached, words)
	case code == codes.Unavailable || code == codes.Aborted:
		return transientFault(words)
	}
	return fault(Unclear, words)
}
