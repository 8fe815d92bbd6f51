package engineclient_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/listen"
)

// One transport calls each engine by its own settings; an engine without settings is called by the
// command line's.
func TestEngineSettingsApply(t *testing.T) {
	serve := func(secure string, speaks func(*http.Protocols)) (address, authority string) {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := ""
			if r.TLS != nil {
				name = " to " + r.TLS.ServerName
			}
			fmt.Fprint(w, r.Proto+name)
		}))
		s.Config.Protocols = new(http.Protocols)
		speaks(s.Config.Protocols)
		if secure == "" {
			s.Start()
		} else {
			certificate, err := listen.Certify(time.Now(), time.Hour, true, secure)
			if err != nil {
				t.Fatal(err)
			}
			authority = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}))
			l := tls.NewListener(s.Listener, &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12})
			s.Listener = l
			s.Start()
		}
		t.Cleanup(s.Close)
		return s.Listener.Addr().String(), authority
	}
	http1 := func(p *http.Protocols) { p.SetHTTP1(true) }
	plain, _ := serve("", http1)
	h2c, _ := serve("", func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })
	a, ofA := serve("a.test", http1)
	b, ofB := serve("b.test", http1)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ofB))
	known := engineclient.Access{TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	for what, c := range map[string]struct {
		access        engineclient.Access
		address, host string
		over          v1alpha1.EngineTLS
		h2c           bool
		want          string
	}{
		"nothing is said": {address: plain, want: "HTTP/1.1"},
		"HTTP/2 is":       {address: h2c, h2c: true, want: "HTTP/2.0"},
		"TLS is": {
			address: a, over: v1alpha1.EngineTLS{Hostname: "a.test", CACertificates: ofA},
			want: "HTTP/1.1 to a.test",
		},
		"HTTP/2 over TLS is": {
			address: a, h2c: true, over: v1alpha1.EngineTLS{Hostname: "a.test", CACertificates: ofA},
			want: "HTTP/1.1 to a.test",
		},
		"another name is": {
			address: a, over: v1alpha1.EngineTLS{Hostname: "b.test", CACertificates: ofA},
			want: "certificate is valid for a.test",
		},
		"another authority is": {
			address: a, over: v1alpha1.EngineTLS{Hostname: "a.test", CACertificates: ofB},
			want: "unknown authority",
		},
		"any certificate is good": {
			address: b, over: v1alpha1.EngineTLS{Hostname: "x.test", InsecureSkipVerify: true},
			want: "HTTP/1.1 to x.test",
		},
		"the command line says TLS": {access: known, address: b, host: "b.test", want: "HTTP/1.1 to b.test"},
		"settings say it before the flags": {
			access: known, address: a, host: "b.test",
			over: v1alpha1.EngineTLS{Hostname: "a.test", CACertificates: ofA}, want: "HTTP/1.1 to a.test",
		},
		"the flags do not trust it": {access: known, address: a, host: "a.test", want: "unknown authority"},
		"what is no certificate is trusted": {
			address: a, over: v1alpha1.EngineTLS{Hostname: "a.test", CACertificates: "none"},
			want: "holds no certificate",
		},
	} {
		client := http.Client{Transport: c.access.Transport(time.Second), Timeout: 10 * time.Second}
		r, err := c.access.Over(c.over, c.h2c).Request(t.Context(), http.MethodGet, c.address, c.host, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if answer, err := client.Do(r); err != nil {
			got = err.Error()
		} else {
			text, _ := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			got = string(text)
		}
		client.CloseIdleConnections()
		if !strings.Contains(got, c.want) {
			t.Errorf("where %s: %s, want %s", what, got, c.want)
		}
	}
}
