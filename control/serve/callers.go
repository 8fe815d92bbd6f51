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

// Callers says who may call a service from another machine: who sends the token in a file, which may be replaced at any time, and
// shows a certificate that an authority in a file of PEM has signed. An empty name asks for none; with two nobody may.
type Callers struct{ TokenFile, ClientCAFile string }

// known says whether callers have to show anything.
func (c Callers) known() bool { return c != Callers{} }

// authenticators are the services that others may call who can reach control, each with what it asks for.
type authenticators struct {
	placement, mesh authenticator
}

// authenticator is what one service asks for. The zero authenticator opens for nobody.
type authenticator struct {
	flags string        // prefix of its flags, for people
	token func() string // nil asks for none
	roots *x509.CertPool
	own   []*x509.Certificate // those of roots
}

// authenticators reads the files of those who may call.
func (c Config) authenticators(log *slog.Logger) (d authenticators, err error) {
	if d.placement, err = c.Placement.authenticator("--", log); err != nil {
		return d, err
	}
	if d.mesh, err = c.Mesh.authenticator("--mesh-", log); err != nil {
		return d, err
	}
	if c.Placement.known() && c.Mesh.known() && (d.placement.opensTo(d.mesh) || d.mesh.opensTo(d.placement)) {
		return d, errors.New("clients of ModelMesh and extprocs could pose as each other: let --mesh-token-file hold another token than --token-file, or --mesh-client-ca-file another authority than --client-ca-file")
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
		if d.own = certificates(text); len(d.own) == 0 {
			return d, fmt.Errorf("%sclient-ca-file: %s holds no certificate in PEM", flags, c.ClientCAFile)
		}
		d.roots = x509.NewCertPool()
		for _, authority := range d.own {
			d.roots.AddCert(authority)
		}
	}
	return d, nil
}

// certificates reads those of a file of PEM, without what is none.
func certificates(text []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// opensTo says whether what another authenticator asks for may be enough for this one.
func (d authenticator) opensTo(other authenticator) bool {
	return (d.token == nil || other.token != nil && d.token() == other.token()) &&
		(d.roots == nil || slices.ContainsFunc(other.own, d.trusts))
}

// trusts says whether the certificates that an authority signs are of an authority of the authenticator: it is one, or below one.
func (d authenticator) trusts(authority *x509.Certificate) bool {
	_, err := authority.Verify(x509.VerifyOptions{Roots: d.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

// ask makes TLS ask callers for a certificate, where a authenticator wants one. Which authority it has to be of is the authenticator's to say.
func (d authenticators) ask(config *tls.Config) {
	if d.placement.roots != nil || d.mesh.roots != nil {
		config.ClientAuth = tls.RequestClientCert
	}
}

func (d authenticators) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := d.enter(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handle(ctx, request)
}

func (d authenticators) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := d.enter(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handle(server, stream)
}

// enter is nil if whoever calls a method may. Health is everybody's; what else there is, reflection, is for who may call any
// service.
func (d authenticators) enter(ctx context.Context, method string) error {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch service {
	case healthv1.Health_ServiceDesc.ServiceName:
		return nil
	case placement.Placement_ServiceDesc.ServiceName:
		return d.placement.enter(ctx)
	case mmesh.ModelMesh_ServiceDesc.ServiceName:
		return d.mesh.enter(ctx)
	}
	if d.mesh.enter(ctx) == nil {
		return nil
	}
	return d.placement.enter(ctx)
}

// enter is nil if the caller shows what the authenticator asks for.
func (d authenticator) enter(ctx context.Context) error {
	if d.token == nil && d.roots == nil {
		return status.Errorf(codes.PermissionDenied, "other machines are not served here: control has neither %stoken-file nor %[1]sclient-ca-file", d.flags)
	}
	if d.roots != nil && !d.signed(ctx) {
		return status.Errorf(codes.Unauthenticated, "show a client certificate that an authority of control's %sclient-ca-file has signed", d.flags)
	}
	if d.token != nil && !sent(ctx, d.token()) {
		return status.Errorf(codes.Unauthenticated, "send the metadata authorization: Bearer TOKEN, with the token of control's %stoken-file", d.flags)
	}
	return nil
}

// signed says whether the caller's certificate is of an authority of the authenticator.
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

// sent says whether the caller sends the token.
func sent(ctx context.Context, token string) bool {
	md, _ := metadata.FromIncomingContext(ctx)
	return slices.ContainsFunc(md.Get("authorization"), func(h string) bool { return engineclient.Shows(h, token) })
}
