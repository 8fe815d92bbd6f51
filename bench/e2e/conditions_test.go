package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/headgate/headgate/api/admin"
)

// While no extproc is connected to control, no LLMRoute is ready. Its conditions name extproc as
// the cause, whether a Gateway serves it or not.
func TestRoutesAreNotReadyWithoutAnExtproc(t *testing.T) { onBothPlanes(t, routesWithoutAnExtproc) }

func routesWithoutAnExtproc(t *testing.T) {
	s := start(t, pods(t, 1), placed(t, 4, adapters...))
	routes := func() map[string]int { // the number of LLMRoutes with each false condition
		response, err := s.client.Get("http://" + s.ControlMetrics + "/conditions")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var all []admin.Condition
		if err := json.NewDecoder(response.Body).Decode(&all); err != nil {
			t.Fatal(err)
		}
		found := make(map[string]int)
		for _, c := range all {
			if c.Kind == "LLMRoute" && c.Of == "" {
				found[c.Type+" "+c.Reason]++
			}
		}
		return found
	}
	serve := func() bool { return len(routes()) == 0 }
	s.await("all routes are ready", serve)
	s.Extproc.Kill()
	var is map[string]int
	s.await("no route is ready", func() bool {
		is = routes()
		return is["Ready NoPicker"] > 0
	})
	if len(is) != 1 {
		t.Errorf("the false conditions are %s", fmt.Sprint(is))
	}
	if err := s.StartExtproc(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.await("all are ready again", serve)
}
