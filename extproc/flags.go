package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/scrape"
)

// config is what the command line says.
type config struct {
	objects        string
	listen         []string
	edsFile        string
	metricsHost    string
	metricsPort    int
	policy         pick.Policy
	picks          int
	scrapeInterval time.Duration
	modelsInterval time.Duration
	drainTimeout   time.Duration
	logLevel       slog.Level
}

const usage = `extproc picks the endpoint that answers, for every request that an Envoy asks it about.

Usage:

  extproc --objects DIR --listen unix:PATH [--listen HOST:PORT] [flags]

DIR holds YAML: InferencePool (which pods serve), LLMRoute (which models requests may
name) and Pod (where they are), as kubectl prints them. Edits are in force within a
second; an invalid one is refused with its file and line, and what was in force stays.

Envoy's configuration must name extproc's socket: envoy.yaml does.

Example, as envoy.yaml expects it, from the folder that Envoy runs in:

  extproc --objects bench/quickstart/objects --listen unix:.run/extproc.sock \
    --eds-file .run/endpoints.json --picks 3

Flags:

`

// parseFlags reads the command line. It returns pflag.ErrHelp after printing help to out.
func parseFlags(args []string, out io.Writer) (config, error) {
	var c config
	fs := pflag.NewFlagSet("extproc", pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintln(out, usage+fs.FlagUsagesWrapped(100)) }
	fs.SortFlags = false
	fs.StringVar(&c.objects, "objects", "", "the `DIR` with the objects (required)")
	fs.StringArrayVar(&c.listen, "listen", nil, "serve ext_proc at this `ADDRESS`, unix:PATH or HOST:PORT; may be repeated (required)")
	fs.StringVar(&c.edsFile, "eds-file", "", "write the endpoints of all pools into this `FILE`, from which envoy.yaml's cluster takes them; an ORIGINAL_DST cluster needs none")
	fs.StringVar(&c.metricsHost, "metrics-host", "", "serve metrics on this `HOST`; empty means all")
	fs.IntVar(&c.metricsPort, "metrics-port", 9090, "serve /metrics, /healthz and /readyz on this `PORT`; 0 picks a free one and logs it, -1 serves none")
	policy := fs.String("policy", pick.Proposal.String(), "how to pick, a `RULE`: proposal packs the requests for an adapter where it is held; leastRequest, roundRobin and random are there to compare with")
	fs.Int64Var(&c.policy.Threshold, "adapter-threshold", pick.DefaultThreshold, "with the policy proposal: from how many requests for one adapter at one endpoint on another endpoint is looked for; the default is the share of one of eight adapters in a batch of 256")
	fs.IntVar(&c.picks, "picks", 1, "name up to `N` endpoints for each request, in order, for an Envoy that tries the next where one does not serve: 3 with envoy.yaml, 1 with an ORIGINAL_DST cluster, which reads no list")
	fs.DurationVar(&c.scrapeInterval, "scrape-interval", scrape.DefaultInterval, "look at the load of each endpoint this often")
	fs.DurationVar(&c.modelsInterval, "models-interval", scrape.DefaultModelsInterval, "look at the models of each endpoint this often")
	fs.DurationVar(&c.drainTimeout, "drain-timeout", 5*time.Second, "after SIGTERM, wait this long for requests in flight; responses that are flowing do not need extproc and go on")
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "log from this `LEVEL` on: debug, info, warn or error")

	err := fs.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return c, err
	}
	if err == nil {
		c.policy.Rule, err = pick.ParseRule(*policy)
	}
	if err == nil {
		err = c.check(fs.Args())
	}
	if err != nil {
		return c, fmt.Errorf("%w; see extproc --help", err)
	}
	return c, nil
}

func (c config) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("what is %q? every setting is a flag", strings.Join(rest, " "))
	case c.objects == "":
		return errors.New("--objects DIR is missing: name the folder with the YAML")
	case len(c.listen) == 0:
		return errors.New("--listen is missing: say unix:PATH for an Envoy beside, or HOST:PORT")
	case c.metricsPort < -1 || c.metricsPort > 65535:
		return fmt.Errorf("--metrics-port %d is no port", c.metricsPort)
	case c.policy.Threshold < 1:
		return fmt.Errorf("--adapter-threshold %d: it must be at least 1", c.policy.Threshold)
	case c.picks < 1 || c.picks > 16:
		return fmt.Errorf("--picks %d: it must be from 1 to 16", c.picks)
	case c.scrapeInterval < 10*time.Millisecond || c.modelsInterval < 10*time.Millisecond:
		return errors.New("a scrape interval below 10ms would keep the engines busy with nothing else")
	}
	return nil
}
