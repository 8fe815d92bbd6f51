package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/belief"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/meter"
	"github.com/headgate/headgate/extproc/talk"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/reach"
)

// believe returns the fleet. Where the command line names control it returns, too, what holds the requests that wait for
// models, and what talks with control until its context ends.
func believe(c config, log *slog.Logger) (*fleet.Fleet, *flow.Flow, func(context.Context, *meter.Meter) error, error) {
	if c.control == "" {
		return fleet.New(fleet.Config{Settings: c.settings, Log: log, PrefixCacheBytes: c.prefixBytes}), nil, nil, nil
	}
	target, dial, err := reachControl(c, log)
	if err != nil {
		return nil, nil, nil, err
	}
	var f *fleet.Fleet
	news := talk.NewNews()
	held := flow.New(flow.Config{
		View: func() *belief.View { return f.View() }, MaxHeld: c.maxHeld, MaxBytes: c.maxHeldMiB << 20, Changed: news.Changed,
	})
	f = fleet.New(fleet.Config{
		Settings: c.settings, Log: log, Published: held.Published, PrefixCacheBytes: c.prefixBytes, Placed: true,
	})
	return f, held, func(ctx context.Context, m *meter.Meter) error {
		return talk.New(talk.Config{Target: target, Dial: dial, News: news, Fleet: f, Flow: held, Meter: m, Log: log}).Run(ctx)
	}, nil
}

// reachControl returns control's address in grpc's words, and how it is reached: in the clear by a socket or loopback,
// unless authorities or a certificate are given, else with TLS.
func reachControl(c config, log *slog.Logger) (target string, dial []grpc.DialOption, err error) {
	target, local := c.control, strings.HasPrefix(c.control, "unix:")
	if !local {
		host, _, err := net.SplitHostPort(c.control)
		if err != nil || host == "" {
			return "", nil, fmt.Errorf("--control %s: want unix:PATH or HOST:PORT", c.control)
		}
		at, err := netip.ParseAddr(host)
		local = host == "localhost" || err == nil && at.IsLoopback()
		target = "dns:///" + c.control
	}
	secure := !local || c.controlCAFile != "" || c.controlCertPath != ""
	access := insecure.NewCredentials()
	if secure {
		config, err := clientTLS(c, log)
		if err != nil {
			return "", nil, err
		}
		access = credentials.NewTLS(config)
	}
	dial = []grpc.DialOption{
		grpc.WithTransportCredentials(access),
		// A machine that vanishes closes nothing. Control lets itself be asked every 5 s at most.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}
	if c.controlTokenFile != "" {
		file, err := reach.OpenToken(c.controlTokenFile, log)
		if err != nil {
			return "", nil, fmt.Errorf("--control-token-file: %w", err)
		}
		dial = append(dial, grpc.WithPerRPCCredentials(bearer{file.Token, secure}))
	}
	return target, dial, nil
}

func clientTLS(c config, log *slog.Logger) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.controlCAFile != "" {
		text, err := os.ReadFile(c.controlCAFile)
		if err != nil {
			return nil, fmt.Errorf("--control-ca-file: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("--control-ca-file: " + c.controlCAFile + " holds no certificate in PEM")
		}
	}
	if c.controlCertPath != "" {
		own, err := listen.ClientCertificate(c.controlCertPath, log)
		if err != nil {
			return nil, fmt.Errorf("--control-cert-path: %w", err)
		}
		config.GetClientCertificate = own
	}
	return config, nil
}

// bearer is a token that goes with each call.
type bearer struct {
	token  func() string
	secure bool
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token()}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return b.secure }
