// Package serve is control's gRPC server. Every control serves health and reflection. Only the
// leader serves placement and ModelMesh's API; others answer Unavailable.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/listen"
)

// Config configures a Server.
type Config struct {
	// Listen are the addresses to serve at, each unix:PATH or HOST:PORT.
	Listen []string
	// CertPath is a folder with tls.crt and tls.key, for addresses that other machines can reach.
	CertPath string
	// Placement and Mesh configure who may call each service from other machines. Everybody on this
	// machine may call, over loopback or a Unix socket.
	Placement, Mesh Callers
}

// stopTimeout is how long calls may take to end when control stops.
const stopTimeout = 2 * time.Second

// Server serves while the process lives. It is safe for concurrent use. Make one with [New].
type Server struct {
	config         Config
	authenticators authenticators
	health         *health.Server
	log            *slog.Logger

	mu   sync.Mutex // guards term and the beginning of its calls
	term *term      // nil if another control leads
}

// New returns a Server. It reads the files of its configuration.
func New(c Config, log *slog.Logger) (*Server, error) {
	authenticators, err := c.authenticators(log)
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, authenticators: authenticators, health: health.NewServer(), log: log}
	s.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
	return s, nil
}

// setHealth sets the health of the leader's services. The health of the process itself is always
// serving.
func (s *Server) setHealth(status healthv1.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus(placement.Placement_ServiceDesc.ServiceName, status)
	s.health.SetServingStatus(mmesh.ModelMesh_ServiceDesc.ServiceName, status)
}

// Run serves on every address until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	var servers []*grpc.Server
	for _, address := range s.config.Listen {
		l, err := listen.On("listen", address)
		if err != nil {
			group.Go(func() error { return err }) // stops the other servers
			break
		}
		server, err := s.server(address, listen.IsLocal(l.Addr()))
		if err != nil {
			_ = l.Close()
			group.Go(func() error { return err })
			break
		}
		servers = append(servers, server)
		group.Go(func() error {
			if err := server.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // ErrServerStopped: ctx ended before the server started
				return err
			}
			return nil
		})
		s.log.Info("serving extprocs and clients of ModelMesh", "address", l.Addr().String())
	}
	group.Go(func() error {
		<-ctx.Done()
		s.health.Shutdown()
		for _, server := range servers {
			late := time.AfterFunc(stopTimeout, server.Stop)
			server.GracefulStop()
			late.Stop()
		}
		return nil
	})
	return group.Wait()
}

// server returns the gRPC server of an address. If other machines can reach it, callers must
// authenticate.
func (s *Server) server(address string, local bool) (*grpc.Server, error) {
	options := []grpc.ServerOption{
		grpc.WaitForHandlers(true), // handlers use resources that are closed afterwards
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if !local {
		if s.config.CertPath == "" || !s.config.Placement.restricted() {
			return nil,
				fmt.Errorf("--listen %s: other machines can reach it, and any caller could load and unload models: set --cert-path, and --client-ca-file or --token-file; or listen on loopback or a socket",
					address)
		}
		config, err := listen.TLS(s.config.CertPath, s.log)
		if err != nil {
			return nil, err
		}
		s.authenticators.requestCertificates(config)
		options = append(options, grpc.Creds(credentials.NewTLS(config)), grpc.UnaryInterceptor(s.authenticators.unary),
			grpc.StreamInterceptor(s.authenticators.stream))
	}
	server := grpc.NewServer(options...)
	server.RegisterService(s.whileLeading(&placement.Placement_ServiceDesc, func(t *term) any { return t.placement }), struct{}{})
	server.RegisterService(s.whileLeading(&mmesh.ModelMesh_ServiceDesc, func(t *term) any { return t.mesh }), struct{}{})
	healthv1.RegisterHealthServer(server, s.health)
	reflection.Register(server) // so that grpcurl needs no protocol files
	return server, nil
}
