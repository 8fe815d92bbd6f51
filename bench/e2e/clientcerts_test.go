package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// caller is a client with a self-signed certificate.
type caller struct {
	tls.Certificate
	authority string // the certificate, in PEM
}

func newCaller(t *testing.T) *caller {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "a caller"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &caller{
		tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
	}
}

// Clients of a TLS listener need a certificate signed by the Gateway's authorities, unless the
// Gateway permits any client. A change of authorities cuts no stream. If the Gateway has no valid
// authority, every connection is rejected.
func TestClientsOfAListenerHaveCertificates(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	one, two := newCaller(t), newCaller(t)
	gateway := func(mode string) {
		frontend := "default: {validation: {mode: " + mode + ", caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}"
		s.write("gateway.yaml", strings.Replace(strings.Replace(aGateway(prefix+"1"), "port: 8080, protocol: HTTP}",
			"port: 8080, protocol: HTTP}, "+
				"{name: https, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: own}]}}", 1), "  gatewayClassName:",
			"  tls: {frontend: {"+frontend+"}}\n  gatewayClassName:", 1))
	}
	authority := func(c *caller) {
		s.write("ca.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca}\ndata:\n  ca.crt: |\n    "+
			strings.ReplaceAll(strings.TrimSpace(c.authority), "\n", "\n    ")+"\n")
	}
	s.write("secret.yaml", aSecret(t, "own", "own.test"))
	authority(one)
	gateway("AllowValidOnly")
	calls := func(with *caller) string {
		config := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the client is looked at, not the server
		if with != nil {
			config.Certificates = []tls.Certificate{with.Certificate}
		}
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+prefix+"1:8443/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(r)
		if err != nil {
			return "refused"
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		return strconv.Itoa(response.StatusCode)
	}
	await := func(what, wantOne, wantTwo, wantNobody string) {
		t.Helper()
		s.await(what, func() bool { return calls(one) == wantOne && calls(two) == wantTwo && calls(nil) == wantNobody })
	}
	await("the one who is known is served", "200", "refused", "refused")
	authority(two)
	await("another one is known", "refused", "200", "refused")
	gateway("AllowInsecureFallback")
	await("anybody is served", "200", "200", "200")
	gateway("AllowValidOnly")
	await("those who are known are served", "refused", "200", "refused")
}
