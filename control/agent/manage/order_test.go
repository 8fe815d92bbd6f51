package manage

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
)

// fakeEngine is an [Engine] whose calls wait for the test.
type fakeEngine struct {
	Engine
	mu     sync.Mutex
	events []string
	marks  []string
	steps  map[string]chan error // by event "load ID" or "unload ID": its end; missing: at once
	begun  chan string
}

func newEngine() *fakeEngine {
	return &fakeEngine{marks: []string{"one"}, steps: make(map[string]chan error), begun: make(chan string, 10)}
}

func (e *fakeEngine) run(ctx context.Context, what string) error {
	e.mu.Lock()
	e.events = append(e.events, what)
	step := e.steps[what]
	e.mu.Unlock()
	if step == nil {
		return nil
	}
	e.begun <- what
	select {
	case err := <-step:
		return err
	case <-ctx.Done():
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events = append(e.events, what+" ends")
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (e *fakeEngine) Look(context.Context) (Sight, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Sight{Marks: e.marks}, nil
}

func (e *fakeEngine) Status(context.Context, *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error) {
	return &mmesh.RuntimeStatusResponse{Status: mmesh.RuntimeStatusResponse_READY, CapacityInBytes: 1}, nil
}

func (e *fakeEngine) Load(ctx context.Context, q *mmesh.LoadModelRequest, _ Local) (*mmesh.LoadModelResponse, error) {
	return &mmesh.LoadModelResponse{}, e.run(ctx, "load "+q.GetModelId())
}

func (e *fakeEngine) Unload(ctx context.Context, q *mmesh.UnloadModelRequest) error {
	return e.run(ctx, "unload "+q.GetModelId())
}

func (e *fakeEngine) Recall([]loader.Model) {}
func (e *fakeEngine) Quit()                 {}
func (e *fakeEngine) Close() error          { return nil }

// readyAgent returns an agent of an engine that is ready.
func readyAgent(t *testing.T, c Config, e Engine) (*agentProcess, mmesh.ModelRuntimeClient) {
	t.Helper()
	agent := newAgent(t, c, func() Engine { return e })
	client := calls(t, agent.address)
	if _, err := client.RuntimeStatus(t.Context(), &mmesh.RuntimeStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	return agent, client
}

// result runs a call in the background, and returns a channel with its code.
func result(client mmesh.ModelRuntimeClient, ctx context.Context, what, id string) chan codes.Code {
	done := make(chan codes.Code, 1)
	go func() {
		var err error
		if what == "load" {
			_, err = client.LoadModel(ctx, &mmesh.LoadModelRequest{ModelId: id, ModelPath: "fetch:x"})
		} else {
			_, err = client.UnloadModel(ctx, &mmesh.UnloadModelRequest{ModelId: id})
		}
		done <- status.Code(err)
	}()
	return done
}

// A load that comes during an unload of the model waits for it. A call for another model does not.
func TestCallsForOneModelRunInOrder(t *testing.T) {
	engine := newEngine()
	engine.steps["unload a"] = make(chan error)
	agent, client := readyAgent(t, Config{}, engine)
	if code := <-result(client, t.Context(), "load", "a"); code != codes.OK {
		t.Fatal(code)
	}
	unloading := result(client, t.Context(), "unload", "a")
	<-engine.begun
	loading := result(client, t.Context(), "load", "a")
	if code := <-result(client, t.Context(), "load", "b"); code != codes.OK {
		t.Errorf("a load of another model: %v", code)
	}
	engine.steps["unload a"] <- nil
	if a, b := <-unloading, <-loading; a != codes.OK || b != codes.OK {
		t.Errorf("the unload: %v, the load: %v", a, b)
	}
	if want := []string{"load a", "unload a", "load b", "load a"}; !slices.Equal(engine.events, want) {
		t.Errorf("%q, want %q", engine.events, want)
	}
	for _, id := range []string{"a", "b"} {
		delete(engine.steps, "unload a")
		if code := <-result(client, t.Context(), "unload", id); code != codes.OK {
			t.Errorf("an unload of %s: %v", id, code)
		}
	}
	empty(t, agent)
}

// A load ends where it is when its caller leaves, or when an unload of the model comes: during the
// fetch or in the engine. Nothing is left.
func TestLoadsEnd(t *testing.T) {
	for _, during := range []string{"fetch", "engine"} {
		for _, by := range []string{"caller", "unload"} {
			t.Run(during+"/"+by, func(t *testing.T) {
				engine, storage := newEngine(), newStorage()
				engine.steps["load a"] = make(chan error)
				if during == "fetch" {
					storage.hold = make(chan struct{})
				}
				agent, client := readyAgent(t, Config{Storage: storage}, engine)
				ctx, cancel := context.WithCancel(t.Context())
				loading := result(client, ctx, "load", "a")
				if during == "fetch" {
					<-storage.begun
				} else {
					<-engine.begun
				}
				want := codes.Aborted
				if by == "caller" {
					cancel()
					want = codes.Canceled
				}
				if code := <-result(client, t.Context(), "unload", "a"); code != codes.OK {
					t.Errorf("the unload: %v", code)
				}
				if code := <-loading; code != want {
					t.Errorf("the load: %v, want %v", code, want)
				}
				cancel()
				events := []string{"load a", "load a ends", "unload a"}
				if during == "fetch" {
					events = events[2:]
				}
				if !slices.Equal(engine.events, events) || len(storage.Models()) > 0 {
					t.Errorf("%q, want %q; the files of %q are left", engine.events, events, storage.Models())
				}
				empty(t, agent)
			})
		}
	}
}

// A load that fails leaves no files. Its code has the meaning for control that the failure has.
func TestLoadsFail(t *testing.T) {
	for _, c := range []struct {
		name   string
		fetch  error
		engine error
		code   codes.Code
		left   int // models that an unload must follow
	}{
		{"a source that is not there", &FetchError{Message: "s3://b/p is not there"}, nil, codes.FailedPrecondition, 0},
		{"a busy store", &FetchError{Message: "s3://b/p: 503", Transient: true}, nil, codes.Unavailable, 0},
		{"another error", errors.New("broken"), nil, codes.Unknown, 0},
		{"a refusal", nil, status.Error(codes.InvalidArgument, "no"), codes.InvalidArgument, 0},
		{"a failure", nil, status.Error(codes.Internal, "no"), codes.Internal, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine, storage := newEngine(), newStorage()
			storage.fail = c.fetch
			if c.engine != nil {
				engine.steps["load a"] = make(chan error, 1)
				engine.steps["load a"] <- c.engine
			}
			agent, client := readyAgent(t, Config{Storage: storage}, engine)
			_, err := load("a", "fetch:x")(client)
			if status.Code(err) != c.code || c.fetch != nil && !strings.Contains(err.Error(), c.fetch.Error()) {
				t.Errorf("%v, want %v", err, c.code)
			}
			if n := len(agent.current().models); len(storage.Models()) > 0 || n != c.left {
				t.Errorf("the files of %q are left, and %d models, want %d", storage.Models(), n, c.left)
			}
			if c.fetch != nil && len(engine.events) > 0 {
				t.Errorf("the engine got %q", engine.events)
			}
			if code := <-result(client, t.Context(), "unload", "a"); code != codes.OK {
				t.Error(code)
			}
			empty(t, agent)
		})
	}
}

// A fetch that does not end before the deadline of its call fails with its own words, and may be
// tried again.
func TestFetchesEndBeforeTheirCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storage := newStorage()
		storage.hold = make(chan struct{})
		s, err := New(Config{Engine: newEngine(), Storage: storage, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.RuntimeStatus(t.Context(), &mmesh.RuntimeStatusRequest{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = s.LoadModel(ctx, &mmesh.LoadModelRequest{ModelId: "a", ModelPath: "fetch:x"})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "interrupted: ") || ctx.Err() != nil {
			t.Errorf("the load: %v", err)
		}
		if len(storage.Models()) > 0 || len(s.current().models) > 0 {
			t.Errorf("files of %q and %d models are left", storage.Models(), len(s.current().models))
		}
	})
}

// An unload that the engine does not do keeps the files, and the next one removes them.
func TestUnloadsFail(t *testing.T) {
	engine, storage := newEngine(), newStorage()
	engine.steps["unload a"] = make(chan error, 1)
	engine.steps["unload a"] <- status.Error(codes.Internal, "busy")
	agent, client := readyAgent(t, Config{Storage: storage}, engine)
	for i, c := range []struct {
		what string
		code codes.Code
		left int
	}{{"load", codes.OK, 1}, {"unload", codes.Internal, 1}, {"unload", codes.OK, 0}} {
		if i == 2 {
			engine.steps["unload a"] <- nil
		}
		if code := <-result(client, t.Context(), c.what, "a"); code != c.code || len(storage.Models()) != c.left {
			t.Errorf("%s: %v, want %v; the files of %q are left", c.what, code, c.code, storage.Models())
		}
	}
	empty(t, agent)
}

// A call without the pool's token is refused, but a probe is answered. Every answer has the life.
func TestToken(t *testing.T) {
	token := "one"
	agent := newAgent(t, Config{Token: func() string { return token }}, func() Engine { return newEngine() })
	conn, err := grpc.NewClient(agent.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	try := func(sent string) (codes.Code, metadata.MD) {
		ctx := t.Context()
		if sent != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", sent)
		}
		var header metadata.MD
		_, err := mmesh.NewModelRuntimeClient(conn).RuntimeStatus(ctx, &mmesh.RuntimeStatusRequest{}, grpc.Header(&header))
		return status.Code(err), header
	}
	for sent, want := range map[string]codes.Code{
		"": codes.Unauthenticated, "Bearer two": codes.Unauthenticated, "one": codes.Unauthenticated, "Bearer ": codes.Unauthenticated,
		"Bearer one": codes.OK,
	} {
		if code, header := try(sent); code != want || len(header.Get(loader.IncarnationHeader)) != 1 {
			t.Errorf("%q: %v, want %v; header %v", sent, code, want, header)
		}
	}
	token = "two"
	if code, _ := try("Bearer one"); code != codes.Unauthenticated {
		t.Errorf("the old token: %v", code)
	}
	var header metadata.MD
	is, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}, grpc.Header(&header))
	if err != nil || is.GetStatus() != healthv1.HealthCheckResponse_SERVING || len(header.Get(loader.IncarnationHeader)) != 1 {
		t.Errorf("a probe: %v, %v, %v", is, header, err)
	}
}
