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
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/headgate/headgate/bench/agent"
	"github.com/headgate/headgate/bench/cluster"
	"github.com/headgate/headgate/bench/conformance"
	"github.com/headgate/headgate/bench/cost"
	"github.com/headgate/headgate/bench/ext"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/flow"
	"github.com/headgate/headgate/bench/place"
	"github.com/headgate/headgate/bench/provision"
	"github.com/headgate/headgate/headgate/run"
	"github.com/headgate/headgate/headgate/simulated"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/cli"
)

// program is the table of commands.
var program = cli.Program{
	Name:  "bench",
	About: "Tools to test Headgate. Production uses none of them.",
	Groups: []cli.Group{
		{Title: "Run", Commands: []cli.Command{
			{Name: "engine", Summary: "run a simulated engine: vLLM, SGLang, or a model runtime", Run: simulated.Command},
			{Name: "prestop", Summary: "wait in the preStop hook of a simulated engine until control has moved its models", Run: llm.PreStop},
			{Name: "quickstart", Summary: "run Envoy, extproc, control and simulated engines on this machine", Run: run.Command},
			{Name: "cluster", Summary: "run a real Kubernetes with Headgate's images on this machine", Run: cluster.Command, Below: cluster.Commands},
		}},
		{Title: "Compare", Commands: []cli.Command{
			{
				Name: "cost", Summary: "measure what a request costs, beside less of the gateway and another one", Run: cost.Command,
				Below: []string{"engines"},
			},
			{Name: "fleet", Summary: "compare routing policies on a simulated fleet", Run: rollFleet},
			{Name: "flow", Summary: "compare how tenants share a simulated fleet", Run: flow.Command},
			{Name: "place", Summary: "compare placement policies on simulated endpoints", Run: rollModels},
			{
				Name: "provision", Summary: "plan pipelines, and compare the plans with exhaustive search", Run: provision.Command,
				Below: []string{"pipelines"},
			},
			{Name: "agent", Summary: "measure what the agent beside an engine costs", Run: agent.Command},
			{Name: "ext", Summary: "measure what endpoint pickers cost, beside one that decides nothing", Run: ext.Command},
			{Name: "conformance", Summary: "run Gateway API's conformance suite on that Kubernetes", Run: conformance.Command},
		}},
	},
}

// rollFleet runs "bench fleet" with the traces in $TRACE_DIR.
func rollFleet(ctx context.Context, args []string, out io.Writer) error {
	return fleet.Command(ctx, args, os.Getenv("TRACE_DIR"), out) //nolint:forbidigo // main
}

// rollModels runs "bench place" with the traces in $TRACE_DIR.
func rollModels(ctx context.Context, args []string, out io.Writer) error {
	return place.Command(ctx, args, os.Getenv("TRACE_DIR"), out) //nolint:forbidigo // main
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal tells the command to end, which may take until its requests have ended. The
	// second signal kills the process.
	context.AfterFunc(ctx, stop)
	os.Exit(program.Run(ctx, os.Args, os.Stdout, os.Stderr))
}
