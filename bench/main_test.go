package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/version"
)

func TestCommandsAreListedAndOthersRefused(t *testing.T) {
	for _, c := range []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{nil, 2, "", "bench COMMAND"},
		{[]string{"--help"}, 0, "run a simulated engine", ""},
		{[]string{"--version"}, 0, "bench " + version.Read().String(), ""},
		{[]string{"fly"}, 2, "", `there is no command "fly"`},
		{[]string{"engine", "--port", "x"}, 2, "", "bench engine: invalid argument"},
		{[]string{"engine", "--kind", "modelruntime", "--capacity", "x"}, 2, "", "bench engine: --capacity: "},
		{[]string{"engine", "--kind=modelruntime", "--capacity", "x"}, 2, "", "bench engine: --capacity: "},
		{[]string{"engine", "--kind", "triton", "--model", "a=b"}, 2, "", "bench engine: --model a=b: "},
		{[]string{"engine", "--kind=mlserver", "--model", "a/b"}, 2, "", "bench engine: --model a/b: "},
		{[]string{"engine", "--kind", "abacus", "--port", "0"}, 1, "", `there is no simulated engine of the kind "abacus"`},
	} {
		var stdout, stderr bytes.Buffer
		if got := program.Run(context.Background(), append([]string{"bench"}, c.args...), &stdout, &stderr); got != c.status {
			t.Errorf("%v: exit status %d, want %d", c.args, got, c.status)
		}
		if !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%v: says %q and %q, want %q and %q", c.args, stdout.String(), stderr.String(), c.stdout, c.stderr)
		}
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	for _, group := range program.Groups {
		for _, c := range group.Commands {
			var stdout, stderr bytes.Buffer
			status := program.Run(t.Context(), []string{"bench", c.Name, "--help"}, &stdout, &stderr)
			if status != 0 || !strings.Contains(strings.ToLower(stdout.String()), "usage:") || stderr.Len() > 0 {
				t.Errorf("bench %s --help: exit status %d, prints %q and %q", c.Name, status, stdout.String(), stderr.String())
			}
		}
	}
}
