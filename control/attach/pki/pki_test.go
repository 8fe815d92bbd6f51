package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/control/attach/pki"
	"github.com/headgate/headgate/internal/objects"
)

var (
	now = time.Now()
	ns  = objects.Name{Namespace: "ns", Name: "g"}
)

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	made, err := pki.New(now)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := made.PEM()
	if err != nil {
		t.Fatal(err)
	}
	is, err := pki.Read(certificate, key) // a restarted control reads the stored authority
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// client returns the TLS configuration of an Envoy.
func client(t *testing.T, trusted *pki.Authority, certificate, key []byte) *tls.Config {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted.Certificate())
	c := &tls.Config{RootCAs: roots, ServerName: wire.ControlName}
	if certificate != nil {
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// call connects to control, and returns the Gateway that control finds in the client's certificate.
func call(t *testing.T, at time.Time, server, client *tls.Config) (objects.Name, error) {
	t.Helper()
	server, client = server.Clone(), client.Clone()
	server.Time, client.Time = func() time.Time { return at }, func() time.Time { return at }
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	ended := make(chan struct{})
	go func() {
		c := tls.Client(there, client)
		err := c.Handshake()
		if err == nil {
			_, _ = c.Read(make([]byte, 1)) // receives the server's error for a rejected certificate
		}
		close(ended)
	}()
	c := tls.Server(here, server)
	if err := c.Handshake(); err != nil {
		_ = here.Close()
		<-ended
		return objects.Name{}, err
	}
	name, err := pki.GatewayOf(c.ConnectionState().PeerCertificates[0])
	_ = here.Close()
	<-ended
	return name, err
}

func TestControlIdentifiesTheGatewayOfAnEnvoy(t *testing.T) {
	a, other := authority(t), authority(t)
	server, err := a.Control(now)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := a.Gateway(ns, now)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := call(t, now, server, client(t, a, certificate, key)); err != nil || name != ns {
		t.Errorf("the client's Gateway is %v, %v", name, err)
	}
	foreign, foreignKey, err := other.Gateway(ns, now)
	if err != nil {
		t.Fatal(err)
	}
	own, ownKey, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]*tls.Config{
		"without a certificate":            client(t, a, nil, nil),
		"with one of another authority":    client(t, a, foreign, foreignKey),
		"with the authority's certificate": client(t, a, own, ownKey),
		"that trusts another authority":    client(t, other, certificate, key),
	} {
		if name, err := call(t, now, server, c); err == nil {
			t.Errorf("an Envoy %s is accepted for Gateway %v", what, name)
		}
	}
	if name, err := call(t, now.Add(91*24*time.Hour), server, client(t, a, certificate, key)); err == nil {
		t.Errorf("an expired certificate is accepted for Gateway %v", name)
	}
	if _, err := pki.Read(certificate, key); err == nil {
		t.Error("a Gateway's certificate is accepted as an authority")
	}
}

func TestCertificatesAreReplacedInTime(t *testing.T) {
	a, other := authority(t), authority(t)
	certificate, _, err := a.Gateway(ns, now)
	if err != nil {
		t.Fatal(err)
	}
	const day = 24 * time.Hour
	for _, c := range []struct {
		what string
		by   *pki.Authority
		of   objects.Name
		text []byte
		at   time.Duration
		want bool
	}{
		{"at once", a, ns, certificate, 0, true},
		{"before it is due", a, ns, certificate, 59 * day, true},
		{"when it is due", a, ns, certificate, 60 * day, false},
		{"of another Gateway", a, objects.Name{Namespace: "ns", Name: "other"}, certificate, 0, false},
		{"of another authority", other, ns, certificate, 0, false},
		{"by a clock that is far behind", a, ns, certificate, -2 * day, false},
		{"none", a, ns, nil, 0, false},
		{"no certificate", a, ns, []byte("x"), 0, false},
		{"the authority's own", a, ns, a.Certificate(), 0, false},
	} {
		if got := c.by.Fresh(c.text, c.of, now.Add(c.at)); got != c.want {
			t.Errorf("%s: Fresh returns %v", c.what, got)
		}
	}
}

func TestOnlyGatewayCertificatesNameAGateway(t *testing.T) {
	for _, text := range []string{
		"headgate://gateway/ns", "headgate://gateway/ns/", "headgate://gateway//g", "headgate://gateway/ns/g/x",
		"headgate://other/ns/g", "https://gateway/ns/g",
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if name, err := pki.GatewayOf(&x509.Certificate{URIs: []*url.URL{u}}); err == nil {
			t.Errorf("%s is accepted for Gateway %v", text, name)
		}
	}
}
