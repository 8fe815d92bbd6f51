package profile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	command "github.com/headgate/headgate/control/profile"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/golden"
)

// TestScenarios runs the command line of each block in a scenario file. The expected output is what
// the command prints, or its error.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string { return run(t, strings.Fields(input)[1:]...) }
	})
}

// run runs a command line and returns its output or its error.
func run(t *testing.T, args ...string) string {
	var out bytes.Buffer
	if err := command.Command(t.Context(), args, &out); err != nil {
		return out.String() + "error: " + err.Error()
	}
	return out.String()
}

// A profile written to a file equals the printed profile and can be parsed.
func TestProfileIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profile.yaml")
	args := []string{"fit", "testdata/measured.csv", "--model", "large"}
	printed := run(t, args...)
	if silent := run(t, append(args, "-o", file)...); silent != "" {
		t.Errorf("with -o it says %q", silent)
	}
	written, err := os.ReadFile(file)
	if err != nil || string(written) != printed {
		t.Errorf("%v; written is\n%s, printed\n%s", err, written, printed)
	}
	p, err := profile.Parse(written)
	if err != nil || p.Decode.AdapterSlowdown < 1.99 || p.Decode.AdapterSlowdown > 2.01 || p.Name != "large on l4 (tensor parallel 2)" {
		t.Errorf("%v: it is read as %+v", err, p)
	}
}

func TestHelp(t *testing.T) {
	for _, c := range []struct{ args, wants []string }{
		{[]string{"--help"}, []string{
			"headgate profile fit", "row.json", "--concurrency", "--max-batch", "--engine-token-file",
			"-o, --output",
		}},
		{[]string{"fit", "--help"}, []string{
			"prefill_seconds", "frontend_overhead_seconds", "kv_tokens", "Splitwise", "--tensor-parallel",
			"-o, --output",
		}},
	} {
		var out bytes.Buffer
		err := command.Command(t.Context(), c.args, &out)
		for _, want := range c.wants {
			if !errors.Is(err, pflag.ErrHelp) || !strings.Contains(out.String(), want) {
				t.Errorf("%v: %v, and help lacks %q:\n%s", c.args, err, want, out.String())
			}
		}
	}
}
