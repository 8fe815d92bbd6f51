package envoy_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// Whatever changes, what a Maker makes is what is made from nothing; and most messages are those of the last time.
func TestAMakerMakesWhatATemplateDoes(t *testing.T) {
	tmpl, o := template(t), options(t)
	known := plan.Known{Certificates: map[objects.Name]plan.Certificate{{Namespace: "ns", Name: "x"}: {Chain: []byte("x")}}, Authorities: map[objects.Name]plan.Certificate{{Namespace: "ns", Name: "ca"}: {Chain: []byte("ca")}}}
	kept, made := 0, 0
	for seed := range uint64(5) {
		var last *plan.Plans
		makers := make(map[objects.Name]*envoy.Maker)
		had := make(map[proto.Message]bool)
		for step, n := range network.Walk(t, seed, 60) {
			last = plan.After(last, attach.Of(n), n, known)
			has := make(map[proto.Message]bool)
			for _, p := range last.Gateways {
				if step%2 == 0 {
					silent := *p
					silent.Silence += time.Minute
					p = &silent
				}
				if makers[p.Gateway] == nil {
					makers[p.Gateway] = &envoy.Maker{Template: tmpl}
				}
				want, err := tmpl.Of(p, o)
				if err != nil {
					t.Fatal(err)
				}
				got, err := makers[p.Gateway].Of(p, o)
				if err != nil {
					t.Fatal(err)
				}
				wanted, given := all(want), all(got)
				if len(wanted) != len(given) {
					t.Fatalf("walk %d, step %d: %d resources, want %d", seed, step, len(given), len(wanted))
				}
				for i := range wanted {
					if !proto.Equal(wanted[i], given[i]) {
						t.Fatalf("walk %d, step %d: there is\n%v\nwant\n%v", seed, step, given[i], wanted[i])
					}
				}
				for _, c := range got.Clusters {
					has[c] = true
				}
				for _, r := range got.Routes {
					for _, h := range r.GetVirtualHosts() {
						has[h] = true
					}
				}
			}
			for m := range has {
				if made++; had[m] {
					kept++
				}
			}
			had = has
		}
	}
	t.Logf("%d of %d messages were those of the last time", kept, made)
	if kept < made/10 {
		t.Errorf("%d of %d messages were those of the last time", kept, made)
	}
}
