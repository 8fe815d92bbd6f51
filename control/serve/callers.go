package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/engineclient"
)

// Callers configures who may call a service from another machine. Clients must send the token in
// TokenFile, which may be replaced at any time, and must have a certificate signed by an authority
// in the PEM file ClientCAFile. If a name is empty, that check is omitted. If both are empty, no
// other machine may call.
type Callers struct{ TokenFile, ClientCAFile string }

// restricted reports whether any check is configured.
func (c Callers) restricted() bool { return c != Callers{} }

// authenticators check the callers of each service from other machines.
type authenticators struct {
	placement, mesh authenticator
}

// authenticator checks the callers of one service. The zero value rejects everybody.
type authenticator struct {
	flags       string        // prefix of the service's flags, for messages
	token       func() string // nil: no token is required
	roots       *x509.CertPool
	authorities []*x509.Certificate // the certificates in roots
}

// authenticators reads the files with tokens and authorities.
func (c Config) authenticators(log *slog.Logger) (d authenticators, err error) {
	if d.placement, err = c.Placement.authenticator("--", log); err != nil {
		return d, err
	}
	if d.mesh, err = c.Mesh.authenticator("--mesh-", log); err != nil {
		return d, err
	}
	if c.Placement.restricted() && c.Mesh.restricted() && (d.placement.opensTo(d.mesh) || d.mesh.opensTo(d.placement)) {
		return d, errors.New("the credentials of ModelMesh's clients would be accepted for extprocs, or the other way round: use different tokens in --mesh-token-file and --token-file, or different authorities in --mesh-client-ca-file and --client-ca-file")
	}
	return d, nil
}

func (c Callers) authenticator(flags string, log *slog.Logger) (d authenticator, err error) {
	d.flags = flags
	if c.TokenFile != "" {
		file, err := engineclient.OpenToken(c.TokenFile, log)
		if err != nil {
			return d, fmt.Errorf("%stoken-file: %w", flags, err)
		}
		d.token = file.Token
	}
	if c.ClientCAFile != "" {
		text, err := os.ReadFile(c.ClientCAFile)
		if err != nil {
			return d, fmt.Errorf("%sclient-ca-file: %w", flags, err)
		}
		if d.authorities = certificates(text); len(d.authorities) == 0 {
			return d, fmt.Errorf("%sclient-ca-file: %s contains no certificate in PEM", flags, c.ClientCAFile)
		}
		d.roots = x509.NewCertPool()
		for _, authority := range d.authorities {
			d.roots.AddCert(authority)
		}
	}
	return d, nil
}

// certificates parses a PEM file, and skips blocks that are no certificates.
func certificates(text []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// opensTo reports whether this service might accept credentials for another service.
func (d authenticator) opensTo(other authenticator) bool {
	return (d.token == nil || other.token != nil && d.token() == other.token()) &&
		(d.roots == nil || slices.ContainsFunc(other.authorities, d.trusts))
}

// trusts reports whether an authority is one of this service's authorities, or is signed by one.
func (d authenticator) trusts(authority *x509.Certificate) bool {
	_, err := authority.Verify(x509.VerifyOptions{Roots: d.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

// requestCertificates makes TLS request a client certificate if a service needs one. TLS does not
// verify the certificate; the service does.
func (d authenticators) requestCertificates(config *tls.Config) {
	if d.placement.roots != nil || d.mesh.roots != nil {
		config.ClientAuth = tls.RequestClientCert
	}
}

func (d authenticators) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := d.authorize(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handle(ctx, request)
}

func (d authenticators) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := d.authorize(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handle(server, stream)
}

// authorize returns an error if the caller may not call a method. Everybody may call health.
// Whoever may call one of the services may call reflection.
func (d authenticators) authorize(ctx context.Context, method string) error {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch service {
	case healthv1.Health_ServiceDesc.ServiceName:
		return nil
	case placement.Placement_ServiceDesc.ServiceName:
		return d.placement.authorize(ctx)
	case mmesh.ModelMesh_ServiceDesc.ServiceName:
		return d.mesh.authorize(ctx)
	}
	if d.mesh.authorize(ctx) == nil {
		return nil
	}
	return d.placement.authorize(ctx)
}

// authorize returns an error if the caller fails a check.
func (d authenticator) authorize(ctx context.Context) error {
	if d.token == nil && d.roots == nil {
		return status.Errorf(codes.PermissionDenied,
			"control does not serve other machines here: it has neither %stoken-file nor %[1]sclient-ca-file", d.flags)
	}
	if d.roots != nil && !d.signed(ctx) {
		return status.Errorf(codes.Unauthenticated,
			"send a client certificate that is signed by an authority in control's %sclient-ca-file", d.flags)
	}
	if d.token != nil && !sent(ctx, d.token()) {
		return status.Errorf(codes.Unauthenticated,
			"send the metadata authorization: Bearer TOKEN, with the token of control's %stoken-file", d.flags)
	}
	return nil
}

// signed reports whether the caller's certificate is signed by an authority of the service.
func (d authenticator) signed(ctx context.Context) bool {
	caller, _ := peer.FromContext(ctx)
	if caller == nil {
		return false
	}
	info, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return false
	}
	own := info.State.PeerCertificates
	between := x509.NewCertPool()
	for _, c := range own[1:] {
		between.AddCert(c)
	}
	_, err := own[0].Verify(x509.VerifyOptions{
		Roots: d.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}

// sent reports whether the caller sent the token.
func sent(ctx context.Context, token string) bool {
	md, _ := metadata.FromIncomingContext(ctx)
	return slices.ContainsFunc(md.Get("authorization"), func(h string) bool { return engineclient.Shows(h, token) })
}
