package placementclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/listen"
)

// Control is the address of control and the credentials for it, from the flags whose names begin
// with --control.
type Control struct {
	Address                     string // unix:PATH or HOST:PORT; empty if there is no control
	CAFile, TokenFile, CertPath string // names of files; empty if not configured
}

// security returns the TLS configuration for the connection to control. Secure is false if the
// address is a socket or loopback and no certificate is configured; the connection is then without
// TLS.
func (c Control) security(log *slog.Logger) (secure bool, config *tls.Config, err error) {
	if local := strings.HasPrefix(c.Address, "unix:"); !local {
		host, _, err := net.SplitHostPort(c.Address)
		if err != nil || host == "" {
			return false, nil, fmt.Errorf("--control %s: want unix:PATH or HOST:PORT", c.Address)
		}
		at, err := netip.ParseAddr(host)
		secure = host != "localhost" && (err != nil || !at.IsLoopback())
	}
	if secure = secure || c.CAFile != "" || c.CertPath != ""; secure {
		config, err = c.tls(log)
	}
	return secure, config, err
}

// Dial returns the address of control in gRPC's format, and the options of the connection.
func (c Control) Dial(log *slog.Logger) (target string, dial []grpc.DialOption, err error) {
	secure, config, err := c.security(log)
	if err != nil {
		return "", nil, err
	}
	if target = c.Address; !strings.HasPrefix(target, "unix:") {
		target = "dns:///" + target
	}
	access := insecure.NewCredentials()
	if secure {
		access = credentials.NewTLS(config)
	}
	dial = []grpc.DialOption{
		grpc.WithTransportCredentials(access),
		// If a machine vanishes, its connections stay open, so keepalives detect that. Control
		// allows one keepalive per 5 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}
	if c.TokenFile != "" {
		file, err := engineclient.OpenToken(c.TokenFile, log)
		if err != nil {
			return "", nil, fmt.Errorf("--control-token-file: %w", err)
		}
		dial = append(dial, grpc.WithPerRPCCredentials(bearer{file.Token, secure}))
	}
	return target, dial, nil
}

// Transport returns an HTTP/2 transport that sends the calls of clients to control, with the
// clients' own tokens. It ignores the host in the URLs of calls.
func (c Control) Transport(log *slog.Logger) (*http.Transport, error) {
	secure, config, err := c.security(log)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if path, ok := strings.CutPrefix(c.Address, "unix:"); ok {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", c.Address)
	}
	if !secure {
		t.Protocols.SetUnencryptedHTTP2(true)
		t.DialContext = dial
		return t, nil
	}
	t.Protocols.SetHTTP2(true)
	if host, _, err := net.SplitHostPort(c.Address); err == nil {
		config.ServerName = host
	}
	t.TLSClientConfig, t.DialContext = config, dial
	return t, nil
}

func (c Control) tls(log *slog.Logger) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--control-ca-file: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("--control-ca-file: " + c.CAFile + " contains no PEM certificate")
		}
	}
	if c.CertPath != "" {
		own, err := listen.ClientCertificate(c.CertPath, log)
		if err != nil {
			return nil, fmt.Errorf("--control-cert-path: %w", err)
		}
		config.GetClientCertificate = own
	}
	return config, nil
}

// bearer adds a token to each call.
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
