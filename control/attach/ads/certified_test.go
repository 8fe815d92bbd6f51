package ads_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/pki"
	"github.com/headgate/headgate/internal/objects"
)

// Over TCP the certificate decides which Gateway an Envoy belongs to, whatever its node says. Envoy
// reloads a replaced certificate without a restart.
func TestCertificateIdentifiesTheEnvoy(t *testing.T) {
	s := newStack(t, 21)
	authority, err := pki.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(s.dir, "identity")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(file string, text []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		made := filepath.Join(s.dir, file)
		if err := os.WriteFile(made, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(made, filepath.Join(folder, file)); err != nil { // Envoy watches the folder for moved files
			t.Fatal(err)
		}
	}
	certify := func(name objects.Name) {
		t.Helper()
		certificate, key, err := authority.Gateway(name, time.Now())
		write(envoy.KeyFile, key, err)
		write(envoy.CertificateFile, certificate, err)
	}
	certify(gateway)
	write(envoy.AuthorityFile, authority.Certificate(), nil)
	text, err := envoy.Identity(folder)
	write(envoy.SecretFile, text, err)

	secure, err := authority.Control(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan objects.Name, 100)
	// serve serves until stop is called.
	serve := func() (stop func()) {
		l, err := net.Listen("tcp", s.own+":8035")
		if err != nil {
			t.Fatal(err)
		}
		s.server = ads.New(ads.Config{
			Log: slog.New(slog.DiscardHandler),
			Identify: func(ctx context.Context, node *corev3.Node) (objects.Name, error) {
				name, err := ads.Certified(ctx, node)
				said <- name
				return name, err
			},
		})
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- s.server.Run(ctx, l, secure) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	stop := serve()
	s.backend("a", 21000)
	s.apply(to("a"))
	s.run(envoy.Place{
		Gateway: objects.Name{Namespace: "ns", Name: "said"}, Node: "envoy-0", Admin: netip.MustParseAddrPort(s.own + ":9901"),
		Probe:   21009,
		Extproc: filepath.Join(s.dir, "extproc.sock"), ControlHost: s.own, ControlPort: 8035, Identity: folder,
	})
	s.await("200 a")
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/stats": http.StatusNotFound} {
		response, err := client.Get("http://" + s.own + ":21009" + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("at the probe port, %s gets the status %d", path, response.StatusCode)
		}
	}

	certify(objects.Name{Namespace: "ns", Name: "replaced"})
	deadline := time.After(20 * time.Second)
	for {
		stop()
		for len(said) > 0 {
			<-said
		}
		stop = serve()
		s.apply(to("a"))
		select {
		case name := <-said:
			if name.Name == "replaced" {
				stop()
				return
			}
			if name != gateway {
				t.Fatalf("the client's Gateway is %v", name)
			}
		case <-deadline:
			t.Fatal("timeout waiting for the new certificate")
		}
	}
}
