// Package serve is what extproc listens on, and how it stops: the sockets of Headgate's own Envoys,
// the ports of other gateways, health, and metrics.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/headgate/headgate/extproc/accesslog"
	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/extproc/payload"
	"github.com/headgate/headgate/extproc/relay"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/listen"
)

// Config is where extproc serves whom.
type Config struct {
	// Own are the addresses for Headgate's own Envoys, unix:PATH or HOST:PORT.
	Own []string
	// TakeOver takes the sockets of Own from a process that serves there.
	TakeOver bool
	// Host, Port and HealthPort are for other gateways; a port below 0 serves none.
	Host             string
	Port, HealthPort int
	// Secure serves with TLS whatever others than this machine can reach, with the certificate in
	// CertPath or one of its own.
	Secure   bool
	CertPath string
	// DrainDelay is how long other gateways are served on after the end has been told by health,
	// DrainTimeout what requests get then.
	DrainDelay, DrainTimeout time.Duration

	// Opened is called when every address is open.
	Opened func()

	// Relay is what Envoys find among the endpoints, at the socket of RelaySocket.
	Relay     *relay.Server
	Exchanges *stream.Server
	Payloads  *payload.Server
	Outcomes  *accesslog.Server
	Endpoints *eds.Server
	Log       *slog.Logger
}

// RelaySocket is the path of the inner server's socket, beside the first socket for Headgate's own
// Envoys; empty where there is none.
func RelaySocket(own []string) string {
	for _, address := range own {
		if path, ok := strings.CutPrefix(address, "unix:"); ok {
			folder, name := filepath.Split(path)
			return cmp.Or(folder, "./") + strings.TrimSuffix(name, ".sock") + ".in"
		}
	}
	return ""
}

// RelayKey is the file beside that socket that holds the key of what goes to the inner server;
// empty where there is none.
func RelayKey(own []string) string {
	if socket := RelaySocket(own); socket != "" {
		return strings.TrimSuffix(socket, ".in") + ".key"
	}
	return ""
}

// cutOff is how long after the drain timeout what was refused may take to be told so.
const cutOff = time.Second

// Run serves until ctx ends, and then as long as requests need it.
//
// Where it serves Headgate's own Envoys alone, its sockets are free at once for the next process,
// and it ends when every request that it was asked about is decided: answers flow without it.
// Requests that wait for their model go on waiting until the drain timeout, and get 503 then. Where
// it serves other gateways too, they are told by health, are served on for the drain delay, and
// streams that are open get the drain timeout to end: the answers of those may flow through them.
func (c Config) Run(ctx context.Context) (err error) {
	group, ctx := errgroup.WithContext(ctx)
	health := newHealth()
	all, err := c.open(health)
	var inner net.Listener
	if socket := RelaySocket(c.Own); err == nil && socket != "" && c.Relay != nil {
		inner, err = listen.Over("listen", "unix:"+socket)
	}
	if err != nil {
		for _, d := range all {
			_ = d.listener.Close()
		}
		return err
	}
	if inner != nil { // it is there until nothing more is sent to it
		end, stop := context.WithCancel(context.WithoutCancel(ctx))
		served := make(chan error, 1)
		go func() { served <- c.Relay.Serve(end, inner, c.DrainTimeout+cutOff) }()
		defer func() {
			stop()
			err = errors.Join(err, <-served)
		}()
	}
	c.Opened()
	for _, d := range all {
		group.Go(func() error {
			if err := d.server.Serve(d.listener); !errors.Is(err, grpc.ErrServerStopped) { // that says that ctx ended before this began
				return err
			}
			return nil
		})
		group.Go(func() error {
			<-ctx.Done()
			health.drain()
			if c.Port < 0 {
				c.endOwn(d.server, health)
				return nil
			}
			if d.delay > 0 {
				<-time.After(d.delay)
			}
			c.Outcomes.Close()
			c.Endpoints.Close()
			c.Payloads.Close()
			health.end()
			late := time.AfterFunc(c.DrainTimeout, d.server.Stop)
			defer late.Stop()
			d.server.GracefulStop()
			return nil
		})
	}
	return group.Wait()
}

// door is an address that is open.
type door struct {
	listener net.Listener
	server   *grpc.Server
	delay    time.Duration // for which it is served after the end is told
}

// endOwn ends a server of Headgate's own Envoys. It lets go of its address at once.
func (c Config) endOwn(server *grpc.Server, health *healthService) {
	c.Exchanges.Stop()
	c.Payloads.Close()
	c.Outcomes.Close()
	c.Endpoints.Close()
	health.end()
	refuse := time.AfterFunc(c.DrainTimeout, c.Exchanges.Refuse)
	defer refuse.Stop()
	late := time.AfterFunc(c.DrainTimeout+cutOff, server.Stop)
	defer late.Stop()
	server.GracefulStop()
}

// open opens every address before any is served: where one cannot be, nobody was told that it would
// be.
func (c Config) open(health *healthService) (all []door, err error) {
	on := listen.On
	if c.TakeOver {
		on = listen.Over
	}
	for _, address := range c.Own {
		l, err := on("listen", address)
		if err != nil {
			return all, err
		}
		server, err := c.server(health, listen.IsLocal(l.Addr()), stream.Own)
		if err != nil {
			return all, errors.Join(err, l.Close())
		}
		all = append(all, door{l, server, 0})
		c.Log.Info("serving Headgate's own Envoys", "address", address)
	}
	if c.Port >= 0 {
		l, err := Listen("grpc-port", c.Host, c.Port)
		if err != nil {
			return all, err
		}
		server, err := c.server(health, listen.IsLocal(l.Addr()), stream.Gateway)
		if err != nil {
			return all, errors.Join(err, l.Close())
		}
		all = append(all, door{l, server, c.DrainDelay})
		c.Log.Info("serving other gateways", "address", l.Addr().String())
	}
	if c.HealthPort >= 0 {
		l, err := Listen("grpc-health-port", c.Host, c.HealthPort)
		if err != nil {
			return all, err
		}
		server := grpc.NewServer()
		healthv1.RegisterHealthServer(server, health)
		all = append(all, door{l, server, c.DrainDelay})
	}
	return all, nil
}

// server returns a gRPC server for the data planes of a front.
func (c Config) server(health *healthService, local bool, front stream.Front) (*grpc.Server, error) {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(stream.MaxMessage),
		grpc.MaxConcurrentStreams(1 << 20), // one for each HTTP request in flight
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
	if front == stream.Own {
		options = append(options, grpc.InTapHandle(stream.Endable))
	}
	if c.Secure && !local {
		config, err := listen.TLS(c.CertPath, c.Log)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	server := grpc.NewServer(options...)
	exchanges := c.Exchanges.For(front)
	if front == stream.Own { // who shows copies is not to be anybody else
		exchanges = c.Payloads.Beside(exchanges)
	}
	extprocv3.RegisterExternalProcessorServer(server, exchanges)
	if front == stream.Own { // other gateways tell of outcomes by what they show of answers: none is told twice
		accesslogv3.RegisterAccessLogServiceServer(server, c.Outcomes)
		edsv3.RegisterEndpointDiscoveryServiceServer(server, c.Endpoints)
	}
	healthv1.RegisterHealthServer(server, health)
	return server, nil
}

// Listen opens the port of a flag.
func Listen(flag, host string, port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("--%s %d: %w", flag, port, err)
	}
	return l, nil
}
