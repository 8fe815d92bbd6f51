package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/headgate/headgate/headgate/rig"
)

// A pool without routes serves the models that its engines list, under the names in these lists,
// such as the path of the weights. The gateway's list of models, its responses and its health check
// agree.
func TestPoolWithoutRoutesServesListedModels(t *testing.T) {
	runs(t)
	const byPath = "/models/x.gguf"
	s := start(t, standalone, func(c *rig.Config) {
		c.Model = byPath
		if err := os.Remove(filepath.Join(c.Objects, "routes.yaml")); err != nil {
			t.Fatal(err)
		}
	})
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if a := s.must(request{method: http.MethodGet, path: "/v1/models"}); json.Unmarshal([]byte(a.body), &list) != nil ||
		len(list.Data) == 0 || list.Data[0].ID != byPath {
		t.Fatalf("the models are %s", a.body)
	}
	for _, m := range list.Data {
		if a := s.must(completion(m.ID, 2, false)); a.status != http.StatusOK {
			t.Errorf("%s is listed, and gets %d %s", m.ID, a.status, a.body)
		}
	}
	refused(t, "another path", s.must(completion("/models/y.gguf", 2, false)), http.StatusBadRequest, "invalid_request")
	refused(t, "another model", s.must(completion("y", 2, false)), http.StatusNotFound, "model_not_found")
	if a := s.must(request{method: http.MethodGet, path: "/health"}); a.status != http.StatusOK {
		t.Errorf("health is %d %s", a.status, a.body)
	}
}
