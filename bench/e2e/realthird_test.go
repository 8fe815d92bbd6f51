//go:build real

package e2e

import "testing"

// Requests for a third of three adapters on the two slots of a real engine wait as long as those of
// simulated engines. Without the gate, the engine starves them; see
// TestRealVLLMThatStarvesAnAdapterIsHelped.
func TestRealVLLMServesAThirdAdapter(t *testing.T) {
	runs(t, alone)
	s, engines := realVLLM(t)
	s.roomFor(8)
	s.write("engines.yaml", s.without(2, 2))
	s.await("one engine is left", func() bool { return s.sum(s.Metrics, "headgate_endpoints") == 1 })
	engines[1].KillGroup()
	s.serveThird([]string{"a1", "a2", "a3"}, 5)
}
