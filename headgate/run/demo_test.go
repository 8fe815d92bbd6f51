package run

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate"
)

// init writes the configuration and the objects that are built in, and never overwrites a file.
func TestInitWritesWhatIsBuiltIn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "demo")
	var out bytes.Buffer
	if err := Init(t.Context(), []string{dir}, &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "headgate run --objects "+dir+"/objects --envoy-config "+dir+"/envoy.yaml\n") {
		t.Errorf("it does not say how to run them:\n%s", &out)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "envoy.yaml")); err != nil || !bytes.Equal(text, headgate.EnvoyYAML) {
		t.Errorf("envoy.yaml differs: %v", err)
	}
	for _, folder := range []string{"objects", "gateway", "models"} {
		shipped, err := os.ReadDir(folder)
		if err != nil || len(shipped) == 0 {
			t.Fatalf("%d files in %s, %v", len(shipped), folder, err)
		}
		for _, f := range shipped {
			want, err := os.ReadFile(filepath.Join(folder, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, folder, f.Name())); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s/%s differs: %v", folder, f.Name(), err)
			}
		}
	}

	kept := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(kept, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Init(t.Context(), []string{dir}, io.Discard); err == nil || !strings.Contains(err.Error(), kept+" is there already: name another folder") {
		t.Errorf("again: %v", err)
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "mine" {
		t.Errorf("it is overwritten: %q, %v", text, err)
	}
}

// ModelMesh's ports are open if a flag says so, or if a server in the objects is a model runtime.
func TestWhenModelMeshPortsOpen(t *testing.T) {
	runtime := t.TempDir()
	text := `apiVersion: v1
kind: List
items:
  - {apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: one}, spec: {selector: {matchLabels: {app: one}}, targetPorts: [{number: 1}]}}
  - apiVersion: inference.x-k8s.io/v1alpha1
    kind: EndpointList
    metadata: {name: a, labels: {app: one}}
    spec: {addresses: ["127.0.0.2:8000"], engine: modelruntime, management: "port:8085"}
`
	if err := os.WriteFile(filepath.Join(runtime, "a.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for args, open := range map[string]bool{
		"--objects objects":                                false,
		"--objects objects --modelmesh":                    true,
		"--objects objects --modelmesh-rest 127.0.0.1:808": true,
		"--endpoints a:1":                                  false,
		"--endpoints a:1 --modelmesh":                      true,
		"--objects " + runtime:                             true,
	} {
		o, err := parseFlags(strings.Fields(args), io.Discard)
		if err == nil {
			err = o.complete()
		}
		if err != nil || (o.MeshREST != "") != open || (o.MeshGRPC != "") != open {
			t.Errorf("%s: %q and %q, %v; want them open: %v", args, o.MeshREST, o.MeshGRPC, err, open)
		}
	}
}
