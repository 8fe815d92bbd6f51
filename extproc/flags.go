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
	"github.com/headgate/headgate/internal/objects"
)

// config is what the command line says.
type config struct {
	objects        string
	listen         []string
	metricsHost    string
	metricsPort    int
	policy         pick.Policy
	scrapeInterval time.Duration
	modelsInterval time.Duration
	drainTimeout   time.Duration
	logLevel       slog.Level

	endpoints        []string // beside those of the objects
	engineTokenFile  string
	engineTLS        bool
	engineCAFile     string
	engineSkipVerify bool
}

const usage = `extproc picks the endpoint that answers, for every request that an Envoy asks it about.

Usage:

  extproc --objects DIR --listen unix:PATH [--listen HOST:PORT] [flags]
  extproc --endpoints HOST:PORT,... --listen unix:PATH [--listen HOST:PORT] [flags]

DIR holds YAML: InferencePool (which endpoints serve), LLMRoute (which models requests may
name), and where the endpoints are: Pod, as kubectl prints them, or EndpointList, a list of
host:port. Edits are in force within a second; an invalid one is refused with its file and
line, and what was in force stays.

Endpoints on the command line are a pool of their own, named endpoints. With a folder
beside, routes can name it.

Envoy's configuration must name extproc's socket: envoy.yaml does.

Examples, as envoy.yaml expects it, from the folder that Envoy runs in:

  extproc --objects bench/quickstart/objects --listen unix:.run/extproc.sock
  extproc --endpoints 10.0.0.7:8000,gpu-2.internal:8000 --listen unix:.run/extproc.sock

Flags:

`

// parseFlags reads the command line. It returns pflag.ErrHelp after printing help to out.
func parseFlags(args []string, out io.Writer) (config, error) {
	var c config
	fs := pflag.NewFlagSet("extproc", pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintln(out, usage+fs.FlagUsagesWrapped(100)) }
	fs.SortFlags = false
	fs.StringVar(&c.objects, "objects", "", "the `DIR` with the objects (required without --endpoints)")
	fs.StringArrayVar(&c.listen, "listen", nil, "serve ext_proc at this `ADDRESS`, unix:PATH or HOST:PORT; may be repeated (required)")
	fs.StringVar(&c.metricsHost, "metrics-host", "", "serve metrics on this `HOST`; empty means all")
	fs.IntVar(&c.metricsPort, "metrics-port", 9090, "serve /metrics, /healthz and /readyz on this `PORT`; 0 picks a free one and logs it, -1 serves none")
	policy := fs.String("policy", pick.Proposal.String(), "how to pick, a `RULE`: proposal packs the requests for an adapter where it is held; leastRequest, roundRobin and random are there to compare with")
	fs.Int64Var(&c.policy.Threshold, "adapter-threshold", pick.DefaultThreshold, "with the policy proposal: from how many requests for one adapter at one endpoint on another endpoint is looked for; the default is the share of one of eight adapters in a batch of 256")
	fs.DurationVar(&c.scrapeInterval, "scrape-interval", scrape.DefaultInterval, "look at the load of each endpoint this often")
	fs.DurationVar(&c.modelsInterval, "models-interval", scrape.DefaultModelsInterval, "look at the models of each endpoint this often")
	fs.DurationVar(&c.drainTimeout, "drain-timeout", 5*time.Second, "after SIGTERM, wait this long for requests in flight; responses that are flowing do not need extproc and go on")
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "log from this `LEVEL` on: debug, info, warn or error")
	fs.StringSliceVar(&c.endpoints, "endpoints", nil, "engines at these `HOST:PORT`s, separated by commas, without objects: the pool default/endpoints. A name is looked up every 5s, and each of its addresses is an endpoint")
	fs.StringVar(&c.engineTokenFile, "engine-token-file", "", "look at engines with the bearer token in this `FILE`, which may be replaced at any time")
	fs.BoolVar(&c.engineTLS, "engine-tls", false, "look at engines over TLS; a certificate is for the name in --endpoints or an EndpointList, else for the IP address")
	fs.StringVar(&c.engineCAFile, "engine-ca-file", "", "with --engine-tls: trust the authorities in this `FILE` of PEM and no others")
	fs.BoolVar(&c.engineSkipVerify, "engine-insecure-skip-verify", false, "with --engine-tls: trust any certificate; whoever is between can read the token")

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
	case c.objects == "" && len(c.endpoints) == 0:
		return errors.New("say where the engines are: --objects DIR, a folder with YAML, or --endpoints HOST:PORT")
	case len(c.listen) == 0:
		return errors.New("--listen is missing: say unix:PATH for an Envoy beside, or HOST:PORT")
	case c.metricsPort < -1 || c.metricsPort > 65535:
		return fmt.Errorf("--metrics-port %d is no port", c.metricsPort)
	case c.policy.Threshold < 1:
		return fmt.Errorf("--adapter-threshold %d: it must be at least 1", c.policy.Threshold)
	case c.scrapeInterval < 10*time.Millisecond || c.modelsInterval < 10*time.Millisecond:
		return errors.New("a scrape interval below 10ms would keep the engines busy with nothing else")
	}
	switch {
	case !c.engineTLS && c.engineCAFile != "":
		return errors.New("--engine-ca-file is of no use without --engine-tls")
	case !c.engineTLS && c.engineSkipVerify:
		return errors.New("--engine-insecure-skip-verify is of no use without --engine-tls")
	case c.engineCAFile != "" && c.engineSkipVerify:
		return errors.New("--engine-insecure-skip-verify checks no certificate: it cannot go with --engine-ca-file")
	}
	for _, text := range c.endpoints {
		if _, err := objects.ParseAddress(text); err != nil {
			return fmt.Errorf("--endpoints %q: %w", text, err)
		}
	}
	return nil
}
