package e2e

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/listen"
)

// Envoy calls a Service over TLS as its BackendTLSPolicy specifies, and accepts only servers with
// the policy's hostname and a certificate of its authorities. While the policy cannot be applied,
// requests fail and none is sent in plain text.
func TestServiceOverTLS(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	own, err := listen.Certify(time.Now(), time.Hour, true, "shop.internal", "other.internal")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := listen.Certify(time.Now(), time.Hour, true, "shop.internal")
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", prefix+"41:9443", &tls.Config{
		Certificates: []tls.Certificate{*own}, ClientAuth: tls.RequestClientCert,
		MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		t.Fatal(err)
	}
	is := &http.Server{
		ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			from := ""
			for _, c := range r.TLS.PeerCertificates {
				from = " from " + strings.Join(c.DNSNames, ",")
			}
			_, _ = io.WriteString(w, "as "+r.TLS.ServerName+from)
		}),
	}
	go func() { _ = is.Serve(l) }()
	t.Cleanup(func() { _ = is.Close() })

	policy := func(hostname, more string) {
		s.write("policy.yaml", fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {name: shop}\n"+
			"spec: {targetRefs: [{group: '', kind: Service, name: shop}], validation: {hostname: %s, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]%s}}\n",
			hostname, more))
	}
	authority := func(pair *tls.Certificate) {
		text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
		s.write("ca.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca}\ndata:\n  ca.crt: |\n    "+
			strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")+"\n")
	}
	policy("shop.internal", "")
	authority(own)
	s.write("endpoints.yaml",
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: shop-1, labels: {kubernetes.io/service-name: shop}}\n"+
			"addressType: IPv4\nports: [{name: web, port: 9443, protocol: TCP}]\nendpoints: [{addresses: ['"+prefix+"41']}]\n")
	s.write("shop.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec: {ports: [{name: web, port: 443}]}\n---\n"+
		"apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: shop}\n"+
		"spec: {parentRefs: [{name: gateway}], hostnames: [shop.test], rules: [{backendRefs: [{name: shop, port: 443}]}]}\n")
	client := &http.Client{Timeout: 10 * time.Second}
	ask := func() string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+prefix+"1:8080/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "shop.test"
		response, err := client.Do(r)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusOK {
			return strconv.Itoa(response.StatusCode)
		}
		return string(text)
	}
	for _, c := range []struct {
		what string
		do   func()
		want string
	}{
		{"it is known", func() {}, "as shop.internal"},
		{"it has another name, too", func() { policy("other.internal", "") }, "as other.internal"},
		{"it does not have the name", func() { policy("unknown.internal", "") }, "503"},
		{"one of the names is its", func() {
			policy("unknown.internal",
				", subjectAltNames: [{type: Hostname, hostname: x.internal}, {type: Hostname, hostname: shop.internal}]")
		}, "as unknown.internal"},
		{"none of the names is its", func() { policy("shop.internal", ", subjectAltNames: [{type: URI, uri: 'spiffe://x/y'}]") }, "503"},
		{"it is known again", func() { policy("shop.internal", "") }, "as shop.internal"},
		{"somebody else has signed for it", func() { authority(stranger) }, "503"},
		{"its authority is back", func() { authority(own) }, "as shop.internal"},
		{"nobody says who has signed", func() {
			if err := os.Remove(filepath.Join(s.objects, "ca.yaml")); err != nil {
				t.Fatal(err)
			}
		}, "500"},
		{"somebody does", func() { authority(own) }, "as shop.internal"},
		{"Envoy shows itself", func() {
			s.write("own.yaml", aSecret(t, "own", "gateway.internal"))
			s.write("gateway.yaml", strings.Replace(aGateway(prefix+"1"), "  gatewayClassName:",
				"  tls: {backend: {clientCertificateRef: {name: own}}}\n  gatewayClassName:", 1))
		}, "as shop.internal from gateway.internal"},
		{
			"it shows another certificate", func() { s.write("own.yaml", aSecret(t, "own", "renewed.internal")) },
			"as shop.internal from renewed.internal",
		},
	} {
		c.do()
		s.await(c.what+": "+c.want, func() bool { return ask() == c.want })
	}
}
