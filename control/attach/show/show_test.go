package show_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/attach/show"
	"github.com/headgate/headgate/test/golden"
)

// The input of a block is a command line; what comes out is what it prints, or its error.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			var out bytes.Buffer
			run := show.Plan
			name, args := words(input)
			if name == "explain" {
				run = show.Explain
			}
			if err := run(t.Context(), args, &out); err != nil {
				return "error: " + err.Error() + "\n"
			}
			return out.String()
		}
	})
}

// words splits a command line at spaces that are not within quotes.
func words(line string) (name string, args []string) {
	for i, part := range strings.Split(strings.TrimSpace(line), "'") {
		if i%2 == 1 {
			args = append(args, part)
			continue
		}
		args = append(args, strings.Fields(part)...)
	}
	return args[0], args[1:]
}
