package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/test/apiserver"
)

// What clients have registered at ModelMesh is imported from its etcd. Then each model and VModel
// answers over gRPC, with the headers of ModelMesh's clients.
func TestImportedModelsAnswer(t *testing.T) {
	runs(t)
	const service = "/modelmesh-serving/mm/modelmesh-serving/"
	models := []string{"plain", "org/Model v1", "模型", "mnist__isvc-0123456789"}
	vmodels := map[string]string{"alias": "org/Model v1", "别名": "模型", "mnist": "mnist__isvc-0123456789"}
	records := map[string]string{
		service + "registry/broken":   `{"type":`,
		service + "config/logger":     `x`,
		service + "instances/a-b1c2d": `{"cap":1000}`,
	}
	for _, id := range models {
		records[service+"registry/"+id] = `{"type":"sim","encKey":"{\"storage_key\":\"k\"}","mPath":"sim:?load=20ms","instanceIds":{"a-b1c2d":1764000000000},"refs":1,"autoDel":true,"lu":1764000001000}`
	}
	for id, target := range vmodels {
		records[service+"vmodels/"+id] = fmt.Sprintf(`{"o":"team","amid":%q,"tmid":%q}`, target, target)
	}
	url := apiserver.RunEtcd(t)
	fill(t, url, records)

	s := start(t, runtimes(t, 2, nil), func(c *rig.Config) { c.EngineFlags = nil })
	config := filepath.Join(t.TempDir(), "etcd.json")
	if err := os.WriteFile(config, []byte(`{"endpoints": "`+url+`", "root_prefix": "/modelmesh-serving"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var printed, faults bytes.Buffer
	command := exec.CommandContext(t.Context(), programs(t).Headgate, "control", "import", "--etcd", config, "--pool", "pool")
	command.Stdout, command.Stderr = &printed, &faults
	_ = command.Run()
	if command.ProcessState.ExitCode() != 3 || !strings.Contains(faults.String(), `model "broken": its value is not JSON`) {
		t.Fatalf("the status is %v, and it reports %s", command.ProcessState, faults.String())
	}
	s.write("imported.yaml", printed.String())

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	calls := s.calls()
	answersTo := func(header, id, model string) {
		t.Helper()
		s.await(id+" is known", func() bool {
			a, err := calls.ModelInfer(metadata.AppendToOutgoingContext(ctx, header, id), tensor("", 1, 2))
			if status.Code(err) == codes.NotFound { // extproc has not read the objects yet
				return false
			}
			if fault := answers(a, err, model, 1, 2); fault != "" {
				t.Errorf("%s %s: %s", header, id, fault)
			}
			return true
		})
	}
	for _, id := range models {
		answersTo("mm-model-id-bin", id, id)
	}
	for id, target := range vmodels {
		answersTo("mm-vmodel-id-bin", id, target)
	}
}

// fill puts keys into an etcd.
func fill(t *testing.T, url string, records map[string]string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for key, value := range records {
		if _, err := client.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
}
