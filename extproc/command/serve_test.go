package command

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/extproc/options"
)

// gateway starts extproc for a data plane other than Headgate's own Envoy, with the ports that
// common manifests use.
func gateway(t *testing.T, grpcHost string, flags ...string) (done chan error, stop context.CancelFunc) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(someObjects), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	args := append([]string{
		"--objects", dir, "--pool-name", "base", "--pool-namespace", "default", "--metrics-port", "-1",
		"--grpc-host", grpcHost, "--grpc-port", "9002", "--grpc-health-port", "9003", "--drain-delay", "0s", "--drain-timeout", "100ms",
	}, flags...)
	done = make(chan error, 1)
	go func() { done <- Run(ctx, args, io.Discard, io.Discard) }()
	t.Cleanup(cancel)
	return done, cancel
}

func check(t *testing.T, conn *grpc.ClientConn, service string) healthv1.HealthCheckResponse_ServingStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("%q: %v", service, err)
	}
	return answer.GetStatus()
}

func client(t *testing.T, target string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+target, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// The health service answers for every name that gateways probe, on its own port and on the port of
// ext_proc.
func TestHealthOfEveryName(t *testing.T) {
	own := host + "1"
	gateway(t, own)
	for _, port := range []string{":9002", ":9003"} { // these are loopback addresses, so they are served without TLS
		conn := client(t, own+port, insecure.NewCredentials())
		for _, service := range []string{
			"", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor",
			"inference-extension",
		} {
			if got := check(t, conn, service); got != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("%s %q is %v", port, service, got)
			}
		}
	}
}

// After SIGTERM, health reports NOT_SERVING, new streams of gateways are served until the delay has
// passed, and open streams finish.
func TestStreamsFinishAfterSIGTERM(t *testing.T) {
	own := host + "2"
	done, stop := gateway(t, own, "--drain-delay", "300ms", "--drain-timeout", "30s")
	conn := client(t, own+":9002", insecure.NewCredentials())
	check(t, conn, "") // reports SERVING
	ask := func() extprocv3.ExternalProcessor_ProcessClient {
		s, err := extprocv3.NewExternalProcessorClient(conn).Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	models := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		EndOfStream: true,
		Headers:     &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":method", Value: "GET"}, {Key: ":path", Value: "/v1/models"}}},
	}}}
	answered := func(s extprocv3.ExternalProcessor_ProcessClient) {
		t.Helper()
		if err := s.Send(models); err != nil {
			t.Error(err)
		}
		if m, err := s.Recv(); err != nil || m.GetImmediateResponse() == nil {
			t.Errorf("%v, %v", m, err)
		}
	}
	open := ask()
	watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthv1.HealthCheckResponse_ServingStatus{
		healthv1.HealthCheckResponse_SERVING,
		healthv1.HealthCheckResponse_NOT_SERVING,
	} {
		if m, err := watch.Recv(); err != nil || m.GetStatus() != want {
			t.Fatalf("health is %v, %v, want %v", m, err, want)
		}
		if want == healthv1.HealthCheckResponse_SERVING {
			stop()
		}
	}
	late := ask() // a stream opened before the delay has passed
	answered(late)
	_ = late.CloseSend()
	answered(open)
	select {
	case err := <-done:
		t.Fatalf("it ended while a stream was open: %v", err)
	case <-time.After(400 * time.Millisecond): // more than the delay
	}
	_ = open.CloseSend() // streams that watch health do not delay the shutdown
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not end after its streams")
	}
}

func TestSettingsAreExplained(t *testing.T) {
	dir := t.TempDir()
	own := someObjects +
		"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: mine}\nspec: {poolRef: {name: base}, policy: random}\n"
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(own), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Run(t.Context(), []string{
		"--objects", dir, "--explain-config", "--adapter-threshold", "5", "--listen", "unix:s",
		"--stale-after", "20s", "-v", "4",
	}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"POOL default/base", "policy random PoolSettings default/mine, " + dir + "/objects.yaml:13 how",
		"adapterThreshold 5 flag --adapter-threshold prefer",
		"timeouts.queue 5m0s default longest wait", "timeouts.staleAfter 20s flag --stale-after",
		"timeouts.lostAfter 20s flag --stale-after", "--grpc-port -1 flag --listen", "--log-level DEBUG flag --v",
		"--listen unix:s flag --listen", "--drain-timeout 5s default", "llama default/base LLMRoute default/llama, " + dir +
			"/objects.yaml:8",
	} {
		if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
	t.Setenv("NAMESPACE", "llm")
	t.Setenv("KUBECONFIG", dir+"/none")
	c, err := options.Parse([]string{"--pool-name", "x"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"pool-namespace": "$NAMESPACE", "kube": "flag --pool-name", "namespace": "flag --pool-name",
		"kubeconfig": "$KUBECONFIG", "grpc-port": "default",
	} {
		if got := c.Explain.From(flag); got != want {
			t.Errorf("--%s comes from %s, want %s", flag, got, want)
		}
	}
}
