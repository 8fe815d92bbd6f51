package loader

import (
	"cmp"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// The calls of a V2 model repository over gRPC.
const (
	repositoryService = "/inference.GRPCInferenceService/"
	indexMethod       = "RepositoryIndex"
	loadMethod        = "RepositoryModelLoad"
	unloadMethod      = "RepositoryModelUnload"
	readyMethod       = "ModelReady"
	liveMethod        = "ServerLive"
)

// grpcRepository calls a V2 model repository over gRPC, for engines with only a gRPC port. It
// converts answers to those of the same engine over HTTP, so that one set of rules interprets both.
// Answers were recorded from MLServer 1.7.1 and Triton 2.51.0.
//
// Over HTTP, both engines continue a load after its caller has disconnected. Over gRPC, MLServer
// cancels the load, and then lists a model forever that is not ready. So loads and unloads continue
// here when their context ends. If MLServer lists a model as loading, but no call of this process
// loads it, the model counts as not loaded. The next load replaces it.
type grpcRepository struct {
	Endpoint
	conn *grpc.ClientConn
	over context.Context // ended by Close
	end  context.CancelFunc

	mu    sync.Mutex     // guards loads
	loads map[string]int // calls in progress that load a model, by its name
}

func openGRPCRepository(e Endpoint, a engineclient.Access) (*grpcRepository, error) {
	at := cmp.Or(e.GRPC, e.Address)
	own, err := a.Config(e.Host, at)
	if err != nil {
		return nil, err
	}
	conn, err := connect(a, own, at, func(ctx context.Context) (net.Conn, error) { return a.DialContext(ctx, "tcp", at) })
	if err != nil {
		return nil, err
	}
	r := &grpcRepository{Endpoint: e, conn: conn, loads: make(map[string]int)}
	r.over, r.end = context.WithCancel(context.Background())
	return r, nil
}

func (r *grpcRepository) Close() error {
	r.end()
	return r.conn.Close()
}

// loading reports whether a call of this process is loading a model.
func (r *grpcRepository) loading(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loads[id] > 0
}

// count counts a call that loads a model, and returns a function that ends it.
func (r *grpcRepository) count(id string) (end func()) {
	add := func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.loads[id] += n; r.loads[id] == 0 {
			delete(r.loads, id)
		}
	}
	add(1)
	return func() { add(-1) }
}

// abandoned reports whether a model that MLServer lists as loading is left over from a canceled
// load.
func (r *grpcRepository) abandoned(id string) bool {
	return r.Kind == engine.MLServer && !r.loading(id)
}

func (r *grpcRepository) index(ctx context.Context) (answerText, error) {
	var index inference.RepositoryIndexResponse
	said, err := r.call(ctx, indexMethod, &inference.RepositoryIndexRequest{}, &index)
	if err != nil || said.status != http.StatusOK {
		return said, err
	}
	type entry struct {
		Name   string `json:"name"`
		State  string `json:"state"`
		Reason string `json:"reason"`
	}
	all := make([]entry, 0, len(index.GetModels()))
	for _, m := range index.GetModels() {
		state := m.GetState()
		if strings.HasSuffix(state, mlserverLoading) && r.abandoned(m.GetName()) {
			state = ""
		}
		all = append(all, entry{m.GetName(), state, m.GetReason()})
	}
	if said.body, err = json.Marshal(all); err != nil {
		return said, fault(Unclear, err.Error())
	}
	return said, nil
}

func (r *grpcRepository) live(ctx context.Context) (answerText, error) {
	return r.call(ctx, liveMethod, &inference.ServerLiveRequest{}, &inference.ServerLiveResponse{})
}

func (r *grpcRepository) about(ctx context.Context, c engine.RepositoryCall, id string) (answerText, error) {
	switch c {
	case engine.LoadCall:
		end := r.count(id)
		return r.onward(ctx, loadMethod, func(ctx context.Context) (answerText, error) {
			defer end()
			return r.call(ctx, loadMethod, &inference.RepositoryModelLoadRequest{ModelName: id}, &inference.RepositoryModelLoadResponse{})
		})
	case engine.UnloadCall:
		return r.onward(ctx, unloadMethod, func(ctx context.Context) (answerText, error) {
			return r.call(ctx, unloadMethod, &inference.RepositoryModelUnloadRequest{ModelName: id},
				&inference.RepositoryModelUnloadResponse{})
		})
	}
	var ready inference.ModelReadyResponse
	said, err := r.call(ctx, readyMethod, &inference.ModelReadyRequest{Name: id}, &ready)
	if err == nil && said.status == http.StatusOK && !ready.GetReady() {
		said.status = http.StatusBadRequest // as over HTTP: the engine has the model, and it is not ready
		if r.abandoned(id) {
			said.status = http.StatusNotFound
		}
	}
	return said, err
}

// onward makes a call that continues after ctx has ended, until Close.
func (r *grpcRepository) onward(ctx context.Context, method string, call func(context.Context) (answerText, error)) (answerText, error) {
	type result struct {
		said answerText
		err  error
	}
	done := make(chan result, 1)
	go func() {
		said, err := call(r.over)
		done <- result{said, err}
	}()
	select {
	case is := <-done:
		return is.said, is.err
	case <-ctx.Done():
		return answerText{}, fault(Unclear, method+": "+formatStatus(status.FromContextError(ctx.Err()).Err()))
	}
}

// call makes a call and returns the answer. Any code is an answer, except those of a call that did
// not reach the engine, or that ended before the answer.
func (r *grpcRepository) call(ctx context.Context, method string, request, response proto.Message) (answerText, error) {
	var to peer.Peer
	err := r.conn.Invoke(ctx, repositoryService+method, request, response, grpc.Peer(&to), grpc.MaxCallRecvMsgSize(maxPage))
	if err == nil {
		return answerText{answer: answer{status: http.StatusOK, known: true}, text: codes.OK.String()}, nil
	}
	words := method + ": " + formatStatus(err)
	said := status.Convert(err)
	switch code := said.Code(); {
	case unconnected(err, to), ctx.Err() != nil && to.Addr == nil:
		return answerText{}, fault(Unreached, words)
	case code == codes.Canceled || code == codes.DeadlineExceeded:
		return answerText{}, fault(Unclear, words)
	case code == codes.Unavailable && !strings.Contains(said.Message(), notExplicit):
		return answerText{}, transientFault(words) // the connection broke
	}
	body, err := json.Marshal(map[string]string{"error": said.Message()})
	if err != nil {
		return answerText{}, fault(Unclear, err.Error())
	}
	return answerText{
		answer: answer{status: httpStatus(said), words: said.Message(), known: true}, body: body, text: words,
	}, nil
}

// mlserverLoading is the state that MLServer lists for a model that is not ready.
const mlserverLoading = "UNKNOWN"

// notExplicit is in the answer of a Triton that does not allow loads.
const notExplicit = "explicit model load / unload is not allowed"

// httpStatuses are the statuses that the same engine answers with over HTTP.
var httpStatuses = map[codes.Code]int{
	codes.NotFound: http.StatusNotFound, codes.InvalidArgument: http.StatusBadRequest,
	codes.FailedPrecondition: http.StatusUnprocessableEntity,
	codes.Unimplemented:      http.StatusNotImplemented, codes.Unavailable: http.StatusServiceUnavailable,
	codes.Unauthenticated: http.StatusUnauthorized, codes.PermissionDenied: http.StatusForbidden,
	codes.ResourceExhausted: http.StatusTooManyRequests,
}

// httpStatus returns the status of an error's code. MLServer answers ModelReady for a model that is
// not loaded with UNKNOWN and the text of its own exception.
func httpStatus(said *status.Status) int {
	if said.Code() == codes.Unknown && strings.Contains(said.Message(), "ModelNotFound") {
		return http.StatusNotFound
	}
	return cmp.Or(httpStatuses[said.Code()], http.StatusInternalServerError)
}
