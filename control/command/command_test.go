package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/version"
)

func TestCommandLine(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "no engines: set --objects DIR (a folder with YAML), --kube (an API server) or --endpoints HOST:PORT; see control --help"},
		{
			"--kube --objects x --listen y",
			"--kube and --objects: objects come from an API server or from a folder; leave one of them out; see control --help",
		},
		{
			"--endpoints a:1 --namespace x --listen y --state-file s",
			"--kubeconfig and --namespace need --kube; see control --help",
		},
		{"--objects x", "nothing to serve: set --listen to unix:PATH or HOST:PORT, which extprocs call; see control --help"},
		{"--endpoints a:1 --listen y", "set --state-file FILE, where control stores registered models and loads; see control --help"},
		{
			"--endpoints a --state-file s --listen y",
			`--endpoints "a": want host:port, such as 10.0.0.7:8000, [fd00::7]:8000 or engine-1.internal:8000; see control --help`,
		},
		{
			"--endpoints 169.254.169.254:80 --state-file s --listen y",
			`--endpoints "169.254.169.254:80": an engine's address must not be link-local, multicast, broadcast or unspecified; see control --help`,
		},
		{"--objects x --listen y z", `unexpected argument "z": set everything by flags; see control --help`},
		{
			"--objects x --listen y --xds-address :8035",
			"--xds-address :8035: want unix:PATH, or --kube, where Envoys have certificates; see control --help",
		},
		{"--objects x --listen y --mesh-pool p", `--mesh-pool "p": want NAMESPACE/NAME, such as default/runtimes; see control --help`},
		{"--objects x --listen y --mesh-pool /p", `--mesh-pool "/p": want NAMESPACE/NAME, such as default/runtimes; see control --help`},
		{"--objects x --listen y --drain-timeout 0s", "--drain-timeout 0s: it must be above 0; see control --help"},
		{
			"--objects x --listen y --scrape-interval 1ms",
			"--scrape-interval must be at least 10ms: a shorter one loads the engines; see control --help",
		},
		{
			"--objects x --listen y --rebalance-interval 10ms",
			"--rebalance-interval must be at least 1s: load is averaged over it, and with a shorter one copies come and go; see control --help",
		},
		{"--objects x --listen y --metrics-port 70000", "--metrics-port 70000 is not a port; see control --help"},
		{"--objects x --listen y --engine-ca-file x", "--engine-ca-file needs --engine-tls; see control --help"},
		{
			"--kube --listen y --engine-token-file x",
			"--engine-token-file does not work with --kube, where each pool has its own token: name a Secret in spec.engineToken of its PoolSettings; see control --help",
		},
		{
			"--kube --listen y --state-file z",
			"--state-file has no effect with --kube: control stores its state in the status of objects; see control --help",
		},
		{"--kube --listen y --pod z", `--pod "z": want NAMESPACE/NAME; see control --help`},
		{"--kube --listen y --pod-ip z", `--pod-ip "z" is not an IP address; see control --help`},
		{
			"--kube --listen y --credentials-dir z --cert-path z",
			"--credentials-dir replaces --cert-path, --token-file and --mesh-token-file: remove one or the others; see control --help",
		},
		{"--objects x --listen y --pod-ip 10.0.0.1", "--pod, --pod-ip and --credentials-dir need --kube; see control --help"},
		{"--nonsense", "unknown flag: --nonsense; see control --help"},
	} {
		_, err := parseFlags(strings.Fields(c.args), io.Discard)
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}
	c, err := parseFlags(strings.Fields("--objects some/dir/ --listen y --mesh-pool a/b"), io.Discard)
	if c.metricsHost != "127.0.0.1" {
		t.Errorf("without --metrics-host others can reach the metrics at %q", c.metricsHost)
	}
	if every, err := parseFlags(strings.Fields("--objects some/dir --listen y --metrics-host="), io.Discard); err != nil ||
		every.metricsHost != "" {
		t.Errorf("--metrics-host= is %q, %v", every.metricsHost, err)
	}
	if err != nil || c.stateFile != "some/dir.db" || c.pool() != (objects.Name{Namespace: "a", Name: "b"}) {
		t.Errorf("%v, the state is in %s, models are registered in %s", err, c.stateFile, c.pool())
	}
	var help bytes.Buffer
	if _, err := parseFlags([]string{"--help"}, &help); !errors.Is(err, pflag.ErrHelp) ||
		!strings.Contains(help.String(), "--drain-timeout") || !strings.Contains(help.String(), "Example") {
		t.Errorf("--help: %v\n%s", err, help.String())
	}
	var own bytes.Buffer
	if _, err := parseFlags([]string{"--version"}, &own); !errors.Is(err, pflag.ErrHelp) || own.String() != "control "+
		version.Read().String()+"\n" {
		t.Errorf("--version: %v, %q", err, own.String())
	}
}

func TestFaultsAtTheStartEndIt(t *testing.T) {
	dir := t.TempDir()
	objects := filepath.Join(dir, "objects")
	if err := os.Mkdir(objects, 0o755); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.Mkdir(broken, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "x.yaml"), []byte("kind: Nothing\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--objects " + objects + " --listen unix:" + dir +
			"/s --state-file /proc/nowhere/x.db": "--state-file: /proc/nowhere/x.db: ",
		"--objects " + broken + " --listen unix:" + dir + "/s": "x.yaml:1: ",
		"--objects " + objects +
			" --listen unix:/proc/nowhere/s": "--listen unix:/proc/nowhere/s: ",
		"--objects " + objects +
			" --listen 0.0.0.0:0": "--listen 0.0.0.0:0: other machines can reach it, and any caller could load and unload models: set --cert-path, and --client-ca-file or --token-file; or listen on loopback or a socket",
		"--objects " + objects + " --listen unix:" + dir + "/s --engine-token-file " + dir + "/none": "--engine-token-file: open " +
			dir + "/none: no such file or directory",
		"--objects " + objects + " --listen 127.0.0.1:0 --listen 0.0.0.0:0 --cert-path " + dir + "/certs": "other machines can reach it",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := Run(ctx, append(strings.Fields(args), "--metrics-port", "-1"), io.Discard, io.Discard)
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// host is a loopback address that no other test process has.
var host = fmt.Sprintf("127.61.%d.%d", os.Getpid()/20%250, os.Getpid()%20+1)

// The program serves extprocs, ModelMesh's clients and operators. It locks its state file. It stops
// in time although a stream is open.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "objects")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	const pool = "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\nspec: {selector: {matchLabels: {app: p}}, targetPorts: [{number: 8000}]}\n"
	if err := os.WriteFile(filepath.Join(folder, "pool.yaml"), []byte(pool), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--objects", folder, "--listen", "unix:" + dir + "/s", "--mesh-pool", "default/p", "--metrics-host", host,
		"--metrics-port", "9091",
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, args, io.Discard, io.Discard) }()

	conn := dial(t, "unix:"+dir+"/s")
	awaitLeader(t, conn)
	st, err := mmesh.NewModelMeshClient(conn).RegisterModel(limited(t), &mmesh.RegisterModelRequest{
		ModelId: "m/1", ModelInfo: &mmesh.ModelInfo{Type: "lora", Path: "p"},
	})
	if err != nil || st.GetStatus() != mmesh.ModelStatusInfo_NOT_LOADED {
		t.Fatalf("%v, %v", st, err)
	}
	extproc, err := placement.NewPlacementClient(conn).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := extproc.Send(&placement.Report{Process: "x"}); err != nil {
		t.Fatal(err)
	}
	if u, err := extproc.Recv(); err != nil || !u.GetComplete() || len(u.GetRegistered()) != 1 {
		t.Errorf("%v, %v", u, err)
	}
	for path, want := range map[string]string{
		"/readyz": "ok", "/metrics": `headgate_models{which="all"} 1`, "/models?id=m/1": `"id": "m/1"`, "/models?id=none": "[]",
		"/placement": `"id":"m/1"`,
	} {
		response, err := http.Get("http://" + host + ":9091" + path) //nolint:noctx // one question
		if err != nil {
			t.Fatal(err)
		}
		page, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if !strings.Contains(string(page), want) {
			t.Errorf("%s lacks %s:\n%s", path, want, page)
		}
	}
	second := strings.Fields(strings.Join(args, " "))
	second[3], second[len(second)-1] = "unix:"+dir+"/second", "-1"
	err = Run(limited(t), second, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("a second one on the file: %v", err)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("with a stream open it does not end")
	}
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	// The program may not listen yet.
	again := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2, MaxDelay: 100 * time.Millisecond}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// awaitLeader waits until the health service reports that a control leads.
func awaitLeader(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	watch, err := healthv1.NewHealthClient(conn).Watch(limited(t), &healthv1.HealthCheckRequest{Service: "headgate.placement.v1.Placement"},
		grpc.WaitForReady(true))
	for err == nil {
		var is *healthv1.HealthCheckResponse
		if is, err = watch.Recv(); err == nil && is.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return
		}
	}
	t.Fatal(err)
}
