package diagnosis_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/headgate/doctor/diagnosis"
	"github.com/headgate/headgate/test/golden"
)

// The input of a block is Facts as YAML. The output is a line for each finding.
func TestFindings(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			f := diagnosis.Facts{Now: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC), Version: "v0.1.0"}
			if err := yaml.UnmarshalStrict([]byte(input), &f); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			all := diagnosis.Of(f)
			for _, is := range all {
				fmt.Fprintf(&out, "%s %s: %s\n", is.Level, is.Part, is.What)
				if is.Do != "" {
					fmt.Fprintf(&out, "    %s\n", is.Do)
				}
				if (is.Level == diagnosis.OK) != (is.Do == "") {
					t.Errorf("%s: only findings that are wrong say what to do", is.What)
				}
			}
			fmt.Fprintf(&out, "failed: %v\n", diagnosis.Failed(all))
			return out.String()
		}
	})
}
