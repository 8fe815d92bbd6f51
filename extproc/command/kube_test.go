package command

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/test/apiserver"
)

// With --kube, extproc reads its objects from an API server. It waits for the CRDs, serves requests
// once they exist, and keeps serving while the API server is unreachable.
func TestObjectsOfAnAPIServer(t *testing.T) {
	s := apiserver.Run(t)
	objects := s.Objects(t)
	dir := t.TempDir()
	config := apiserver.KubeconfigFile(t, s.Admin())
	flags := []string{"--kube", "--kubeconfig", config, "--namespace", "default", "--listen", "unix:" + filepath.Join(dir, "s")}

	err := Run(t.Context(), append(flags, "--explain-config"), io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "kubectl apply -k manifests/crds") {
		t.Errorf("without CRDs the explanation is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, append(flags, "--metrics-host", host, "--metrics-port", "9094", "--drain-timeout", "100ms"), io.Discard,
			io.Discard)
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	metrics, ready := "http://"+host+":9094/metrics", "http://"+host+":9094/readyz"
	await(t, metrics, "headgate_objects_connected 0")

	objects.CRDs()
	await(t, metrics, "headgate_objects_connected 1")
	objects.Apply(someObjects)
	await(t, metrics, `headgate_objects{kind="LLMRoute"} 1`)
	await(t, ready, "ok")
	var explained bytes.Buffer
	if err := Run(t.Context(), append(flags, "--explain-config"), &explained, io.Discard); err != nil ||
		!strings.Contains(explained.String(), "default/base") {
		t.Errorf("the explanation is %v:\n%s", err, explained.String())
	}

	s.Outage()
	await(t, metrics, "headgate_objects_connected 0")
	await(t, metrics, `headgate_objects{kind="LLMRoute"} 1`)
	await(t, ready, "ok")
}
