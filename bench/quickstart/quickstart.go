// Package quickstart runs the whole of Headgate on one machine, from one command: simulated engines, extproc and Envoy,
// with something to paste and something to watch.
package quickstart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/bench/envoy"
	"github.com/headgate/headgate/bench/rig"
)

const usage = `Runs the whole of Headgate on this machine: a simulated engine for each Pod of the objects
that is labelled ` + rig.SimulateLabel + `, control, extproc, and Envoy. Ctrl-C stops it all.

Usage:

  bench quickstart [flags]

To put it in front of real servers, edit bench/quickstart/objects/engines.yaml.

Flags:

`

// baseModel is what the simulated engines call their base model. Requests use the name of its route.
const baseModel = "meta-llama/Llama-2-70b-chat-hf"

// patience is what each process gets to end after Ctrl-C, before it is killed. There are two rounds of them.
const patience = 3 * time.Second

// Command runs the quickstart until ctx ends.
func Command(ctx context.Context, args []string) error {
	c := rig.Config{Model: baseModel}
	fs := pflag.NewFlagSet("quickstart", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() { fmt.Println(usage + fs.FlagUsagesWrapped(100)) }
	fs.StringVar(&c.Listen, "listen", "0.0.0.0:8080", "serve clients at this `ADDRESS`")
	fs.StringVar(&c.Admin, "admin", "127.0.0.1:9901", "serve Envoy's admin interface at this `ADDRESS`")
	fs.StringVar(&c.Metrics, "metrics", "127.0.0.1:9090", "serve extproc's metrics at this `ADDRESS`")
	fs.StringVar(&c.ControlMetrics, "control-metrics", "127.0.0.1:9091", "serve control's metrics at this `ADDRESS`")
	fs.StringVar(&c.Objects, "objects", "bench/quickstart/objects", "the `DIR` with the objects")
	fs.StringVar(&c.EnvoyYAML, "envoy-config", "envoy.yaml", "Envoy's configuration `FILE`")
	fs.StringVar(&c.Dir, "run", ".run", "the `DIR` for logs and the socket")
	fs.StringArrayVar(&c.EngineFlags, "engine-flag", []string{"--max-loras=4", "--max-cpu-loras=12"}, "hand a `FLAG` to the simulated engines; may be repeated")
	fs.StringArrayVar(&c.ExtprocFlags, "extproc-flag", nil, "hand a `FLAG` to extproc; may be repeated")
	fs.StringArrayVar(&c.ControlFlags, "control-flag", nil, "hand a `FLAG` to control; may be repeated")
	cache := fs.String("cache", ".cache", "the `DIR` for a fetched Envoy")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("what is %q? every setting is a flag", fs.Arg(0))
	}
	var err error
	if c.Programs, err = programs(ctx, *cache); err != nil {
		return err
	}
	return run(ctx, c, os.Stdout)
}

// programs finds the binaries: bench is this one, the others stand beside it.
func programs(ctx context.Context, cache string) (rig.Programs, error) {
	self, err := os.Executable()
	if err != nil {
		return rig.Programs{}, err
	}
	beside := filepath.Dir(self)
	p := rig.Programs{Bench: self, Extproc: filepath.Join(beside, "extproc"), Control: filepath.Join(beside, "control")}
	for _, path := range []string{p.Extproc, p.Control} {
		if _, err := os.Stat(path); err != nil {
			return p, fmt.Errorf("%s is missing: `make run` builds it", path)
		}
	}
	p.Envoy, err = envoy.Find(ctx, cache, os.Stdout)
	return p, err
}

// run starts the rig, shows it until ctx ends or one of its processes does, and stops it.
func run(ctx context.Context, c rig.Config, out io.Writer) error {
	r, err := rig.New(c)
	if err != nil {
		return err
	}
	began := time.Now()
	what := "control, extproc and Envoy"
	if n := len(r.Simulated()); n > 0 {
		what = fmt.Sprintf("%d simulated engines, %s", n, what)
	}
	fmt.Fprintf(out, "starting %s; logs are in %s\n", what, c.Dir)
	defer func() {
		fmt.Fprintln(out, "\nstopping")
		r.Stop(patience)
	}()
	if err := r.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // Ctrl-C meanwhile
		}
		return err
	}
	fmt.Fprintf(out, "ready after %.1f s\n", time.Since(began).Seconds())
	welcome(out, r)

	ended := r.Ended()
	watch := newWatch(r)
	watch.line(ctx) // what the engines did before is not the first second's
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-ended:
			return fmt.Errorf("%s ended; its log is %s", p.Name, p.Log)
		case <-tick.C:
			fmt.Fprintln(out, watch.line(ctx))
		}
	}
}

// welcome prints what to try.
func welcome(out io.Writer, r *rig.Rig) {
	host, port, _ := net.SplitHostPort(r.Listen) // it was listened on
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	url := "http://" + net.JoinHostPort(host, port)
	base, adapter := examples(r)
	var b strings.Builder
	fmt.Fprintf(&b, "\nHeadgate serves OpenAI's API at %s/v1. Try, in another terminal:\n\n  curl %s/v1/models\n", url, url)
	for _, try := range []struct{ model, more string }{
		{base, ""},
		{adapter, `, "stream": true`},
	} {
		if try.model != "" {
			fmt.Fprintf(&b, "\n  curl %s/v1/chat/completions -H 'content-type: application/json' -d '{\n    \"model\": \"%s\", \"max_tokens\": 40%s,\n    \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'\n", url, try.model, try.more)
		}
	}
	fmt.Fprintf(&b, "\nNo adapter is loaded yet: the first request for one waits until control has loaded it. Who has which is at\nhttp://%s/models, metrics are at http://%s/metrics and http://%[1]s/metrics, Envoy's admin interface at\nhttp://%[3]s.\n", r.ControlMetrics, r.Metrics, r.Admin)
	b.WriteString("Ctrl-C stops everything. Each second: requests held for their model, models loaded, and models that left for others; for each engine running+waiting requests, and its adapter slots, ● taken.\n\n")
	_, _ = io.WriteString(out, b.String())
}

// examples returns a model that the base serves and one that an adapter does; empty where there is none.
func examples(r *rig.Rig) (base, adapter string) {
	for _, route := range r.World().Routes {
		switch {
		case len(route.Models) == 0:
		case route.Adapter == "" && base == "":
			base = route.Models[0]
		case route.Adapter != "" && adapter == "":
			adapter = route.Models[0]
		}
	}
	return base, adapter
}
