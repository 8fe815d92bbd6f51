package command

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/test/apiserver"
)

// deployments are the args from the Deployments of other pickers, for a pool llama in namespace
// llm.
var deployments = []struct {
	name    string
	env     map[string]string
	args    []string
	overTLS bool // the engines serve their metrics over TLS
	ignored string
}{
	{
		name: "llm-d's chart, two replicas",
		args: []string{
			"--pool-name", "llama", "--pool-namespace", "llm", "--pool-group", "inference.networking.k8s.io",
			"--zap-encoder", "json", "--config-file", "/config/default-plugins.yaml", "--ha-enable-leader-election",
			"--grpc-health-port", "9003", "--v=2", "--tracing=false", "--metrics-endpoint-auth=false",
		},
		ignored: "--config-file --pool-group --metrics-endpoint-auth --ha-enable-leader-election --tracing --zap-encoder",
	},
	{
		name: "the inference extension's manifest",
		args: []string{
			"--pool-name", "llama", "--pool-namespace", "llm", "--v", "4", "--zap-encoder", "json",
			"--grpc-port", "9002", "--grpc-health-port", "9003", "--config-file", "/config/default-plugins.yaml",
		},
		ignored: "--config-file --zap-encoder",
	},
	{
		name: "llm-d's for development, whose namespace is in the environment",
		env:  map[string]string{"NAMESPACE": "llm"},
		args: []string{"--pool-name", "llama", "-v", "4", "--zap-encoder", "json", "--grpc-port", "9002", "--grpc-health-port", "9003"},

		ignored: "--zap-encoder",
	},
	{
		name: "KServe's, with engines over TLS",
		args: []string{
			"--pool-name", "llama", "--pool-namespace", "llm", "--zap-encoder", "json", "--grpc-port", "9002", "--grpc-health-port", "9003",
			"--secure-serving", "--model-server-metrics-scheme", "https", "--kv-cache-usage-percentage-metric", "vllm:kv_cache_usage_perc",
			"--config-text", "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n",
		},
		overTLS: true,
		ignored: "--config-text --kv-cache-usage-percentage-metric --zap-encoder",
	},
}

// With the unchanged args of another picker's Deployment and permission to read one namespace,
// extproc serves ext_proc, health and metrics on the given ports. One log line lists the flags that
// it ignores.
func TestReplacesAnotherPicker(t *testing.T) {
	s := apiserver.Run(t)
	objects := s.Objects(t)
	objects.CRDs()
	objects.Apply("{apiVersion: v1, kind: Namespace, metadata: {name: llm}}")
	objects.In("llm").ApplyFiles("manifests/base/gateway/rbac.yaml")
	objects.In("llm").Apply(`apiVersion: v1
kind: ServiceAccount
metadata: {name: llama-epp}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: headgate-reads}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: headgate-reads}
subjects: [{kind: ServiceAccount, name: llama-epp, namespace: llm}]
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama}
spec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: llama-epp, port: {number: 9002}}}
`)
	config, err := s.ServiceAccount(t.Context(), "llm", "llama-epp")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", apiserver.KubeconfigFile(t, config))
	for i, d := range deployments {
		t.Run(d.name, func(t *testing.T) {
			own := fmt.Sprint(host, 3+i)
			objects.In("llm").Apply(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: engine, labels: {app: llama}}, spec: {containers: [{name: engine, image: none}]}, "+
				`status: {podIP: %s, podIPs: [{ip: %[1]s}], phase: Running, conditions: [{type: Ready, status: "True"}]}}`, own))
			serveEngine(t, own+":8000", d.overTLS)
			for name, value := range d.env {
				t.Setenv(name, value)
			}
			var logs lines
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			// The test uses its own loopback addresses, as a pod has its own address.
			args := slices.Concat(d.args, []string{
				"--grpc-host", own, "--metrics-host", own, "--drain-delay", "0s", "--drain-timeout",
				"100ms",
			})
			go func() { done <- Run(ctx, args, io.Discard, &logs) }()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}()

			await(t, "http://"+own+":9090/readyz", "ok")
			await(t, "http://"+own+":9090/metrics", fmt.Sprintf(`headgate_endpoint_running{endpoint="%s:8000",pool="llm/llama"} 3`, own))
			creds := insecure.NewCredentials()
			if got := check(t, client(t, own+":9003", creds), "inference-extension"); got != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("health is %v", got)
			}
			conn := client(t, own+":9002", creds)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for limit := time.After(10 * time.Second); ; { // until extproc knows the engine's models
				got := destination(t, conn)
				if got == own+":8000" {
					break
				}
				select {
				case <-tick.C:
				case <-limit:
					t.Fatalf("a request goes to %q, want %s:8000", got, own)
				}
			}
			var told []string
			for line := range strings.SplitSeq(logs.String(), "\n") {
				if strings.Contains(line, "ignores") {
					told = append(told, line)
				}
			}
			if len(told) != 1 || !strings.Contains(told[0], `"flags":"`+d.ignored+`"`) {
				t.Errorf("the log lists the ignored flags as %q, want %s", told, d.ignored)
			}
		})
	}
}

// lines is a log that can be read while another goroutine writes it.
type lines struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serveEngine serves a fake engine with SGLang's metrics until the test ends.
func serveEngine(t *testing.T, address string, overTLS bool) {
	t.Helper()
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"data":[{"id":"llama"}]}`)
			return
		}
		_, _ = io.WriteString(w, "sglang:num_running_reqs 3\n")
	}))
	_ = engine.Listener.Close()
	var err error
	if engine.Listener, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	if overTLS {
		engine.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		engine.StartTLS()
	} else {
		engine.Start()
	}
	t.Cleanup(engine.Close)
}

// destination returns the endpoint that extproc picks for a request for the model llama, whose body
// arrives in chunks.
func destination(t *testing.T, conn *grpc.ClientConn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	headers := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
		{Key: ":method", RawValue: []byte("POST")},
		{Key: ":path", RawValue: []byte("/v1/completions")},
		{Key: "content-type", RawValue: []byte("application/json")},
	}}}
	for _, m := range []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
			Body:        []byte(`{"model":"llama","prompt":"x"}`),
			EndOfStream: true,
		}}},
	} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range answer.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-gateway-destination-endpoint" {
			return string(h.GetHeader().GetRawValue())
		}
	}
	return answer.String()
}
