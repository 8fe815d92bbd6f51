package e2e

import (
	"net/http"
	"testing"
)

// poolSettings are settings of the pool of the tests.
func poolSettings(spec string) string {
	return "apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: settings}\nspec: {poolRef: {name: pool}, " + spec + "}\n"
}

// A pool's bound on a request ends what takes longer, in Envoy, and nothing else.
func TestThePoolsTimeoutEndsWhatTakesLonger(t *testing.T) {
	t.Parallel()
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
