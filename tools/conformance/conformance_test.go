// Package conformance runs Gateway API's conformance suite with Headgate as the implementation.
// `bench conformance` runs it in a cluster's network, with the suite's own flags.
package conformance

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

func TestConformance(t *testing.T) {
	o := conformance.DefaultOptions(t)
	o.Implementation = confv1.Implementation{
		Organization: "headgate",
		Project:      "headgate",
		URL:          "https://github.com/headgate/headgate",
		Version:      cmp.Or(o.Implementation.Version, "devel"),
		Contact:      []string{"https://github.com/headgate/headgate/issues"},
	}
	if len(o.ConformanceProfiles) == 0 {
		o.ConformanceProfiles = []suite.ConformanceProfileName{
			suite.GatewayHTTPConformanceProfileName,
			suite.GatewayGRPCConformanceProfileName,
		}
	}
	// The suite's flag takes only one test name, and makes it ignore the features that the
	// GatewayClass supports. So skip all tests that are not named.
	if chosen := strings.Split(o.RunTest, ","); o.RunTest != "" {
		o.RunTest = ""
		for _, test := range tests.ConformanceTests {
			i := slices.Index(chosen, test.ShortName)
			if i < 0 {
				o.SkipTests = append(o.SkipTests, test.ShortName)
				continue
			}
			chosen = slices.Delete(chosen, i, i+1)
		}
		if len(chosen) > 0 {
			t.Fatalf("the suite has no tests %v", chosen)
		}
	}
	conformance.RunConformanceWithOptions(t, o)
}
