package main

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/mesh"
	"github.com/headgate/headgate/control/place/stream"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/reach"
)

// services are what control serves by gRPC.
type services struct {
	board  *stream.Server
	placer *place.Placer
	log    *slog.Logger
}

// stopTimeout is how long calls may take to end once control is stopping.
const stopTimeout = 2 * time.Second

// serve serves on every address until ctx ends.
func serve(ctx context.Context, c config, s services) error {
	group, ctx := errgroup.WithContext(ctx)
	var servers []*grpc.Server
	for _, address := range c.listen {
		l, err := listen.On("listen", address)
		if err == nil {
			var server *grpc.Server
			if server, err = s.server(c, address, listen.IsLocal(l.Addr())); err == nil {
				servers = append(servers, server)
				group.Go(func() error { return server.Serve(l) })
				s.log.Info("serving extprocs and clients of ModelMesh", "address", l.Addr().String())
				continue
			}
			_ = l.Close()
		}
		group.Go(func() error { return err }) // ends the others
	}
	group.Go(func() error {
		<-ctx.Done()
		s.board.Close()
		for _, server := range servers {
			late := time.AfterFunc(stopTimeout, server.Stop)
			server.GracefulStop()
			late.Stop()
		}
		return nil
	})
	return group.Wait()
}

// server returns a gRPC server. One that others than this machine can reach has to know its callers.
func (s services) server(c config, address string, local bool) (*grpc.Server, error) {
	options := []grpc.ServerOption{
		grpc.WaitForHandlers(true), // what they write to is closed after them
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if !local {
		if c.certPath == "" || c.clientCAFile == "" && c.tokenFile == "" {
			return nil, fmt.Errorf("--listen %s: others can reach it, and whoever calls it can load and unload models: say --cert-path, and --client-ca-file or --token-file; or listen on loopback or a socket", address)
		}
		config, err := listen.TLS(c.certPath, s.log)
		if err != nil {
			return nil, err
		}
		if c.clientCAFile != "" {
			if config.ClientCAs, err = readAuthorities(c.clientCAFile); err != nil {
				return nil, fmt.Errorf("--client-ca-file: %w", err)
			}
			config.ClientAuth = tls.RequireAndVerifyClientCert
		}
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	if !local && c.tokenFile != "" {
		file, err := reach.OpenToken(c.tokenFile, s.log)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		options = append(options,
			grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
				if err := authorize(ctx, file.Token()); err != nil {
					return nil, err
				}
				return handle(ctx, request)
			}),
			grpc.StreamInterceptor(func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
				if err := authorize(stream.Context(), file.Token()); err != nil {
					return err
				}
				return handle(server, stream)
			}))
	}
	server := grpc.NewServer(options...)
	placement.RegisterPlacementServer(server, s.board)
	mmesh.RegisterModelMeshServer(server, mesh.New(s.placer))
	reflection.Register(server) // so that grpcurl needs no protocol files
	return server, nil
}

// authorize is nil if the caller sends the token.
func authorize(ctx context.Context, token string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, h := range md.Get("authorization") {
		if sent, ok := strings.CutPrefix(h, "Bearer "); ok && subtle.ConstantTimeCompare([]byte(sent), []byte(token)) == 1 {
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, "send the metadata authorization: Bearer TOKEN, with the token of control's --token-file")
}

func readAuthorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", path)
	}
	return pool, nil
}
