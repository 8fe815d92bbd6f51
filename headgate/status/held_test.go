package status

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/api/admin"
)

func TestHeld(t *testing.T) {
	at := func(name string, held ...admin.Held) Extproc {
		pools := []admin.Pool{{Name: "default/llama", Held: held}, {Name: "default/void"}}
		return Extproc{Name: name, EndpointsResult: admin.EndpointsResult{Pools: pools}}
	}
	p := page{extprocs: []Extproc{
		at(
			"a", admin.Held{Reason: "room", Requests: 50, OldestSeconds: 9.06},
			admin.Held{Band: 100, Reason: "turn", Requests: 1, OldestSeconds: 0.2},
		),
		at("b", admin.Held{Reason: "room", Requests: 2, OldestSeconds: 11}),
	}}
	const want = `WAITING IN EXTPROC  BAND  FOR   REQUESTS  OLDEST
default/llama       100   turn  1         200ms
default/llama       0     room  52        11s
`
	var out strings.Builder
	if p.writeHeld(&out); out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	for name, none := range map[string]page{
		"nothing waits": {extprocs: []Extproc{at("a")}},
		"an endpoint":   {extprocs: p.extprocs, choice: choice{endpoint: "10.0.0.1:8000"}},
	} {
		var out strings.Builder
		if none.writeHeld(&out); out.Len() > 0 {
			t.Errorf("%s: %s", name, out.String())
		}
	}
}
