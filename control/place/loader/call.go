package loader

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/internal/engineclient"
)

// connect returns the gRPC connection for managing an engine. It is opened by dial, and uses TLS if
// own is not nil. Every call carries the token of a.
func connect(a engineclient.Access, own *tls.Config, authority string, dial func(context.Context) (net.Conn, error)) (*grpc.ClientConn,
	error,
) {
	transport := insecure.NewCredentials()
	if own != nil {
		transport, authority = credentials.NewTLS(own), cmp.Or(own.ServerName, authority)
	}
	return grpc.NewClient(
		"passthrough:///engine",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithIdleTimeout(0), // stay connected: a broken connection may be the only sign of a restart
		grpc.WithTransportCredentials(transport), grpc.WithAuthority(authority), grpc.WithUnaryInterceptor(authorize(a)),
		// Reconnect soon after the engine is back.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
	)
}

// authorize adds the token to a call, and redacts it from the engine's error messages.
func authorize(a engineclient.Access) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		token := a.Bearer()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		}
		err := invoke(ctx, method, request, reply, conn, options...)
		if said := status.Convert(err); err != nil && engineclient.Conceal(said.Message(), token) != said.Message() {
			return status.Error(said.Code(), engineclient.Conceal(said.Message(), token))
		}
		return err
	}
}

// unconnected reports whether a call failed before it had a connection. Such a call has no peer.
func unconnected(err error, to peer.Peer) bool {
	return status.Code(err) == codes.Unavailable && to.Addr == nil
}

// formatStatus formats the status of a failed call as "CODE: message". For a call that its context
// ended, it returns a fixed text, since gRPC's message varies.
func formatStatus(err error) string {
	s := status.Convert(err)
	switch s.Code() {
	case codes.DeadlineExceeded:
		return "no answer in time"
	case codes.Canceled:
		return "canceled"
	}
	return fmt.Sprintf("%v: %s", s.Code(), s.Message())
}
