package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
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
	"github.com/headgate/headgate/internal/listen"
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
			l, err := listen.On("listen", address)
			server, tlsErr := s.server(c, err == nil && listen.IsLocal(l.Addr()), stream.Own)
			if err := open(l, errors.Join(err, tlsErr), server, 0); err != nil {
				return err
			}
			s.log.Info("serving Headgate's own Envoys", "address", address)
		}
		if c.grpcPort >= 0 {
			l, err := listenPort("grpc-port", c.grpcHost, c.grpcPort)
			server, tlsErr := s.server(c, err == nil && listen.IsLocal(l.Addr()), stream.Gateway)
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
		config, err := listen.TLS(c.certPath, s.log)
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
