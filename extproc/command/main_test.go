package command

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

const someObjects = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: base}
spec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}]}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: {name: llama}
spec: {backendRefs: [{name: base}]}
`

// host is a loopback address that no other test process uses.
var host = fmt.Sprintf("127.60.%d.%d", os.Getpid()/20%250, os.Getpid()%20+1)

// started is a running extproc.
type started struct {
	socket, tcp string
	cancel      context.CancelFunc
	done        chan error
}

func start(t *testing.T, dir string) started {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(someObjects), 0o644); err != nil {
		t.Fatal(err)
	}
	s := started{socket: filepath.Join(dir, "run", "extproc.sock"), tcp: host + ":9002", done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	args := []string{
		"--objects", dir, "--listen", "unix:" + s.socket, "--listen", s.tcp,
		"--metrics-host", host, "--metrics-port", "9090", "--drain-timeout", "100ms",
	}
	go func() { s.done <- Run(ctx, args, io.Discard, io.Discard) }()
	t.Cleanup(cancel)
	return s
}

func dial(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Extproc serves on both of its sockets, reports health under both service names, and stops in time
// even if a stream is open.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	for _, target := range []string{"unix:" + s.socket, "passthrough:" + s.tcp} {
		conn := dial(t, target)
		for _, service := range []string{"", "envoy.service.ext_proc.v3.ExternalProcessor"} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service},
				grpc.WaitForReady(true))
			cancel()
			if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				t.Fatalf("%s %q: %v, %v", target, service, answer, err)
			}
		}
		stream, err := extprocv3.NewExternalProcessorClient(conn).Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extprocv3.HttpHeaders{
				EndOfStream: true,
				Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
					{Key: ":method", RawValue: []byte("GET")}, {Key: ":path", RawValue: []byte("/v1/models")},
				}},
			},
		}}); err != nil {
			t.Fatal(err)
		}
		if m, err := stream.Recv(); err != nil || !strings.Contains(string(m.GetImmediateResponse().GetBody()), `"id":"llama"`) {
			t.Errorf("%s: %v, %v", target, m, err)
		}
	}
	response, err := http.Get("http://" + host + ":9090/readyz") //nolint:noctx // one question
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("/readyz: %v, %v", response, err)
	} else {
		_ = response.Body.Close()
	}

	// A second process cannot serve on the same socket.
	err = Run(t.Context(), []string{"--objects", dir, "--listen", "unix:" + s.socket, "--metrics-port", "-1"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "another process listens there: stop it or choose another path") {
		t.Errorf("a second extproc on the socket: %v", err)
	}

	s.cancel()
	select {
	case err := <-s.done:
		if err != nil {
			t.Errorf("after its context ended: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not end while streams are open")
	}
}

// A process that takes over gets the socket only after it has scraped every endpoint. Otherwise it
// would reject requests that the running process can serve.
func TestTakeOverAfterTheFirstScrapes(t *testing.T) {
	answer := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-answer
		_, _ = io.WriteString(w, `{"data":[{"id":"llama"}]}`)
	}))
	defer engine.Close()
	dir := t.TempDir()
	s := start(t, dir)
	conn := dial(t, "unix:"+s.socket)
	if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	taken := func() bool {
		now, err := os.Stat(s.socket)
		return err == nil && !os.SameFile(before, now)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, []string{
			"--endpoints", engine.Listener.Addr().String(), "--listen", "unix:" + s.socket, "--take-over", "--metrics-port", "-1",
		}, io.Discard, io.Discard)
	}()
	select {
	case err := <-done:
		t.Fatal(err)
	case <-time.After(300 * time.Millisecond): // less than the one second that a scrape may take
	}
	if taken() {
		t.Error("it took over before it scraped its endpoint")
	}
	close(answer)
	for limit := time.After(10 * time.Second); !taken(); {
		select {
		case <-time.After(time.Millisecond):
		case <-limit:
			t.Fatal("it does not take over")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := Run(t.Context(), []string{"--objects", dir, "--listen", "127.0.0.1:1", "--take-over"}, io.Discard, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "--take-over works for sockets only") {
		t.Errorf("taking over a TCP port: %v", err)
	}
}

// With endpoints on the command line, extproc needs no folder of objects. It becomes ready and
// scrapes the endpoints, which are given by name or by address, over TLS and with a token if so
// configured. A folder is also allowed.
func TestEndpointsOnTheCommandLine(t *testing.T) {
	engines := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.TLS != nil && r.Header.Get("Authorization") != "Bearer secret":
			http.Error(w, "", http.StatusUnauthorized)
		case r.URL.Path == "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"llama"}]}`)
		default:
			_, _ = io.WriteString(w, "sglang:num_running_reqs 3\n")
		}
	})
	plain, overTLS := httptest.NewServer(engines), httptest.NewTLSServer(engines)
	defer plain.Close()
	defer overTLS.Close()
	dir := t.TempDir()
	list := "---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: rack, labels: {app: llama}}\nspec: {addresses: ['127.0.0.8:1']}\n"
	for file, text := range map[string]string{
		"objects.yaml": someObjects + list, "token": "secret\n",
		"ca.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: overTLS.Certificate().Raw})),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address, secure := plain.Listener.Addr().String(), overTLS.Listener.Addr().String()
	const (
		state   = `headgate_endpoint_state{endpoint="%s",pool="default/%s",state="%s"} 1`
		running = `headgate_endpoint_running{endpoint="%s",pool="default/endpoints"} 3`
	)
	for _, c := range []struct {
		name, args string
		want       []string // lines that the metrics must contain
	}{
		{
			"alone", "--endpoints " + strings.Replace(address, "127.0.0.1", "localhost", 1) + ",127.0.0.9:1",
			[]string{fmt.Sprintf(running, address), fmt.Sprintf(state, "127.0.0.9:1", "endpoints", "out")},
		},
		{
			"beside a folder", "--endpoints " + address + " --objects " + dir,
			[]string{fmt.Sprintf(running, address), fmt.Sprintf(state, "127.0.0.8:1", "base", "out")},
		},
		{
			"over TLS", "--endpoints " + secure + " --engine-tls --engine-token-file " + dir + "/token --engine-ca-file " + dir + "/ca.pem",
			[]string{fmt.Sprintf(running, secure), fmt.Sprintf(state, secure, "endpoints", "healthy")},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			metrics := "http://" + host + ":9091/"
			done := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			args := append(strings.Fields(c.args), "--listen", "unix:"+filepath.Join(t.TempDir(), "s"), "--metrics-host", host,
				"--metrics-port", "9091")
			go func() { done <- Run(ctx, args, io.Discard, io.Discard) }()
			await(t, metrics+"readyz", "ok")
			for _, want := range c.want {
				await(t, metrics+"metrics", want)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// await reads a page until it contains want.
func await(t *testing.T, url, want string) {
	t.Helper()
	var last string
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(10 * time.Second); ; {
		if response, err := http.Get(url); err != nil { //nolint:noctx // it is bounded by the limit
			last = err.Error()
		} else {
			page, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if last = string(page); response.StatusCode == http.StatusOK && strings.Contains(last, want) {
				return
			}
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s never contained %s; the last page was:\n%s", url, want, last)
		}
	}
}

// The flag --processors limits the processors of the process; without it Go's limit stays.
func TestProcessorsAreLimited(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	flags := []string{"--endpoints", "127.0.0.1:1", "--listen", "unix:x", "--explain-config"}
	for _, c := range []struct {
		flags []string
		want  int
	}{{nil, was}, {[]string{"--processors", "0"}, was}, {[]string{"--processors", "3"}, 3}} {
		if err := Run(t.Context(), append(c.flags, flags...), io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
		if got := runtime.GOMAXPROCS(0); got != c.want {
			t.Errorf("%v: %d processors, want %d", c.flags, got, c.want)
		}
	}
}

func TestFaultsAtTheStartEndIt(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.yaml"), []byte("kind: Nothing\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--endpoints a:1 --listen unix:x --engine-token-file " + empty: "--engine-token-file: " + empty +
			" is empty: write the engines' token into it",
		"--endpoints a:1 --listen unix:x --engine-token-file " + dir + "/none": "--engine-token-file: open " + dir +
			"/none: no such file or directory",
		"--endpoints a:1 --listen unix:x --engine-tls --engine-ca-file " + empty: "--engine-ca-file: " + empty +
			" contains no PEM certificate",
		"--endpoints a:1 --listen unix:x --engine-tls --engine-ca-file " + dir + "/none": "--engine-ca-file: open " + dir +
			"/none: no such file or directory",
		"--endpoints a:1 --listen unix:x --control nowhere": "--control nowhere: want unix:PATH or HOST:PORT",
		"--endpoints a:1 --listen unix:x --control 10.0.0.1:1 --control-ca-file " + empty: "--control-ca-file: " + empty +
			" contains no PEM certificate",
		"--endpoints a:1 --listen unix:x --control 10.0.0.1:1 --control-cert-path " + dir + "/none": "--control-cert-path: open " + dir +
			"/none/tls.crt: no such file or directory",
		"--objects " + dir + " --listen unix:" + dir + "/s": "x.yaml:1: ",
		"--kube --kubeconfig " + dir + "/none --listen unix:" + dir + "/s": "the API server: stat " + dir +
			"/none: no such file or directory",
		"--kube --kubeconfig " + empty + " --listen unix:" + dir +
			"/s": "cannot find the API server: set --kubeconfig FILE or $KUBECONFIG, or run in a pod with a service account",
		"--objects " + dir + "/none --listen unix:" + dir + "/s": "no such file or directory",
		"--objects " + t.TempDir() + " --listen unix:" + dir + "/" +
			strings.Repeat("x", 103-len(dir)): "the path of a Unix socket has at most 103 bytes, this one has 104",
		"--objects " + t.TempDir() + " --listen 192.0.2.1:1":                  "--listen 192.0.2.1:1: ",
		"--objects " + t.TempDir() + " --listen unix:/proc/nowhere/extproc.s": "--listen unix:/proc/nowhere/extproc.s: ",
	} {
		err := Run(t.Context(), append(strings.Fields(args), "--metrics-port", "-1"), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
