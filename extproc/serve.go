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
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/stream"
)

// services are what extproc serves by gRPC.
type services struct {
	exchanges *stream.Server
	outcomes  *outcome.Server
	health    *healthService
	log       *slog.Logger
}

// serve serves on every listener until ctx ends and the requests in flight have, or the drain timeout has passed.
func serve(ctx context.Context, c config, s services) error {
	group, ctx := errgroup.WithContext(ctx)
	open := func(l net.Listener, err error, own *grpc.Server, delay time.Duration) error {
		if err != nil {
			return err
		}
		group.Go(func() error { return own.Serve(l) })
		group.Go(func() error {
			<-ctx.Done()
			s.health.drain()
			if delay > 0 {
				<-time.After(delay)
			}
			s.outcomes.Close()
			s.health.end()
			late := time.AfterFunc(c.drainTimeout, own.Stop)
			defer late.Stop()
			own.GracefulStop()
			return nil
		})
		return nil
	}
	err := func() error {
		for _, address := range c.listen {
			l, err := listen(address)
			server, tlsErr := s.server(c, err == nil && isLocal(l.Addr()), stream.Own)
			if err := open(l, errors.Join(err, tlsErr), server, 0); err != nil {
				return err
			}
			s.log.Info("serving Headgate's own Envoys", "address", address)
		}
		if c.grpcPort >= 0 {
			l, err := listenPort("grpc-port", c.grpcHost, c.grpcPort)
			server, tlsErr := s.server(c, err == nil && isLocal(l.Addr()), stream.Gateway)
			if err := open(l, errors.Join(err, tlsErr), server, c.drainDelay); err != nil {
				return err
			}
			s.log.Info("serving other gateways", "address", l.Addr().String(), "pool", c.pool.Name)
		}
		if c.healthPort >= 0 {
			l, err := listenPort("grpc-health-port", c.grpcHost, c.healthPort)
			server := grpc.NewServer()
			healthv1.RegisterHealthServer(server, s.health)
			return open(l, err, server, c.drainDelay)
		}
		return nil
	}()
	if err != nil {
		group.Go(func() error { return err }) // ends the others
	}
	return group.Wait()
}

// server returns a gRPC server for the data planes of a front.
func (s services) server(c config, local bool, front stream.Front) (*grpc.Server, error) {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(stream.MaxMessage),
		grpc.MaxConcurrentStreams(1 << 20), // one for each HTTP request in flight
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
	if c.secure && !local {
		config, err := serverTLS(c.certPath, s.log)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	server := grpc.NewServer(options...)
	extprocv3.RegisterExternalProcessorServer(server, s.exchanges.For(front))
	if front == stream.Own { // other gateways tell of outcomes by what they show of answers: none is told twice
		accesslogv3.RegisterAccessLogServiceServer(server, s.outcomes)
	}
	healthv1.RegisterHealthServer(server, s.health)
	return server, nil
}

// isLocal says whether nobody outside this machine can reach an address.
func isLocal(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

func listenPort(flag, host string, port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("--%s %d: %w", flag, port, err)
	}
	return l, nil
}

// serveMetrics serves HTTP for operators until ctx ends.
func serveMetrics(ctx context.Context, c config, handler http.Handler, log *slog.Logger) error {
	l, err := listenPort("metrics-port", c.metricsHost, c.metricsPort)
	if err != nil {
		return err
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
