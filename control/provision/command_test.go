package provision_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/provision"
	"github.com/headgate/headgate/test/golden"
)

// The input of a block is a command line; what comes out is what it prints, or its error.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			// A block ends at an empty line.
			return strings.ReplaceAll(strings.ReplaceAll(run(t, strings.Fields(input)[2:]...), "\n\n", "\n.\n"), "\n\n", "\n.\n")
		}
	})
}

// run is what a command line prints, or its error.
func run(t *testing.T, args ...string) string {
	var out bytes.Buffer
	if err := provision.Command(t.Context(), args, &out); err != nil {
		return out.String() + "error: " + err.Error()
	}
	return out.String()
}
