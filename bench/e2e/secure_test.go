package e2e

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/internal/listen"
)

// secureEngine is an engine that serves only over TLS and requires a token. It lists one model and
// records the tokens that it received.
type secureEngine struct {
	authority string // authority of its certificate, in PEM
	mu        sync.Mutex
	heard     map[string]bool // Authorization headers that the engine received
}

func (e *secureEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.heard[r.Header.Get("Authorization")] = true
	e.mu.Unlock()
	switch {
	case r.Header.Get("Authorization") != "Bearer engines-own":
		http.Error(w, "it wants its token", http.StatusUnauthorized)
	case r.URL.Path == "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	case r.URL.Path == "/v1/completions":
		_, _ = fmt.Fprintf(w, "%s over TLS to %s", r.Proto, r.TLS.ServerName)
	case r.URL.Path == "/inference.GRPCInferenceService/ModelInfer":
		_, _ = io.Copy(io.Discard, r.Body)
		answer, err := proto.Marshal(&inference.ModelInferResponse{ModelName: r.Proto + " over TLS to " + r.TLS.ServerName})
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/grpc")
		_, _ = w.Write(append([]byte{0, 0, 0, 0, byte(len(answer))}, answer...))
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	default:
		http.NotFound(w, r)
	}
}

// got reports whether the engine received an Authorization header.
func (e *secureEngine) got(authorization string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard[authorization]
}

func startSecureEngine(t *testing.T, address, name string) *secureEngine {
	t.Helper()
	certificate, err := listen.Certify(time.Now(), time.Hour, true, name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	e := &secureEngine{
		authority: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})),
		heard:     make(map[string]bool),
	}
	server := &http.Server{
		Handler: e, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12},
	}
	go func() { _ = server.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return e
}

// secured returns the YAML of a PoolSettings with which a pool's engines are called over TLS. The
// parameter authorization decides whether the engines get the clients' Authorization header or
// their own token.
func secured(pool, authorization, authority string) string {
	return fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: %[1]s}\nspec:\n  poolRef: {name: %[1]s}\n  authorization: %[2]s\n"+
		"  engineTLS:\n    hostname: engines.test\n    caCertificates: |\n      %[3]s\n---\n", pool, authorization,
		strings.ReplaceAll(strings.TrimSpace(authority), "\n", "\n      "))
}

// Requests to engines that require TLS and a token get these engines' token from extproc. The
// clients' tokens reach no engine of the pool.
func TestEnginesWithTLSAndToken(t *testing.T) {
	runs(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("engines-own\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, throughGateway, extprocFlags("--engine-token-file", token))
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	e := startSecureEngine(t, prefix+"71:8443", "engines.test")
	h2 := startSecureEngine(t, prefix+"72:8443", "engines.test")
	other := startSecureEngine(t, prefix+"73:8443", "engines.test")
	open := startSecureEngine(t, prefix+"74:8443", "engines.test")
	s.write("ours.yaml",
		"apiVersion: v1\nkind: Service\nmetadata: {name: ours}\nspec: {selector: {app.kubernetes.io/name: headgate}, ports: [{port: 9002}]}\n")
	const failsOpen = ", endpointPickerRef: {name: ours, port: {number: 9002}, failureMode: FailOpen}"
	s.write("pools.yaml", listed("secure", prefix+"71:8443", failsOpen)+secured("secure", "Engine", e.authority)+toPool("secure", "secure")+
		"---\n"+
		listed("h2", prefix+"72:8443", ", appProtocol: kubernetes.io/h2c")+secured("h2", "Engine", h2.authority)+toPool("h2", "h2")+"---\n"+
		listed("stranger", prefix+"73:8443", failsOpen)+secured("stranger", "Client", e.authority)+toPool("stranger", "stranger")+"---\n"+
		listed("open", prefix+"74:8443", failsOpen)+secured("open", "Client", open.authority)+toPool("open", "open"))
	with := func(name, authorization string) request {
		q := at(name, completion("m", 1, false))
		q.header["Authorization"] = authorization
		return q
	}
	var a answer
	s.await("extproc sees the engine, and Envoy reaches it", func() bool {
		a = s.must(with("secure", "Bearer client"))
		return a.status == http.StatusOK
	})
	if a.body != "HTTP/1.1 over TLS to engines.test" {
		t.Errorf("it was asked by %s", a.body)
	}
	s.await("another speaks HTTP/2", func() bool { a = s.must(with("h2", "Bearer client")); return a.status == http.StatusOK })
	if a.body != "HTTP/2.0 over TLS to engines.test" {
		t.Errorf("it was asked by %s", a.body)
	}
	s.await("a client's own Authorization passes where nobody says another", func() bool {
		return s.must(with("open", "Bearer engines-own")).status == http.StatusOK
	})
	s.write("calls.yaml",
		"apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {name: calls}\nspec:\n  parentRefs: [{name: gateway}]\n  hostnames: [calls.test]\n"+
			"  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: secure}]}]\n")
	conn, err := grpc.NewClient("passthrough:///"+s.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("calls.test"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s.await("a gRPC call comes there by HTTP/2", func() bool {
		a, err := inference.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), tensor("m", 1))
		return err == nil && a.GetModelName() == "HTTP/2.0 over TLS to engines.test"
	})
	refused(t, "an engine whose certificate extproc does not trust", s.must(with("stranger", "Bearer client")),
		http.StatusServiceUnavailable, "no_endpoint")
	if a := s.must(at("secure", completion("m", 1, false))); a.status != http.StatusOK {
		t.Errorf("without an Authorization of its own a request gets %d %s", a.status, a.body)
	}
	if a := s.must(at("secure", request{
		method: "GET", path: "/v1/files/x",
		header: map[string]string{"Authorization": "Bearer client"},
	})); a.status != http.StatusNotFound {
		t.Errorf("a request without a body gets %d %s", a.status, a.body)
	}
	s.Extproc.Kill()
	refused(t, "a pool whose engines want their token, without extproc,", s.must(with("secure", "Bearer client")),
		http.StatusServiceUnavailable, "picker_unavailable")
	refused(t, "an engine whose certificate Envoy does not trust", s.must(with("stranger", "Bearer client")), http.StatusServiceUnavailable,
		"no_endpoint")
	if a := s.must(with("open", "Bearer engines-own")); a.status != http.StatusOK {
		t.Errorf("a pool that fails open gets %d %s", a.status, a.body)
	}
	if !open.got("Bearer engines-own") || other.got("Bearer client") {
		t.Error("an engine that is trusted was not asked, or one that is not was")
	}
	for _, e := range []*secureEngine{e, h2} {
		if e.got("Bearer client") {
			t.Error("an engine got the Authorization of a client")
		}
	}
}
