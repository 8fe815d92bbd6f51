// Package serve opens extproc's listeners: the sockets for Headgate's own Envoys, and the ports for
// other gateways, health and metrics. At the end it drains them.
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

	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/headgate/headgate/extproc/accesslog"
	"github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/extproc/payload"
	"github.com/headgate/headgate/extproc/relay"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/listen"
)

// Config configures where extproc listens, and for which data planes.
type Config struct {
	// Own are the addresses for Headgate's own Envoys: unix:PATH or HOST:PORT.
	Own []string
	// TakeOver means that the sockets of Own are taken over from a running process.
	TakeOver bool
	// Host, Port and HealthPort are for other gateways; a negative port is not opened.
	Host             string
	Port, HealthPort int
	// Secure uses TLS on every address that other machines can reach, with the certificate in
	// CertPath, or with a self-signed one.
	Secure   bool
	CertPath string
	// DrainDelay is how long other gateways are still served after health reports NOT_SERVING.
	// DrainTimeout is how long open streams may then take to end.
	DrainDelay, DrainTimeout time.Duration

	// Opened is called when all addresses are open.
	Opened func()

	// Relay serves RelaySocket, which is in the endpoint lists of Envoys.
	Relay     *relay.Server
	Exchanges *stream.Server
	Payloads  *payload.Server
	Outcomes  *accesslog.Server
	Endpoints *eds.Server
	Log       *slog.Logger
}

// RelaySocket returns the path of the relay's socket, in the folder of the first unix socket for
// Headgate's own Envoys; empty if there is none.
func RelaySocket(own []string) string {
	for _, address := range own {
		if path, ok := strings.CutPrefix(address, "unix:"); ok {
			folder, name := filepath.Split(path)
			return cmp.Or(folder, "./") + strings.TrimSuffix(name, ".sock") + ".in"
		}
	}
	return ""
}

// RelayKey returns the path of the file with the key that seals relay tokens. It is in the folder
// of the first unix socket for Headgate's own Envoys; empty if there is none.
func RelayKey(own []string) string {
	if socket := RelaySocket(own); socket != "" {
		return strings.TrimSuffix(socket, ".in") + ".key"
	}
	return ""
}

// cutOff is the time for the replies to rejected requests after the drain timeout.
const cutOff = time.Second

// Run serves until ctx ends, and then until requests no longer need it.
//
// If it serves only Headgate's own Envoys, it releases its sockets at once for the next process. It
// ends when every request has a decision, because answers do not pass through it. Requests that
// wait for their model may wait until the drain timeout, and then get 503. If it also serves other
// gateways, health first reports NOT_SERVING. It serves these gateways for the drain delay. Open
// streams then have the drain timeout to end, because answers may pass through them.
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
	if inner != nil { // the relay serves until no more requests are sent to it
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
			if err := d.server.Serve(d.listener); !errors.Is(err, grpc.ErrServerStopped) { // ErrServerStopped: ctx ended before Serve began
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

// door is an open address and the server for it.
type door struct {
	listener net.Listener
	server   *grpc.Server
	delay    time.Duration // how long the address is served after ctx has ended
}

// endOwn stops a server for Headgate's own Envoys. It releases the server's address at once, and
// returns when the last stream has ended.
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

// open opens every address before any of them is served. If one cannot be opened, no client has
// been accepted yet.
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
		c.Log.Info("serving Headgate's own Envoy", "address", address)
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

// server returns a gRPC server for one kind of data plane.
func (c Config) server(health *healthService, local bool, front stream.Front) (*grpc.Server, error) {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec.New()),
		grpc.MaxRecvMsgSize(stream.MaxMessage),
		grpc.MaxConcurrentStreams(1 << 20), // one stream for each HTTP request in flight
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
	if front == stream.Own { // only Headgate's own Envoys send payloads
		exchanges = c.Payloads.Beside(exchanges)
	}
	extprocv3.RegisterExternalProcessorServer(server, exchanges)
	if front == stream.Own { // other gateways send answers to extproc; access logs would count their outcomes twice
		c.Outcomes.Register(server)
		edsv3.RegisterEndpointDiscoveryServiceServer(server, c.Endpoints)
	}
	healthv1.RegisterHealthServer(server, health)
	return server, nil
}

// Listen listens on the port of a flag. An error names the flag.
func Listen(flag, host string, port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("--%s %d: %w", flag, port, err)
	}
	return l, nil
}
