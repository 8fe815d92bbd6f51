// Package quickstart runs all of Headgate on one machine with one command: extproc, Envoy, and
// engines, which are simulated or already exist. It prints a request to try, and each second a line
// of metrics.
package quickstart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/bench/envoy"
	"github.com/headgate/headgate/bench/rig"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/test/process"
)

const usage = `Runs all of Headgate on this machine: Envoy, extproc, control, and a simulated engine for each Pod
in the objects with the label ` + rig.SimulateLabel + `. Ctrl-C stops all of them.

With --endpoints it runs only Envoy and extproc in front of your own servers. Requests name the
models that those servers list.

Usage:

  bench quickstart [flags]
  bench quickstart --endpoints HOST:PORT,... [flags]
  bench quickstart --gateway [flags]

The same with make:

  make run
  make run ENDPOINTS=localhost:8000,gpu-2.internal:8000
  make run GATEWAY=1
  make run ARGS=--listen=0.0.0.0:8090

With --gateway, control configures Envoy from the Gateway, HTTPRoutes and LLMRoutes in
bench/quickstart/gateway. Edits there take effect at once.

To add adapters or model names for your servers, edit bench/quickstart/objects.

`

// gatewayObjects is the default folder of objects with the flag --gateway.
const gatewayObjects = "bench/quickstart/gateway"

// baseModel is the name of the base model at simulated engines. Requests use the name of its route.
const baseModel = "meta-llama/Llama-2-70b-chat-hf"

// patience is how long a process may take to end after Ctrl-C before it is killed. Processes end in
// two groups, one after the other, so the quickstart may take twice as long.
const patience = 3 * time.Second

// Command runs the quickstart until ctx ends.
func Command(ctx context.Context, args []string, out io.Writer) error {
	c, cache, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	unlock, err := process.TryLock(filepath.Join(c.Dir, "lock"))
	if held, ok := errors.AsType[process.Held](err); ok {
		return fmt.Errorf("another quickstart runs in %s, as process %d: stop it with Ctrl-C or kill %[2]d, or give this one a folder and ports of its own (--run, --listen, --admin, --metrics, --control-metrics)", c.Dir,
			held.PID)
	}
	if err != nil {
		return err
	}
	defer unlock()
	if c.Programs, err = programs(ctx, cache, c.ControlMetrics != ""); ctx.Err() != nil {
		return nil // interrupted by Ctrl-C
	} else if err != nil {
		return err
	}
	return run(ctx, c, out)
}

// parseFlags returns the configuration from the command line, and the directory for a downloaded
// Envoy. It prints help to out.
func parseFlags(args []string, out io.Writer) (c rig.Config, cache string, err error) {
	c = rig.Config{Model: baseModel}
	flags := cli.Flags("bench quickstart", usage, out)
	endpoints := flags.String("endpoints", "",
		"run Envoy and extproc in front of your servers at these `HOST:PORT`s, separated by commas, without objects, simulated engines and control")
	flags.StringVar(&c.Listen, "listen", "0.0.0.0:8080", "serve clients at this `ADDRESS`")
	flags.StringVar(&c.Admin, "admin", "127.0.0.1:9901", "serve Envoy's admin interface at this `ADDRESS`")
	flags.StringVar(&c.Metrics, "metrics", "127.0.0.1:9090", "serve extproc's metrics at this `ADDRESS`")
	flags.StringVar(&c.ControlMetrics, "control-metrics", "127.0.0.1:9091", "serve control's metrics at this `ADDRESS`")
	flags.StringVar(&c.Objects, "objects", "bench/quickstart/objects", "read the objects from the YAML files in this `DIR`")
	gateway := flags.Bool("gateway", false,
		"configure Envoy from the Gateway in the objects, instead of --envoy-config and --listen; the default of --objects is then bench/quickstart/gateway")
	flags.StringVar(&c.EnvoyYAML, "envoy-config", "envoy.yaml", "start Envoy with this configuration `FILE`")
	flags.StringVar(&c.Dir, "run", ".run", "write logs and sockets into this `DIR`")
	flags.StringArrayVar(&c.EngineFlags, "engine-flag", []string{"--max-loras=4", "--max-cpu-loras=12"},
		"start each simulated engine with this `FLAG`; may be repeated")
	flags.StringArrayVar(&c.ExtprocFlags, "extproc-flag", nil, "start extproc with this `FLAG`; may be repeated")
	flags.StringArrayVar(&c.ControlFlags, "control-flag", nil, "start control with this `FLAG`; may be repeated")
	flags.StringVar(&cache, "cache", ".cache", "keep the downloaded Envoy in this `DIR`")
	if err := cli.Parse(flags, args, 0); err != nil {
		return c, "", err
	}
	if *gateway {
		for _, other := range []string{"endpoints", "envoy-config", "listen"} {
			if flags.Changed(other) {
				return c, "",
					fmt.Errorf("--gateway and --%s: a Gateway in the objects has its own address and routes; remove one of the flags", other)
			}
		}
		if !flags.Changed("objects") {
			c.Objects = gatewayObjects
		}
		return c, cache, useGateway(&c)
	}
	if !flags.Changed("endpoints") {
		return c, cache, nil
	}
	for _, other := range []string{"objects", "control-metrics", "engine-flag", "control-flag"} {
		if flags.Changed(other) {
			return c, "",
				fmt.Errorf("--endpoints and --%s: your own servers run without objects, control and simulated engines; remove one of the flags", other)
		}
	}
	c.Objects, c.ControlMetrics = "", ""
	c.Endpoints, err = parseServers(*endpoints, c.Listen)
	return c, cache, err
}

// programs returns the paths of the programs: bench is this process's file, and the others are
// beside it.
func programs(ctx context.Context, cache string, control bool) (rig.Programs, error) {
	self, err := os.Executable()
	if err != nil {
		return rig.Programs{}, err
	}
	beside := filepath.Dir(self)
	p := rig.Programs{Bench: self, Extproc: filepath.Join(beside, "extproc"), Control: filepath.Join(beside, "control")}
	for path, needed := range map[string]bool{p.Extproc: true, p.Control: control} {
		if _, err := os.Stat(path); err != nil && needed {
			return p, fmt.Errorf("%s is missing: `make build` builds it", path)
		}
	}
	p.Envoy, err = envoy.Find(ctx, cache, os.Stdout)
	return p, err
}

// explain formats an error of the rig as one line that says what to do.
func explain(err error, c rig.Config) error {
	var taken rig.Taken
	var start *process.NotReady
	switch {
	case errors.As(err, &taken) && taken.Use == "":
		return fmt.Errorf("the address %s of a simulated engine is taken: stop what serves there, or choose another podIP in %s",
			taken.Address, c.Objects)
	case errors.As(err, &taken) && taken.Use == "listen" && c.Gateway != "":
		return fmt.Errorf("the address %s is taken: stop what serves there, or choose another port or address for the Gateway in %s",
			taken.Address, c.Objects)
	case errors.As(err, &taken):
		return fmt.Errorf("the address %s is taken: stop what serves there, or choose another with --%s, such as make run ARGS=--%[2]s=%s",
			taken.Address, taken.Use, nextPort(taken.Address))
	case errors.As(err, &start):
		return errors.New(start.Brief())
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: start it in Headgate's folder, or say --objects DIR and --envoy-config FILE", err)
	}
	return err
}

// nextPort returns an address with the port number increased by one.
func nextPort(address string) string {
	host, port, _ := net.SplitHostPort(address) // cannot fail: the address was listened on
	n, _ := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(n%65535+1))
}

// run starts the rig and prints its activity until ctx ends or a process of the rig ends. Then it
// stops the rig.
func run(ctx context.Context, c rig.Config, out io.Writer) error {
	servers := c.Endpoints
	c.Endpoints = oneLoopback(ctx, servers)
	r, err := rig.New(c)
	if err != nil {
		return explain(err, c)
	}
	began := time.Now()
	what := "control, extproc and Envoy"
	switch n := len(r.Simulated()); {
	case len(servers) > 0:
		what = "extproc and Envoy in front of " + strings.Join(servers, ", ")
	case n > 0:
		what = fmt.Sprintf("%d simulated engines, %s", n, what)
	}
	fmt.Fprintf(out, "starting %s; logs are in %s\n", what, c.Dir)
	defer func() {
		fmt.Fprintln(out, "\nstopping")
		r.Stop(patience)
	}()
	if err := r.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // interrupted by Ctrl-C
		}
		return explain(err, c)
	}
	fmt.Fprintf(out, "ready after %.1f s\n", time.Since(began).Seconds())
	s := show{out: out, rig: r, servers: servers, notices: newNotices(r.Extproc.Log), watch: newWatch(r)}
	s.welcome(ctx)

	ended := r.Ended()
	s.watch.line(ctx) // discarded, so that the first printed line does not include earlier activity
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-ended:
			return fmt.Errorf("%s ended; its log is %s", p.Name, p.Log)
		case <-tick.C:
			s.second(ctx)
		}
	}
}
