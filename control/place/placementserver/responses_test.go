package placementserver_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/headgate/headgate/api/placement"
)

// recordResponses reports to control that an endpoint has stored these responses.
func (x *extproc) recordResponses(endpoint string, ids ...string) {
	x.t.Helper()
	if err := x.stream.Send(&placement.Report{Responses: []*placement.Responses{{
		Pool: "ns/pool", Endpoint: endpoint,
		Ids: ids,
	}}}); err != nil {
		x.t.Fatal(err)
	}
	synctest.Wait()
}

// responses returns the stored responses that an extproc received.
func (x *extproc) responses() (all []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, u := range x.updates {
		for _, r := range u.GetResponses() {
			for _, id := range r.GetIds() {
				all = append(all, id+"@"+r.GetEndpoint())
			}
		}
	}
	slices.Sort(all)
	return all
}

// The endpoint of a stored response is sent once to all other extprocs, and to those that join
// later, even if the extproc that reported it has disconnected.
func TestStoredResponsesAreSent(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x, y := w.connect("x"), w.connect("y")
		x.recordResponses("e1", "resp_1", "resp_2")
		x.recordResponses("e1", "resp_1")
		y.recordResponses("e2", "resp_3", strings.Repeat("x", 257))
		expect := func(who string, x *extproc, want ...string) {
			t.Helper()
			if got := x.responses(); !slices.Equal(got, want) {
				t.Errorf("%s is told %v, want %v", who, got, want)
			}
		}
		expect("x", x, "resp_3@e2")
		expect("y", y, "resp_1@e1", "resp_2@e1")
		x.leave()
		y.leave()
		expect("who comes later", w.connect("z"), "resp_1@e1", "resp_2@e1", "resp_3@e2")
	})
}

// Only the latest stored responses are kept.
func TestResponsesAreBounded(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x := w.connect("x")
		for n := range 70 {
			ids := make([]string, 1000)
			for i := range ids {
				ids[i] = fmt.Sprintf("resp_%02d%03d", n, i)
			}
			x.recordResponses("e1", ids...)
		}
		got := w.connect("y").responses()
		if len(got) != 65536 || got[len(got)-1] != "resp_69999@e1" || slices.Contains(got, "resp_00000@e1") {
			t.Errorf("%d are told, from %s to %s", len(got), got[0], got[len(got)-1])
		}
	})
}
