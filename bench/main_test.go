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
		{[]string{"engine", "--kind", "abacus", "--port", "0"}, 2, "", `there is no simulated engine of the kind "abacus"`},
		{[]string{"cluster"}, 2, "", "bench cluster: a command is missing; see bench cluster --help"},
		{[]string{"cluster", "--no-such-flag"}, 2, "", "bench cluster: unknown flag: --no-such-flag; see bench cluster --help"},
		{[]string{"cluster", "jump"}, 2, "", `bench cluster: there is no command "jump"; see bench cluster --help`},
		{[]string{"cluster", "down", "now"}, 2, "", `bench cluster: unexpected argument "now"`},
		{[]string{"cluster", "exec"}, 2, "", "bench cluster: exec needs a command"},
		{[]string{"cluster", "api", "sideways"}, 2, "", "bench cluster: api needs one of: down, up"},
		{[]string{"provision", "--stages", "9", "--instances", "1"}, 2, "", "bench provision: --stages [9]"},
		{[]string{"provision", "pipelines", "--queries", "1"}, 2, "", "bench provision: --queries 1"},
		{[]string{"provision", "pipelines", "--plans", "../docs/plans", "--trends", "x"}, 2, "", "bench provision: --trends: no plan"},
		{[]string{"cost", "--rounds", "0"}, 2, "", "bench cost: --rounds must be at least 1"},
		{[]string{"cost", "--cell", "x"}, 2, "", "bench cost: --cell: unknown name"},
		{[]string{"cost", "engines"}, 2, "", "bench cost: --listen is missing"},
		{[]string{"fleet", "--seeds", "0"}, 2, "", "bench fleet: --endpoints, --pickers and --seeds must be at least 1"},
		{[]string{"fleet", "--policy", "x"}, 2, "", "bench fleet: --policy: unknown name"},
		{[]string{"place", "--seeds", "0"}, 2, "", "bench place: --seeds must be at least 1"},
		{[]string{"place", "--workload", "x"}, 2, "", "bench place: --workload: unknown name"},
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
			commands := []string{c.Name}
			for _, below := range c.Below {
				commands = append(commands, c.Name+" "+below)
			}
			for _, command := range commands {
				var stdout, stderr bytes.Buffer
				status := program.Run(t.Context(), strings.Fields("bench "+command+" --help"), &stdout, &stderr)
				if status != 0 || !strings.Contains(strings.ToLower(stdout.String()), "usage:") || stderr.Len() > 0 {
					t.Errorf("bench %s --help: exit status %d, prints %q and %q", command, status, stdout.String(), stderr.String())
				}
			}
		}
	}
}
