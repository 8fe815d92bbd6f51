package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

// poolSettings returns the YAML of a PoolSettings of the tests' pool.
func poolSettings(spec string) string {
	return "apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: settings}\nspec: {poolRef: {name: pool}, " +
		spec + "}\n"
}

// withoutFlow lets requests wait in the engines and not in extproc.
func withoutFlow(t testing.TB) setting {
	return func(c *rig.Config) {
		if err := os.WriteFile(filepath.Join(c.Objects, "flow.yaml"), []byte(poolSettings("flow: {mode: 'Off'}")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A pool's request timeout makes Envoy end requests that take longer, and no others.
func TestPoolRequestTimeout(t *testing.T) {
	runs(t)
	for name, settings := range map[string][]setting{"override_host": nil, "original_dst": {originalDst}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, settings...)
			late := request{body: completion("a01", 1, false).body, header: map[string]string{"X-Sim-Fault": "latency=3s"}}
			s.write("settings.yaml", poolSettings("timeouts: {request: 1s}"))
			s.await("the bound is in force", func() bool {
				a := s.must(late)
				if a.status == http.StatusGatewayTimeout {
					refused(t, "late", a, http.StatusGatewayTimeout, "endpoint_timeout")
				}
				return a.status != http.StatusOK
			})
			if a := s.must(completion("a01", 5, true)); a.status != http.StatusOK || !a.done() {
				t.Errorf("a request in time: %d %s", a.status, a.body)
			}
		})
	}
}

// A request for a stored response goes to the engine that created the response, and so do requests
// that continue from it.
func TestStoredResponseIsReadWhereItWasCreated(t *testing.T) {
	onBothPlanes(t, storedResponseIsReadWhereItWasCreated)
}

func storedResponseIsReadWhereItWasCreated(t *testing.T) {
	s := start(t, extprocFlags("--policy", "roundRobin"))
	for n, stream := range []bool{false, true, false, true} {
		made := s.must(request{
			path: "/v1/responses",
			body: fmt.Sprintf(`{"model":"a01","input":"x","max_output_tokens":2,"stream":%t}`, stream),
		})
		_, rest, _ := strings.Cut(made.body, `"id":"resp_`)
		id, _, _ := strings.Cut(rest, `"`)
		if made.status != http.StatusOK || id == "" {
			t.Fatalf("%d: %d %s", n, made.status, made.body)
		}
		id = "resp_" + id
		var found logged
		s.awaitWithin(5*time.Second, "extproc knows who made it", func() bool {
			_, found = s.tell(request{method: http.MethodGet, path: "/v1/responses/" + id})
			return found.Details == "via_upstream" // the engine itself answers, with an error: simulated engines store nothing
		})
		if found.Endpoint != made.served {
			t.Errorf("%d: made at %s, asked for at %s", n, made.served, found.Endpoint)
		}
		next := s.must(request{path: "/v1/responses", body: `{"model":"a01","input":"x","max_output_tokens":2,"previous_response_id":"` +
			id + `"}`})
		if next.served != made.served {
			t.Errorf("%d: made at %s, gone on with at %s", n, made.served, next.served)
		}
	}
}
