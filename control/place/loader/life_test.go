package loader

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/simulated/runtime"
	"github.com/headgate/headgate/internal/engineclient"
)

// agent is a runtime behind an agent: it reports a life with every answer.
type agent struct {
	*runtime.Runtime
	healthv1.UnimplementedHealthServer

	mu     sync.Mutex
	life   string // empty: none is reported
	health healthv1.HealthCheckResponse_ServingStatus
	fail   error  // the error of health checks
	next   string // the life after the next load
	checks int
}

func (a *agent) Check(context.Context, *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checks++
	return &healthv1.HealthCheckResponse{Status: a.health}, a.fail
}

func (a *agent) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func (a *agent) intercept(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, q)
	a.mu.Lock()
	defer a.mu.Unlock()
	if info.FullMethod == mmesh.ModelRuntime_LoadModel_FullMethodName && a.next != "" {
		a.life, a.next = a.next, ""
	}
	if a.life != "" {
		_ = grpc.SetHeader(ctx, metadata.Pairs(IncarnationHeader, a.life))
	}
	return answer, err
}

// serveAgent serves an agent at a port, and returns a Loader for it in a pod with known containers.
func serveAgent(t *testing.T, life string, health bool) (*agent, *Loader) {
	t.Helper()
	a := &agent{
		Runtime: runtime.New(runtime.Config{Capacity: 1 << 30, DefaultSize: 1, LoadingThreads: 1, LoadTimeout: time.Minute}), life: life,
		health: healthv1.HealthCheckResponse_SERVING,
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(a.intercept))
	mmesh.RegisterModelRuntimeServer(server, a)
	if health {
		healthv1.RegisterHealthServer(server, a)
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	to, err := Open(Endpoint{Address: "127.0.0.1:1", Management: l.Addr().String(), Incarnation: "containers"}, engineclient.Access{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = to.Close() })
	return a, to
}

// The life that an agent reports is the incarnation, whatever containers the pod has. Another life
// is another engine.
func TestAgentsReportLives(t *testing.T) {
	a, l := serveAgent(t, LifePrefix+"1", true)
	seen, record := look(t, l, Record{})
	if seen.Incarnation != LifePrefix+"1" || !seen.Purged {
		t.Errorf("the first look sees %+v", seen)
	}
	if seen, _ := look(t, l, record); seen.Purged || a.Purges() != 1 {
		t.Errorf("the second look sees %+v after %d purges", seen, a.Purges())
	}
	if _, err := l.Load(t.Context(), Model{ID: "x", Source: "sim:"}, testTimeout); err != nil {
		t.Error(err)
	}
	a.set(func() { a.life = LifePrefix + "2" })
	_, err := l.Load(t.Context(), Model{ID: "y", Source: "sim:"}, testTimeout)
	if fault := faultOf(err); fault == nil || fault.Outcome != Unreached {
		t.Errorf("a load in a life that was not looked at: %v", err)
	}
	if seen, record = look(t, l, record); seen.Incarnation != LifePrefix+"2" || !seen.Purged || a.Purges() != 2 {
		t.Errorf("a look at another life sees %+v after %d purges", seen, a.Purges())
	}
	a.set(func() { a.next = LifePrefix + "3" })
	loaded, err := l.driver.Load(t.Context(), Model{ID: "z", Source: "sim:"})
	if fault := faultOf(err); fault == nil || fault.Outcome != Unclear || !fault.Transient {
		t.Errorf("a load during which the engine restarts: %+v, %v", loaded, err)
	}
	if seen, _ = look(t, l, record); seen.Incarnation != LifePrefix+"3" {
		t.Errorf("the last look sees %+v", seen)
	}
}

// An agent whose engine is gone, or that fails, is not taken for a runtime without an agent: that
// would be another incarnation, and its models would be purged.
func TestAgentsWithoutAnEngine(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(a *agent)
		outcome Outcome
	}{
		{"the engine is gone", func(a *agent) { a.health = healthv1.HealthCheckResponse_NOT_SERVING }, Unreached},
		{"the engine is slow", func(a *agent) { a.fail = status.Error(codes.Unavailable, "no answer") }, Unclear},
		{"it reports nothing", func(a *agent) { a.life, a.fail = "", status.Error(codes.Unavailable, "no") }, Unclear},
		{"it reports nothing, for another reason", func(a *agent) { a.life, a.fail = "", status.Error(codes.Internal, "no") }, Unclear},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, recorded := range []bool{false, true} { // whether this Loader has met the agent, or knows it from a record
				a, l := serveAgent(t, LifePrefix+"1", true)
				record := Record{Known: true, Incarnation: LifePrefix + "1"}
				if !recorded {
					_, record = look(t, l, Record{})
				}
				purges := a.Purges()
				a.set(func() { c.change(a) })
				_, err := l.Scrape(t.Context(), record)
				if fault := faultOf(err); fault == nil || fault.Outcome != c.outcome {
					t.Errorf("recorded %t: %v, want %v", recorded, err, c.outcome)
				}
				a.set(func() { a.life, a.fail, a.health = LifePrefix+"1", nil, healthv1.HealthCheckResponse_SERVING })
				if seen, _ := look(t, l, record); seen.Purged || a.Purges() != purges {
					t.Errorf("recorded %t: the look after it sees %+v", recorded, seen)
				}
			}
		})
	}
}

// A runtime without an agent is asked once over each connection, whether it serves health checks or
// not. Its incarnation is that of the pod's containers.
func TestRuntimesWithoutAnAgent(t *testing.T) {
	for _, health := range []bool{false, true} {
		a, l := serveAgent(t, "", health)
		seen, record := look(t, l, Record{})
		for range 3 {
			if seen, _ = look(t, l, record); seen.Incarnation != "containers" || seen.Purged {
				t.Errorf("health %t: a look sees %+v", health, seen)
			}
		}
		if _, err := l.Load(t.Context(), Model{ID: "x", Source: "sim:"}, testTimeout); err != nil {
			t.Error(err)
		}
		if want := map[bool]int{true: 1}[health]; a.checks != want || a.Purges() != 1 {
			t.Errorf("health %t: %d checks and %d purges, want %d and 1", health, a.checks, a.Purges(), want)
		}
	}
}

// A runtime that takes the place of an agent is another engine, although it reports no life.
func TestRuntimesInPlaceOfAgents(t *testing.T) {
	for _, fail := range []error{nil, status.Error(codes.Unimplemented, "no")} {
		a, l := serveAgent(t, LifePrefix+"1", true)
		_, record := look(t, l, Record{})
		a.set(func() { a.life, a.fail = "", fail })
		if seen, _ := look(t, l, record); seen.Incarnation != "containers" || !seen.Purged {
			t.Errorf("%v: the look sees %+v", fail, seen)
		}
	}
}
