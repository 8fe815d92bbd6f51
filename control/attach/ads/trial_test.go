package ads_test

import (
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
)

// A real Envoy answers each trial with an ACK or NACK, and its other configuration does not change.
// The routes on trial get no requests.
func TestTrialIsAnsweredAndChangesNothing(t *testing.T) {
	s := start(t, 8)
	s.backend("a", 21000)
	s.apply(to("a"))
	s.await("200 a")
	await(t, "the Envoy says that it has its routes", func() bool {
		return slices.ContainsFunc(s.heard(), func(a order.Answer) bool { return a.Type == order.Routes })
	})
	tried := func(regex string) {
		t.Helper()
		s.apply(to("a"), func(r *envoy.Resources) {
			trial, err := s.template.Trial(s.plans.Gateways[0], "port-80",
				s.template.FromControl(func(int32) (string, uint32) { return "", 0 }))
			if err != nil {
				t.Fatal(err)
			}
			is := trial.Routes[0].GetVirtualHosts()[0].GetRoutes()[0]
			is.Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: regex}}
			is.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 418}}
			r.Listeners, r.Routes = append(r.Listeners, trial.Listeners...), append(r.Routes, trial.Routes...)
		})
		var said []order.Answer
		await(t, "the Envoy answers", func() bool {
			said = append(said, slices.DeleteFunc(s.heard(), func(a order.Answer) bool {
				return a.Type != order.Routes || len(a.Versions) == 0
			})...)
			return len(said) > 0
		})
		if refused := strings.Contains(said[0].Refused, ": (("); len(said) != 1 || refused != (regex == "((") ||
			len(said[0].Versions) != 1 || said[0].Versions[envoy.TrialName] == "" {
			t.Errorf("the answer for %s is %v", regex, said)
		}
		if got := s.get(); got != "200 a" {
			t.Errorf("during the trial of %s, the response is %s", regex, got)
		}
	}
	for _, regex := range []string{"((", "/.*", "((", "/b.*"} {
		tried(regex)
	}
	s.apply(to("a"))
	await(t, "the trial is taken away", func() bool {
		return slices.ContainsFunc(s.heard(), func(a order.Answer) bool {
			return slices.Contains(a.Names, envoy.TrialName) && len(a.Versions) == 0
		})
	})
	tried("((")
}
