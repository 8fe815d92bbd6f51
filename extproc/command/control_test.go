package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/options"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/placementclient"
	"github.com/headgate/headgate/extproc/serve"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/listen"
)

// door is a fake control that records the clients that connect.
type door struct {
	placement.UnimplementedPlacementServer
	tokens chan []string
	certs  chan int
}

// Connect implements placement.PlacementServer.
func (d *door) Connect(wire placement.Placement_ConnectServer) error {
	md, _ := metadata.FromIncomingContext(wire.Context())
	p, _ := peer.FromContext(wire.Context())
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	d.tokens <- md.Get("authorization")
	d.certs <- len(info.State.PeerCertificates)
	<-wire.Context().Done()
	return nil
}

// pemFiles writes a self-signed certificate into a folder.
func pemFiles(t *testing.T) (dir string, own *tls.Certificate) {
	t.Helper()
	dir = t.TempDir()
	own, err := listen.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: own.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, own
}

func TestControlIsCalledWithACertificateAndAToken(t *testing.T) {
	dir, own := pemFiles(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{tokens: make(chan []string, 1), certs: make(chan int, 1)}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{*own},
		ClientAuth:   tls.RequireAnyClientCert,
	})))
	placement.RegisterPlacementServer(server, d)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := options.Options{
		Serve:    serve.Config{Endpoints: eds.New(slog.New(slog.DiscardHandler))},
		Settings: settings.Default(), MaxQueued: 1, MaxQueuedMiB: 1,
		Control: placementclient.Control{
			Address: "localhost:" + port, CAFile: filepath.Join(dir, "tls.crt"), CertPath: dir,
			TokenFile: token,
		},
	}
	f, held, speak, err := newFleet(c, slog.New(slog.DiscardHandler))
	if err != nil || held == nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = speak(ctx, metrics.New(f), newAbout(c))
	}()
	select {
	case got := <-d.tokens:
		if len(got) != 1 || got[0] != "Bearer secret" || <-d.certs != 1 {
			t.Errorf("the token is %v", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("control was not called")
	}
	cancel()
	<-done
	server.Stop()
	<-served
}

// The prefix cache has the size that the command line sets, with and without control.
func TestPrefixCacheBytes(t *testing.T) {
	for _, args := range [][]string{nil, {"--control", "unix:x"}} {
		c, err := options.Parse(append(args, "--objects", "x", "--listen", "unix:y", "--prefix-cache-bytes", "128"), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		f, _, _, err := newFleet(c, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		f.Sent(0, []uint64{1, 2, 3})
		if got := f.Cached(&pick.Request{}, []uint64{1, 2, 3}, nil); got[0] != 2 {
			t.Errorf("with %q: %d blocks are cached, want two", args, got[0])
		}
	}
}
