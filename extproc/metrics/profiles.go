package metrics

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/profile"
)

// profiles serves the learned latency of engines as YAML.
func profiles(f *fleet.Fleet) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/yaml")
		var page strings.Builder
		writeProfiles(&page, fleet.Read(f, func(s *endpointstate.State) []endpointstate.Known { return s.Times.Known() }))
		_, _ = io.WriteString(w, page.String())
	}
}

// writeProfiles writes one YAML document for each accelerator of each pool.
func writeProfiles(page *strings.Builder, all []endpointstate.Known) {
	page.WriteString("# Learned service times of the engines: one document for each pool and accelerator.\n" +
		"# Copy the value of profile into the spec of the pool's PoolSettings; add pinned: true to stop learning.\n" +
		"# Copy the value of inline into an entry of spec.profile.accelerators.\n")
	for _, k := range all {
		fmt.Fprintf(page, "---\npool: %q\n", k.Pool.String())
		if k.Accelerator != "" {
			fmt.Fprintf(page, "accelerator: %q\n", k.Accelerator)
		}
		fmt.Fprintf(page, "trusted: %v\nwhy: %q\n", k.Trusted, k.Why)
		if !k.Since.IsZero() {
			fmt.Fprintf(page, "since: %q\n", k.Since.UTC().Format(time.RFC3339))
		}
		fmt.Fprintf(page, "measurements: %d\n", k.Rows)
		if k.Rows > 0 {
			fmt.Fprintf(page, "off: %.3f # median relative error of the latest predictions\n", k.Residual)
		}
		if len(k.Factors) > 0 {
			page.WriteString("factors: # service time of single endpoints, as a multiple of the profile's\n")
			for _, address := range slices.Sorted(maps.Keys(k.Factors)) {
				fmt.Fprintf(page, "  %q: %.2f\n", address, k.Factors[address])
			}
		}
		page.WriteString("profile:\n  inline:\n")
		for line := range strings.Lines(string(profile.Format(k.Profile))) {
			page.WriteString("    " + line)
		}
	}
}
