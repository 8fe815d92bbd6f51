package serve

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/extproc/accesslog"
	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/payload"
	"github.com/headgate/headgate/extproc/stream"
)

func TestHealthReportsDrainingFirst(t *testing.T) {
	h := newHealth()
	if got := h.status("readiness").GetStatus(); got != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("before: %v", got)
	}
	h.drain()
	h.drain()
	for service, want := range map[string]healthv1.HealthCheckResponse_ServingStatus{
		"": healthv1.HealthCheckResponse_NOT_SERVING, "readiness": healthv1.HealthCheckResponse_NOT_SERVING,
		"envoy.service.ext_proc.v3.ExternalProcessor": healthv1.HealthCheckResponse_NOT_SERVING,
		"liveness": healthv1.HealthCheckResponse_SERVING,
	} {
		if got := h.status(service).GetStatus(); got != want {
			t.Errorf("%q is %v, want %v", service, got, want)
		}
	}
}

// TLS is used on all addresses except loopback, unless TLS is turned off.
func TestTLSOfAddresses(t *testing.T) {
	for _, c := range []struct {
		secure, local bool
	}{{true, true}, {true, false}, {false, false}} {
		server, err := Config{Secure: c.secure, Exchanges: stream.New(stream.Config{}), Log: slog.Default()}.server(newHealth(), c.local,
			stream.Gateway)
		if err != nil {
			t.Fatal(err)
		}
		l, err := Listen("grpc-port", "127.0.0.1", 0)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = server.Serve(l) }()
		creds := insecure.NewCredentials()
		if c.secure && !c.local {
			creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // as gateways do
		}
		conn, err := grpc.NewClient("passthrough:"+l.Addr().String(), grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%+v: %v, %v", c, answer, err)
		}
		cancel()
		_ = conn.Close()
		server.Stop()
	}
}

// Servers for Headgate's own Envoys read access-log records, and decode other messages as usual.
func TestOwnEnvoysSendRecords(t *testing.T) {
	got := make(chan outcome.Outcome, 1)
	c := Config{
		Exchanges: stream.New(stream.Config{}), Payloads: payload.New(payload.Config{}), Endpoints: eds.New(slog.New(slog.DiscardHandler)),
		Outcomes: accesslog.NewServer(func(o outcome.Outcome) { got <- o }, nil), Log: slog.New(slog.DiscardHandler),
	}
	server, err := c.server(newHealth(), true, stream.Own)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen("grpc-port", "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", answer, err)
	}
	records, err := accesslogv3.NewAccessLogServiceClient(conn).StreamAccessLogs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := records.Send(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{
			LogEntry: []*accesslogdatav3.HTTPAccessLogEntry{{
				Response: &accesslogdatav3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(200)},
			}},
		},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := records.CloseAndRecv(); err != nil {
		t.Fatalf("the stream ends with %v", err)
	}
	if o := <-got; o.Status != 200 {
		t.Errorf("the outcome is %+v", o)
	}
}

// If one address cannot be opened, Run closes the others and returns the error at once.
func TestRunServesAllAddressesOrNone(t *testing.T) {
	taken, err := Listen("grpc-health-port", "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	socket := filepath.Join(t.TempDir(), "own.sock")
	c := Config{
		Own: []string{"unix:" + socket}, Host: "127.0.0.1", HealthPort: taken.Addr().(*net.TCPAddr).Port, DrainDelay: time.Hour,
		Opened: func() { t.Error("Opened is called") }, Exchanges: stream.New(stream.Config{}),
		Outcomes: accesslog.NewServer(nil, nil), Endpoints: eds.New(slog.New(slog.DiscardHandler)), Payloads: payload.New(payload.Config{}),
		Log: slog.New(slog.DiscardHandler),
	}
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--grpc-health-port") { // else Run would serve an hour
		t.Errorf("it ends with %v", err)
	}
	if _, err := net.Dial("unix", socket); err == nil {
		t.Error("its socket is open")
	}
}

// If ctx ends before Run serves, Run returns no error, although it has opened the address.
func TestEndAtTheStartIsNoFault(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		socket, opened := filepath.Join(t.TempDir(), "own.sock"), false
		c := Config{
			Own: []string{"unix:" + socket}, Port: -1, HealthPort: -1,
			Opened: func() {
				conn, err := net.Dial("unix", socket)
				if opened = err == nil; opened {
					_ = conn.Close()
				}
			},
			Exchanges: stream.New(stream.Config{}), Outcomes: accesslog.NewServer(nil, nil),
			Endpoints: eds.New(slog.New(slog.DiscardHandler)), Payloads: payload.New(payload.Config{}), Log: slog.New(slog.DiscardHandler),
		}
		if err := c.Run(ctx); err != nil {
			t.Fatalf("it ends with %v", err)
		}
		if !opened {
			t.Fatal("Opened is not called, or the address is not open")
		}
	}
}
