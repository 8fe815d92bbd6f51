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
		{nil, 2, "", "usage: bench COMMAND"},
		{[]string{"--help"}, 0, "run a simulated engine", ""},
		{[]string{"--version"}, 0, "bench " + version.Read().String(), ""},
		{[]string{"fly"}, 2, "", `there is no command "fly"`},
		{[]string{"engine", "--port", "x"}, 1, "", "bench engine: invalid argument"},
		{[]string{"engine", "--kind", "modelruntime", "--capacity", "x"}, 1, "", "bench engine: --capacity: "},
		{[]string{"engine", "--kind=modelruntime", "--capacity", "x"}, 1, "", "bench engine: --capacity: "},
		{[]string{"engine", "--kind", "triton", "--model", "a=b"}, 1, "", "bench engine: --model a=b: "},
		{[]string{"engine", "--kind=mlserver", "--model", "a/b"}, 1, "", "bench engine: --model a/b: "},
		{[]string{"engine", "--kind", "abacus", "--port", "0"}, 1, "", `there is no simulated engine of the kind "abacus"`},
	} {
		var stdout, stderr bytes.Buffer
		if got := run(context.Background(), c.args, &stdout, &stderr); got != c.status {
			t.Errorf("%v: exit status %d, want %d", c.args, got, c.status)
		}
		if !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%v: says %q and %q, want %q and %q", c.args, stdout.String(), stderr.String(), c.stdout, c.stderr)
		}
	}
}
