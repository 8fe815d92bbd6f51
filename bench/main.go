// Command bench contains the tools to test Headgate: simulated engines and fleets, the quickstart
// that runs everything on this machine, and a real Kubernetes on this machine. Production uses none
// of them.
//
//	bench --help            lists the commands
//	bench COMMAND --help    explains a command
//	bench --version         prints the version
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/bench/cluster"
	"github.com/headgate/headgate/bench/conformance"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/place"
	"github.com/headgate/headgate/bench/provision"
	"github.com/headgate/headgate/bench/quickstart"
	"github.com/headgate/headgate/bench/simulated/llm"
	"github.com/headgate/headgate/bench/simulated/repository"
	"github.com/headgate/headgate/bench/simulated/runtime"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/version"
)

// command is a subcommand.
type command struct {
	name    string
	summary string
	// run runs the command until the command ends, or until SIGINT or SIGTERM ends ctx. If it
	// prints its help, it returns pflag.ErrHelp.
	run func(ctx context.Context, args []string) error
}

var commands = []command{
	{"engine", "run a simulated engine: vLLM, SGLang, or a model runtime", serveEngine},
	{"prestop", "wait in the preStop hook of a simulated engine until control has moved its models", llm.PreStop},
	{"fleet", "compare routing policies on a simulated fleet", rollFleet},
	{"place", "compare placement policies on simulated endpoints", rollModels},
	{"provision", "plan pipelines, and compare the plans with exhaustive search", provision.Command},
	{"quickstart", "run Envoy, extproc, control and simulated engines on this machine", quickstart.Command},
	{"cluster", "run a real Kubernetes with Headgate's images on this machine", cluster.Command},
	{"conformance", "run Gateway API's conformance suite on that Kubernetes", conformance.Command},
}

// rollFleet runs "bench fleet" with the traces in $TRACE_DIR.
func rollFleet(ctx context.Context, args []string) error {
	return fleet.Command(ctx, args, os.Getenv("TRACE_DIR")) //nolint:forbidigo // main
}

// rollModels runs "bench place" with the traces in $TRACE_DIR.
func rollModels(ctx context.Context, args []string) error {
	return place.Command(ctx, args, os.Getenv("TRACE_DIR")) //nolint:forbidigo // main
}

// serveEngine runs the simulated engine of the kind in the flag --kind. Model runtimes and engines
// with a model repository have their own flags.
func serveEngine(ctx context.Context, args []string) error {
	for i, arg := range args {
		name, ok := strings.CutPrefix(arg, "--kind=")
		if !ok && arg == "--kind" && i+1 < len(args) {
			name = args[i+1]
		}
		switch kind := engine.Kind(name); {
		case kind == engine.ModelRuntime:
			return runtime.Command(ctx, args)
		case kind.Repository():
			return repository.Command(ctx, args)
		}
	}
	return llm.Command(ctx, args)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal tells the command to end, which may take until its requests have ended. The
	// second signal kills the process.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs a command line and returns the exit status: 1 if the command failed, 2 if there is no
// such command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		help(stderr)
		return 2
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		help(stdout)
		return 0
	case "-version", "--version":
		say(stdout, "bench %s\n", version.Read())
		return 0
	}
	for _, c := range commands {
		if c.name != args[0] {
			continue
		}
		if err := c.run(ctx, args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
			say(stderr, "bench %s: %v\n", c.name, err)
			return 1
		}
		return 0
	}
	say(stderr, "bench: there is no command %q; bench --help lists them\n", args[0])
	return 2
}

func help(w io.Writer) {
	say(w, "usage: bench COMMAND [ARGUMENT...]\n\ncommands:\n")
	for _, c := range commands {
		say(w, "  %-12s %s\n", c.name, c.summary)
	}
	say(w, "\nbench COMMAND --help explains a command; bench --version prints the version.\n")
}

// say prints to w and ignores errors.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
