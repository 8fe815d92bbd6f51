package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/stream"
)

// serve serves Envoy on every listener until ctx ends and the requests in flight have, or the drain timeout has passed.
func serve(ctx context.Context, c config, s extprocv3.ExternalProcessorServer, outcomes accesslogv3.AccessLogServiceServer, log *slog.Logger) error {
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(stream.MaxMessage),
		grpc.MaxConcurrentStreams(1<<20), // one for each HTTP request in flight
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	extprocv3.RegisterExternalProcessorServer(server, s)
	accesslogv3.RegisterAccessLogServiceServer(server, outcomes)
	healthy := health.NewServer()
	healthy.SetServingStatus(wire.ExtProcHealthService, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(server, healthy)

	group, ctx := errgroup.WithContext(ctx)
	for _, address := range c.listen {
		l, err := listen(address)
		if err != nil {
			server.Stop()
			return errors.Join(err, group.Wait())
		}
		log.Info("serving ext_proc", "address", address, "policy", c.policy.Rule.String())
		group.Go(func() error { return server.Serve(l) })
	}
	group.Go(func() error {
		<-ctx.Done()
		healthy.Shutdown()
		late := time.AfterFunc(c.drainTimeout, server.Stop)
		defer late.Stop()
		server.GracefulStop()
		return nil
	})
	return group.Wait()
}

// serveMetrics serves HTTP for operators until ctx ends.
func serveMetrics(ctx context.Context, c config, handler http.Handler, log *slog.Logger) error {
	l, err := net.Listen("tcp", net.JoinHostPort(c.metricsHost, strconv.Itoa(c.metricsPort)))
	if err != nil {
		return fmt.Errorf("--metrics-port %d: %w", c.metricsPort, err)
	}
	log.Info("serving metrics", "address", l.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// maxSocketPath is what macOS allows; Linux allows four more.
const maxSocketPath = 103

// listen opens an address: unix:PATH or HOST:PORT. A socket that a process left behind is taken over; one that a process
// still serves is not.
func listen(address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("--listen %s: %w", address, err)
		}
		return l, nil
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("--listen %s: the path of a Unix socket has at most %d bytes, this one has %d", address, maxSocketPath, len(path))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("--listen %s: %w", address, err)
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return nil, fmt.Errorf("--listen %s: another process serves there", address)
	case errors.Is(err, syscall.ECONNREFUSED): // a socket without a process
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("--listen %s: %w", address, err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", address, err)
	}
	return l, nil
}
