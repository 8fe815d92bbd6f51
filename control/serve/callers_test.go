package serve_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/serve"
)

// files are paths for control's flags.
type files struct{ certs, token, meshToken, ca, meshCA, empty string }

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnauthenticatedCallsAreRejectedAtTheStart(t *testing.T) {
	certs, root := pair(t)
	other, _ := pair(t)
	f := files{certs, write(t, "one\n"), write(t, "two"), filepath.Join(certs, "tls.crt"), filepath.Join(other, "tls.crt"), write(t, "")}
	same := write(t, "one")
	var bundle strings.Builder // certificates of the extprocs' authority and of another one
	bundle.WriteString("# ours\n")
	for _, dir := range []string{other, certs} {
		text, err := os.ReadFile(filepath.Join(dir, "tls.crt"))
		if err != nil {
			t.Fatal(err)
		}
		bundle.Write(text)
	}
	several := write(t, bundle.String())
	below := signed(t, &root, true)
	branch := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: below.Certificate[0]})))
	const open = "set --cert-path, and --client-ca-file or --token-file"
	const pose = "would be accepted for extprocs, or the other way round"
	for name, c := range map[string]struct {
		config serve.Config
		want   string // expected error; empty for none
	}{
		"nothing":               {serve.Config{}, open},
		"TLS alone":             {serve.Config{CertPath: f.certs}, open},
		"a token in plain text": {serve.Config{Placement: serve.Callers{TokenFile: f.token}}, open},
		"the mesh alone":        {serve.Config{CertPath: f.certs, Mesh: serve.Callers{TokenFile: f.meshToken}}, open},
		"no certificate there":  {serve.Config{CertPath: t.TempDir(), Placement: serve.Callers{TokenFile: f.token}}, "--cert-path: "},
		"no authority": {
			serve.Config{CertPath: f.certs, Placement: serve.Callers{ClientCAFile: f.token}},
			"--client-ca-file: " + f.token + " contains no certificate in PEM",
		},
		"no authority of the mesh": {
			serve.Config{CertPath: f.certs, Mesh: serve.Callers{ClientCAFile: f.token}},
			"--mesh-client-ca-file: " + f.token + " contains no certificate in PEM",
		},
		"an empty token": {serve.Config{CertPath: f.certs, Placement: serve.Callers{TokenFile: f.empty}}, "--token-file: " +
			f.empty + " is empty"},
		"an empty token of the mesh": {serve.Config{CertPath: f.certs, Mesh: serve.Callers{TokenFile: f.empty}}, "--mesh-token-file: " +
			f.empty + " is empty"},
		"one token for both": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{TokenFile: f.token},
			Mesh: serve.Callers{TokenFile: same},
		}, pose},
		"one authority for both": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{ClientCAFile: f.ca},
			Mesh: serve.Callers{ClientCAFile: f.ca},
		}, pose},
		"an authority among several": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{ClientCAFile: f.ca},
			Mesh: serve.Callers{ClientCAFile: several},
		}, pose},
		"several, of which one is": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{ClientCAFile: several},
			Mesh: serve.Callers{ClientCAFile: f.ca},
		}, pose},
		"an authority below it": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{ClientCAFile: f.ca},
			Mesh: serve.Callers{ClientCAFile: branch},
		}, pose},
		"several, and two tokens": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{f.token, several},
			Mesh: serve.Callers{f.meshToken, f.ca},
		}, ""},
		"a token beside that of both": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{ClientCAFile: f.ca},
			Mesh: serve.Callers{f.token, f.ca},
		}, pose},
		"an authority for one": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{f.token, f.ca},
			Mesh: serve.Callers{TokenFile: same},
		}, pose},
		"tokens of their own": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{TokenFile: f.token},
			Mesh: serve.Callers{TokenFile: f.meshToken},
		}, ""},
		"authorities of their own": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{ClientCAFile: f.ca},
			Mesh: serve.Callers{ClientCAFile: f.meshCA},
		}, ""},
		"one token, two authorities": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{f.token, f.ca},
			Mesh: serve.Callers{same, f.meshCA},
		}, ""},
		"one authority, two tokens": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{f.token, f.ca},
			Mesh: serve.Callers{f.meshToken, f.ca},
		}, ""},
		"a token and an authority": {serve.Config{
			CertPath: f.certs, Placement: serve.Callers{TokenFile: f.token},
			Mesh: serve.Callers{ClientCAFile: f.ca},
		}, ""},
		"no clients of the mesh": {serve.Config{CertPath: f.certs, Placement: serve.Callers{TokenFile: f.token}}, ""},
	} {
		s, err := serve.New(c.config, slog.New(slog.DiscardHandler))
		if err == nil {
			_, err = s.At("10.0.0.1:8034", false)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// Callers on other machines need a token or a certificate for each service; callers on this machine
// need none. Everybody may call health. Whoever may call one of the services may call reflection.
func TestAuthentication(t *testing.T) {
	certs, extproc := pair(t)
	meshCerts, client := pair(t)
	_, stranger := pair(t)
	tokens := serve.Config{
		CertPath: certs, Placement: serve.Callers{TokenFile: write(t, "secret\n")},
		Mesh: serve.Callers{TokenFile: write(t, "mesh\n")},
	}
	mutual := serve.Config{
		CertPath: certs, Placement: serve.Callers{ClientCAFile: filepath.Join(certs, "tls.crt")},
		Mesh: serve.Callers{ClientCAFile: filepath.Join(meshCerts, "tls.crt")},
	}
	both := serve.Config{
		CertPath: certs, Placement: serve.Callers{tokens.Placement.TokenFile, mutual.Placement.ClientCAFile},
		Mesh: tokens.Mesh,
	}
	alone := serve.Config{CertPath: certs, Placement: tokens.Placement}
	secure := func(own ...tls.Certificate) credentials.TransportCredentials {
		roots := x509.NewCertPool()
		parsed, err := x509.ParseCertificate(extproc.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		roots.AddCert(parsed)
		return credentials.NewTLS(&tls.Config{
			RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // send it to any authority
				if len(own) == 0 {
					return new(tls.Certificate), nil
				}
				return &own[0], nil
			},
		})
	}
	const none, no, denied = codes.OK, codes.Unauthenticated, codes.PermissionDenied
	for name, c := range map[string]struct {
		config                      serve.Config
		creds                       credentials.TransportCredentials
		token                       string
		placement, mesh, reflection codes.Code
	}{
		"an extproc by its token":                 {tokens, secure(), "secret", none, no, none},
		"a client of the mesh by its token":       {tokens, secure(), "mesh", no, none, none},
		"nobody by a token":                       {tokens, secure(), "secrets", no, no, no},
		"nobody without one":                      {tokens, secure(), "", no, no, no},
		"an extproc by its certificate":           {mutual, secure(extproc), "", none, no, none},
		"a client of the mesh by its certificate": {mutual, secure(client), "", no, none, none},
		"an extproc by one for that alone": {
			mutual, secure(signed(t, &extproc, false, x509.ExtKeyUsageClientAuth)), "", none,
			no, none,
		},
		"nobody by a server's certificate": {
			mutual, secure(signed(t, &extproc, false, x509.ExtKeyUsageServerAuth)), "", no,
			no, no,
		},
		"nobody by a stranger's":                      {mutual, secure(stranger), "", no, no, no},
		"nobody without a certificate":                {mutual, secure(), "", no, no, no},
		"an extproc by both":                          {both, secure(extproc), "secret", none, no, none},
		"nobody by the certificate without the token": {both, secure(extproc), "", no, no, no},
		"nobody by the token without the certificate": {both, secure(), "secret", no, no, no},
		"a client where none is served":               {alone, secure(), "mesh", no, denied, no},
		"an extproc where no client is served":        {alone, secure(), "secret", none, denied, none},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, c.config)
			b := newBoard()
			defer s.Lead(b, mesh{})()
			defer close(b.closed)
			conn := dial(t, serveAt(t, s, false), c.creds)
			ctx := limited(t)
			if c.token != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
			}
			if err := connect(ctx, conn); status.Code(err) != c.placement {
				t.Errorf("a placement stream ends with %v, want %v", err, c.placement)
			}
			if _, err := mmesh.NewModelMeshClient(conn).GetModelStatus(ctx, &mmesh.GetStatusRequest{}); status.Code(err) != c.mesh {
				t.Errorf("a call of ModelMesh's API ends with %v, want %v", err, c.mesh)
			}
			reflection, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			if err == nil {
				list := &reflectionv1.ServerReflectionRequest_ListServices{}
				_ = reflection.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: list})
				_, err = reflection.Recv()
			}
			if status.Code(err) != c.reflection {
				t.Errorf("reflection ends with %v, want %v", err, c.reflection)
			}
			if !isHealthy(t, conn, "") {
				t.Error("the server is not healthy")
			}
		})
	}

	t.Run("everybody on this machine", func(t *testing.T) {
		s := newServer(t, both)
		b := newBoard()
		defer s.Lead(b, mesh{})()
		defer close(b.closed)
		conn := dial(t, serveAt(t, s, true), insecure.NewCredentials())
		if err := connect(limited(t), conn); err != nil {
			t.Errorf("a placement stream ends with %v", err)
		}
		if _, err := mmesh.NewModelMeshClient(conn).GetModelStatus(limited(t), &mmesh.GetStatusRequest{}); err != nil {
			t.Errorf("a call of ModelMesh's API ends with %v", err)
		}
	})
	t.Run("nobody without TLS", func(t *testing.T) {
		conn := dial(t, serveAt(t, newServer(t, tokens), false), insecure.NewCredentials())
		if err := connect(limited(t), conn); status.Code(err) != codes.Unavailable {
			t.Errorf("a placement stream ends with %v", err)
		}
	})
}
