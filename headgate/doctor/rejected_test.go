package doctor_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/internal/version"
)

// Without --objects, doctor reports the object files that extproc and control have rejected.
func TestRejectedFiles(t *testing.T) {
	result, err := json.Marshal(admin.EndpointsResult{
		Endpoints: []admin.Endpoint{{State: "healthy"}}, Rejected: []string{"objects/a.yaml:7: spec.polcy: unknown field"}, RejectedFiles: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	answers, err := json.Marshal(admin.Answers{Extprocs: []admin.Answer{{Extproc: "x", Version: version.Read().Program, Result: result}}})
	if err != nil {
		t.Fatal(err)
	}
	control := pages(t, map[string]string{
		"/metrics": fmt.Sprintf("headgate_build_info{goversion=\"go\",program=\"control\",version=%q} 1\n", version.Read().Program) +
			"# TYPE headgate_objects_rejected_files gauge\nheadgate_objects_rejected_files 1\n",
		"/endpoints": string(answers), "/conditions": "[]",
	})
	out, code := run(t, "--listen", "", "--envoy-admin", "", "--control-url", control.URL, "--extproc-url", "")
	for _, want := range []string{
		"✗ extproc       extproc x rejects objects/a.yaml:7: spec.polcy: unknown field\n",
		"✗ control       control at " + control.URL + " rejects invalid object files: 1\n",
	} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit status %d, without %q:\n%s", code, want, out)
		}
	}
}
