package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/version"
)

// runHeadgate runs a command line and returns the exit status and what it prints.
func runHeadgate(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = program.Run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestEveryCommandHasHelp(t *testing.T) {
	for _, group := range program.Groups {
		for _, c := range group.Commands {
			commandLines := [][]string{{"headgate", c.Name, "--help"}, {"headgate", "help", c.Name}, {"headgate", c.Name, "-h"}}
			for _, below := range c.Below {
				commandLines = append(commandLines, []string{"headgate", c.Name, below, "--help"})
			}
			for _, args := range commandLines {
				status, stdout, stderr := runHeadgate(t, args...)
				if status != 0 || !strings.Contains(stdout, "Usage:") || stderr != "" {
					t.Errorf("%v: exit status %d, prints %q and %q", args, status, stdout, stderr)
				}
			}
			if status, _, stderr := runHeadgate(t, "headgate", c.Name, "--no-such-flag"); status != 2 || !strings.Contains(stderr, "--help") {
				t.Errorf("headgate %s --no-such-flag: exit status %d, %q", c.Name, status, stderr)
			}
		}
	}
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		args           string
		status         int
		stdout, stderr string
	}{
		{"headgate", 2, "", "headgate COMMAND"},
		{"headgate --help", 0, "extproc", ""},
		{"headgate --version", 0, "headgate " + version.Read().String(), ""},
		{"headgate version", 0, "headgate " + version.Read().String(), ""},
		{"headgate fly", 2, "", `headgate: there is no command "fly"; headgate --help lists them`},
		{"headgate extproc --version", 0, "extproc " + version.Read().String(), ""},
		{"headgate extproc", 2, "", "headgate extproc: no engines: "},
		{"headgate extproc --objects x --metrics-port 70000", 2, "", "--metrics-port 70000 is not a port; see extproc --help"},
		{"headgate plan -f testdata/none.yaml", 1, "", "headgate plan: "},
		{"headgate plan -f ../control/provision/plan/testdata/video.yaml --prove 0 --trace gamma:rate=3000,cv=1,queries=300", 3, "no plan", ""},
		{"headgate routes --objects x one", 2, "", "headgate routes: a request has a host and a path"},
		{"headgate routes --objects testdata/none", 1, "", "headgate routes: read objects: "},
		{"headgate extproc install", 2, "", "name the folder; see extproc install --help"},
		{"headgate plan compare", 2, "", "plan compare needs two files"},
		{"headgate plan compare a b c", 2, "", `unexpected argument "c"; see headgate plan compare --help`},
		{"headgate profile fit", 2, "", "profile fit needs a file of measurements"},
		{"headgate engine --kind abacus", 2, "", `there is no simulated engine of the kind "abacus"`},
		{"headgate completion bash", 0, "'profile fit') ", ""},
		{"headgate completion tcsh", 2, "", "name one shell: bash, zsh or fish"},
		{"/any/where/extproc --version", 0, "extproc " + version.Read().String(), ""},
		{"extproc --no-such-flag", 2, "", "extproc: unknown flag: --no-such-flag; see extproc --help"},
		{"control --version", 0, "control " + version.Read().String(), ""},
		{"control plan", 2, "", "control: "},
		{"plan", 2, "", "headgate COMMAND"},
	} {
		status, stdout, stderr := runHeadgate(t, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: exit status %d, prints %q and %q; want %d, %q and %q", c.args, status, stdout, stderr, c.status, c.stdout, c.stderr)
		}
	}
}
