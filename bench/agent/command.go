// Package agent implements "bench agent". It measures the cost of the program agent, compared with
// the same work without it.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/process"
)

const usage = `Measures what the agent beside an engine costs. Each part measures with and without the agent in turns, and prints
medians of the rounds with the lowest and the highest, and the limits that hold. It fails if a limit is exceeded.
Run it in the repository's folder, after make build, on a machine that does nothing else. It has these parts:

  relay   a V2 call to a real MLServer, by a connection that stays open: directly, and through the agent

Usage:

  bench agent [flags]

`

// parts are the parts of the command, in the order of the output.
var parts = []part{{"relay", (*bench).relay}}

type part struct {
	name string
	run  func(*bench, context.Context) error
}

// bench is a run of the command.
type bench struct {
	program string // path of the agent
	cache   string // folder of installed engines
	rounds  int
	calls   int // per round and path to the engine
	dir     string
	starter process.Starter
	out     io.Writer
}

// Command implements "bench agent".
func Command(ctx context.Context, args []string, out io.Writer) error {
	b := bench{out: out}
	fs := cli.Flags("bench agent", usage, out)
	fs.StringVar(&b.program, "program", "bin/agent", "`PATH` of the agent")
	fs.StringVar(&b.cache, "cache", ".cache", "`DIR` with the engines that make real-repositories installs")
	fs.IntVar(&b.rounds, "rounds", 30, "`NUMBER` of rounds")
	fs.IntVar(&b.calls, "calls", 200, "`NUMBER` of calls in each round, with and without the agent each")
	only := fs.StringSlice("part", nil, "measure only these `PARTS`")
	if err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	if b.rounds < 1 || b.calls < 1 {
		return fs.Wrong(errors.New("--rounds and --calls must be at least 1"))
	}
	chosen, err := choose(*only)
	if err != nil {
		return fs.Wrong(err)
	}
	if b.dir, err = os.MkdirTemp("", "bench-agent-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.program, err = filepath.Abs(b.program); err != nil {
		return err
	}
	if _, err := os.Stat(b.program); err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	b.starter = process.NewStarter()
	defer close(b.starter)
	var failed []error
	for _, p := range chosen {
		if err := p.run(&b, ctx); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	return errors.Join(failed...)
}

// choose returns the parts with the given names; all parts if there are none.
func choose(names []string) ([]part, error) {
	if len(names) == 0 {
		return parts, nil
	}
	var chosen []part
	for _, name := range names {
		was := len(chosen)
		for _, p := range parts {
			if p.name == name {
				chosen = append(chosen, p)
			}
		}
		if len(chosen) == was {
			return nil, fmt.Errorf("--part %s: there is no such part; want %s", name, partNames())
		}
	}
	return chosen, nil
}

func partNames() string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	return strings.Join(names, ", ")
}
