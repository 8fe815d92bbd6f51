package serve_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/serve"
)

// board is a placement server whose streams last until it is closed.
type board struct {
	placement.UnimplementedPlacementServer
	closed chan struct{}
	ended  chan struct{} // receives a value for each stream that ended
}

func newBoard() *board {
	return &board{closed: make(chan struct{}), ended: make(chan struct{}, 10)}
}

func (b *board) Connect(stream placement.Placement_ConnectServer) error {
	defer func() { b.ended <- struct{}{} }()
	if err := stream.Send(&placement.Update{Version: 1}); err != nil {
		return err
	}
	<-b.closed
	return nil
}

// mesh blocks in EnsureLoaded until the caller cancels.
type mesh struct {
	mmesh.UnimplementedModelMeshServer
	waits chan struct{} // receives a value for each call that waits
}

func (mesh) GetModelStatus(context.Context, *mmesh.GetStatusRequest) (*mmesh.ModelStatusInfo, error) {
	return &mmesh.ModelStatusInfo{}, nil
}

func (m mesh) EnsureLoaded(ctx context.Context, _ *mmesh.EnsureLoadedRequest) (*mmesh.ModelStatusInfo, error) {
	m.waits <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// lateMesh unregisters a model while its term ends.
type lateMesh struct {
	mmesh.UnimplementedModelMeshServer
	begun chan struct{}
}

func (m lateMesh) UnregisterModel(ctx context.Context, _ *mmesh.UnregisterModelRequest) (*mmesh.UnregisterModelResponse, error) {
	close(m.begun)
	<-ctx.Done()
	return &mmesh.UnregisterModelResponse{}, nil
}

// host is a loopback address that no other test process uses.
var host = fmt.Sprintf("127.62.%d.%d", os.Getpid()/20%250, os.Getpid()%20+1)

// serveAt serves at a free port. Unless local, callers must authenticate as if they were on other
// machines.
func serveAt(t *testing.T, s *serve.Server, local bool) (address string) {
	t.Helper()
	server, err := s.At("10.0.0.1:8034", local)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", host+":0") //nolint:noctx // at once
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return l.Addr().String()
}

func newServer(t *testing.T, c serve.Config) *serve.Server {
	t.Helper()
	s, err := serve.New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func dial(t *testing.T, address string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// connect starts a placement stream, and receives the first Update.
func connect(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := placement.NewPlacementClient(conn).Connect(ctx)
	if err == nil {
		_ = stream.Send(&placement.Report{Process: "x"}) // an error shows in Recv
		_, err = stream.Recv()
	}
	return err
}

func isHealthy(t *testing.T, conn *grpc.ClientConn, service string) bool {
	t.Helper()
	is, err := healthv1.NewHealthClient(conn).Check(limited(t), &healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatalf("health of %q: %v", service, err)
	}
	return is.GetStatus() == healthv1.HealthCheckResponse_SERVING
}

// pair writes a self-signed certificate into a folder, and returns it.
func pair(t *testing.T) (dir string, made tls.Certificate) {
	t.Helper()
	dir = t.TempDir()
	made = signed(t, nil, true, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	key, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: made.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, made
}

// signed returns a certificate for some uses. It is signed by an authority, or self-signed if by is
// nil.
func signed(t *testing.T, by *tls.Certificate, authority bool, uses ...x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: authority, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: uses,
	}
	if authority {
		template.KeyUsage |= x509.KeyUsageCertSign
	}
	parent, key := template, any(own)
	if by != nil {
		if parent, err = x509.ParseCertificate(by.Certificate[0]); err != nil {
			t.Fatal(err)
		}
		key = by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &own.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own}
}
