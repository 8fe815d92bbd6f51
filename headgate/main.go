// Headgate is the one program of Headgate. Its commands run Envoy, extproc and control, print what
// they do, and plan capacity. A link to it with the name extproc or control is that command.
//
//	headgate --help            lists the commands
//	headgate COMMAND --help    explains a command
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/headgate/headgate/control/attach/routes"
	control "github.com/headgate/headgate/control/command"
	"github.com/headgate/headgate/control/profile"
	"github.com/headgate/headgate/control/provision/plan"
	extproc "github.com/headgate/headgate/extproc/command"
	"github.com/headgate/headgate/headgate/doctor"
	"github.com/headgate/headgate/headgate/drain"
	"github.com/headgate/headgate/headgate/envoy"
	"github.com/headgate/headgate/headgate/explain"
	"github.com/headgate/headgate/headgate/run"
	"github.com/headgate/headgate/headgate/simulated"
	"github.com/headgate/headgate/headgate/status"
	"github.com/headgate/headgate/internal/cli"
)

// program is the table of commands.
var program = cli.Program{
	Name:  "headgate",
	About: "Headgate is an inference gateway. It runs Envoy in front of model servers, picks the server of each request, and loads models.",
	Groups: []cli.Group{
		{Title: "Run", Commands: []cli.Command{
			{Name: "run", Summary: "run Envoy, extproc, control and simulated engines on this machine", Run: run.Command},
			{Name: "init", Summary: "write the configuration and objects of headgate run into a folder, for you to edit", Run: run.Init},
			{Name: "envoy", Summary: "run Envoy in front of extproc, with TLS and API keys, and replace it without losing a request", Run: envoy.Command},
			{
				Name: "extproc", Summary: "pick the endpoint of each request, for Envoy or another gateway", Run: runExtproc, Linked: true,
				Below: []string{"drain", "install"},
			},
			{
				Name: "control", Summary: "load models, and configure the Envoys of Gateways", Run: runControl, Linked: true,
				Below: []string{"bootstrap", "import"},
			},
			{Name: "drain", Summary: "take an endpoint out of use, before you stop its engine", Run: drain.Command},
			{Name: "engine", Summary: "run a simulated engine: vLLM, SGLang, or a model runtime", Run: simulated.Command},
		}},
		{Title: "Explain", Commands: []cli.Command{
			{Name: "status", Summary: "print the state of endpoints, and where models are loaded", Run: status.Command},
			{Name: "explain", Summary: "print why a request went to its endpoint, or where a new one would go", Run: explain.Command},
			{Name: "doctor", Summary: "check objects, engines, Envoy, ports, certificates and clocks, and print what to do", Run: doctor.Command},
			{Name: "routes", Summary: "print the routes of each Gateway, or the route of a request", Run: routes.Command},
		}},
		{Title: "Plan", Commands: []cli.Command{
			{
				Name: "plan", Summary: "find the cheapest hardware, replicas and batch sizes that meet objectives", Run: plan.Command,
				Below: []string{"compare"},
			},
			{Name: "profile", Summary: "measure the latency of a model, or fit a profile to measurements", Run: profile.Command, Below: []string{"fit"}},
		}},
	},
}

func runExtproc(ctx context.Context, args []string, out io.Writer) error {
	return extproc.Run(ctx, args, out, os.Stderr)
}

func runControl(ctx context.Context, args []string, out io.Writer) error {
	return control.Run(ctx, args, out, os.Stderr)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := program.Run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
