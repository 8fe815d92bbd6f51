package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/extproc/epp"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/scrape"
	"github.com/headgate/headgate/extproc/serve"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/explain"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/internal/reach"
	"github.com/headgate/headgate/internal/version"
)

// config is what the command line says.
type config struct {
	objects        string
	kube           source.Kube
	serve          serve.Config
	edsFile        string
	pool           objects.Name
	metricsHost    string
	metricsPort    int
	settings       settings.Settings
	modeOverride   bool
	conformance    bool
	scrapeInterval time.Duration
	modelsInterval time.Duration
	seed           uint64
	explain        explain.Command
	logLevel       slog.Level

	control          string // empty: there is none
	controlCAFile    string
	controlTokenFile string
	controlCertPath  string
	maxHeld          int
	maxHeldMiB       int64

	endpoints []string // beside those of the objects
	engines   reach.Flags
	theirs    epp.Applied // flags of other endpoint pickers
}

const usage = `extproc picks the endpoint that answers, for every request that a data plane asks it about.

Usage:

  extproc --objects DIR --listen unix:PATH [flags]               beside Headgate's own Envoy
  extproc --endpoints HOST:PORT,... --listen unix:PATH [flags]   the same without objects
  extproc --objects DIR --pool-name NAME [flags]                 as the endpoint picker of other gateways
  extproc --pool-name NAME [flags of another picker]             in its place, in a cluster (docs/gateways.md)
  extproc --kube --listen unix:PATH [flags]                      with the objects of a Kubernetes cluster
  extproc drain [flags]                                          before the Envoy beside it is stopped
  extproc install DIR                                            copy the program, for the container of that Envoy

DIR holds YAML: InferencePool (which endpoints serve), LLMRoute (which models requests may name), PoolSettings (how to
pick for one pool), and where the endpoints are: Pod, as kubectl prints them, or EndpointList, a list of host:port. Edits
are in force within a second; an invalid one is refused with its file and line, and what was in force stays.
With --kube the same objects come from an API server; what it said last stays in force while it is away.

Endpoints on the command line are a pool of their own, default/endpoints: it admits the models that they list, or with a
folder beside, those of the routes that name it.

Envoys that are configured by envoy.yaml call --listen: only inference passes, and their access log tells what became of
it. Other gateways (Istio, kgateway, Envoy AI Gateway, GKE) speak the endpoint-picker protocol with --grpc-port, with TLS:
their routes decide what passes. The pool that they mean is the one whose endpointPickerRef names the service or port
that they call; else --pool-name. Without --listen, extproc serves on the ports that the field's manifests expect: 9002,
9003 for health, 9090 for metrics.

With --control, adapters and models are where control puts them, and a request for one that no endpoint has waits until
control has loaded it (--max-hold, or timeouts.hold of a PoolSettings). While control is away, what it said last stays.

Examples:

  extproc --objects bench/quickstart/objects --listen unix:.run/extproc.sock \
    --eds-file .run/endpoints.json --picks 3
  extproc --endpoints 10.0.0.7:8000,gpu-2.internal:8000 --listen unix:.run/extproc.sock \
    --eds-file .run/endpoints.json --picks 3
  extproc --objects /etc/headgate --pool-name llama --pool-namespace serving
  extproc --objects /etc/headgate --explain-config

Flags:

`

// parseFlags reads the command line. It returns pflag.ErrHelp after printing help, or the version, to out.
func parseFlags(args []string, out io.Writer) (config, error) {
	c := config{settings: settings.Default()}
	fs := pflag.NewFlagSet("extproc", pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintln(out, usage+fs.FlagUsagesWrapped(100)) }
	fs.SortFlags = false
	fs.StringVar(&c.objects, "objects", "", "the `DIR` with the objects (required without --kube or --endpoints)")
	c.kube.Register(fs)
	fs.StringArrayVar(&c.serve.Own, "listen", nil, "serve Headgate's own Envoys at this `ADDRESS`, unix:PATH or HOST:PORT; may be repeated")
	fs.StringVar(&c.edsFile, "eds-file", "", "write the endpoints of all pools into this `FILE`, from which envoy.yaml's cluster takes them; an ORIGINAL_DST cluster needs none")
	fs.StringVar(&c.serve.Host, "grpc-host", "", "serve other gateways on this `HOST`; empty means all")
	fs.IntVar(&c.serve.Port, "grpc-port", 9002, "serve other gateways on this `PORT`; with --listen only if it is given, -1 never")
	fs.IntVar(&c.serve.HealthPort, "grpc-health-port", 9003, "serve gRPC health, without TLS, on this `PORT`; with --listen only if it is given, -1 never")
	fs.BoolVar(&c.serve.Secure, "secure-serving", true, "serve with TLS; loopback addresses and sockets are served without")
	fs.StringVar(&c.serve.CertPath, "cert-path", "", "a `DIR` with tls.crt and tls.key, read again when they change; without one extproc makes a certificate of its own")
	fs.StringVar(&c.pool.Name, "pool-name", "", "the InferencePool `NAME` of requests that neither a route nor what the gateway calls gives a pool")
	fs.StringVar(&c.pool.Namespace, "pool-namespace", cmp.Or(os.Getenv("NAMESPACE"), "default"), "the `NAMESPACE` of --pool-name; without it $NAMESPACE counts, else default") //nolint:forbidigo // main
	fs.StringVar(&c.metricsHost, "metrics-host", "", "serve metrics on this `HOST`; empty means all")
	fs.IntVar(&c.metricsPort, "metrics-port", 9090, "serve /metrics, /healthz and /readyz on this `PORT`; 0 picks a free one and logs it, -1 serves none")
	policy := fs.String("policy", c.settings.Policy.Rule.String(), "how to pick, a `RULE`: proposal packs the requests for an adapter where it is held; leastRequest, roundRobin and random are there to compare with")
	fs.Int64Var(&c.settings.Policy.Threshold, "adapter-threshold", c.settings.Policy.Threshold, "with the policy proposal: from how many requests for one adapter at one endpoint on another endpoint is looked for; the default is the share of one of eight adapters in a batch of 256")
	fs.IntVar(&c.settings.Picks, "picks", c.settings.Picks, "name up to `N` endpoints for each request, in order, for a data plane that tries the next where one does not serve: 3 with envoy.yaml, 1 with an ORIGINAL_DST cluster, which reads no list")
	fs.DurationVar(&c.settings.Lease, "lease", c.settings.Lease, "count a request as in flight for at most this long when nothing reports its end")
	fs.DurationVar(&c.settings.Stale, "stale", c.settings.Stale, "an endpoint that was silent for this long gets requests only where no other can")
	fs.DurationVar(&c.settings.Lost, "lost", c.settings.Lost, "an endpoint that was silent for this long gets them only where every endpoint is silent; at least --stale")
	fs.BoolVar(&c.modeOverride, "allow-mode-override", false, "the data planes let extproc ask for a request's body after its headers (ext_proc's allow_mode_override)")
	fs.BoolVar(&c.conformance, "conformance-headers", false, "obey the headers of the endpoint-picker protocol's conformance suite; they let clients choose endpoints")
	fs.StringVar(&c.control, "control", "", "the `ADDRESS` of control, unix:PATH or HOST:PORT: the program that loads models where requests want them. Any other than a socket or loopback is called with TLS")
	fs.StringVar(&c.controlCAFile, "control-ca-file", "", "call control with TLS and trust the authorities in this `FILE` of PEM, and no others")
	fs.StringVar(&c.controlTokenFile, "control-token-file", "", "call control with the bearer token in this `FILE`, which may be replaced at any time")
	fs.StringVar(&c.controlCertPath, "control-cert-path", "", "call control with the client certificate in this `DIR`, tls.crt and tls.key, read again when they change")
	fs.DurationVar(&c.settings.Hold, "max-hold", c.settings.Hold, "let a request wait for its model to be loaded for at most this long; the data plane's max_message_timeout must be at least as long")
	fs.IntVar(&c.maxHeld, "max-held", flow.DefaultMaxHeld, "let at most `N` requests wait for one model; what comes then gets 429")
	fs.Int64Var(&c.maxHeldMiB, "max-held-mib", flow.DefaultMaxBytes>>20, "let the bodies of all requests that wait have at most `N` MiB")
	fs.DurationVar(&c.scrapeInterval, "scrape-interval", scrape.DefaultInterval, "look at the load of each endpoint this often")
	fs.DurationVar(&c.modelsInterval, "models-interval", scrape.DefaultModelsInterval, "look at the models of each endpoint this often")
	fs.DurationVar(&c.serve.DrainDelay, "drain-delay", 5*time.Second, "after SIGTERM, tell other gateways by health and go on serving them for this long")
	fs.DurationVar(&c.serve.DrainTimeout, "drain-timeout", 5*time.Second, "after SIGTERM, give requests that wait for their model this long, and then 503; where other gateways are served, all requests in flight, for 30s unless it is given. Answers that flow through Headgate's own Envoy need no extproc and go on")
	fs.BoolVar(&c.serve.TakeOver, "take-over", false, "take the place of an extproc that serves at the sockets of --listen: from the moment in which this one knows as much, new connections come here. End the other then")
	fs.Uint64Var(&c.seed, "seed", 0, "decide ties and shares by this `NUMBER`, the same in each run; 0 by good randomness")
	c.explain.Register(fs)
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "log from this `LEVEL` on: debug, info, warn or error")
	versions := fs.Bool("version", false, "print the version, and end")
	fs.StringSliceVar(&c.endpoints, "endpoints", nil, "engines at these `HOST:PORT`s, separated by commas, without objects: the pool default/endpoints. A name is looked up every 5s, and each of its addresses is an endpoint")
	c.engines.Register(fs)
	epp.Register(fs)

	err := fs.Parse(epp.Args(args))
	if errors.Is(err, pflag.ErrHelp) {
		return c, err
	}
	if err == nil && *versions {
		fmt.Fprintln(out, "extproc", version.Read())
		return c, pflag.ErrHelp
	}
	if err == nil {
		c.theirs, err = epp.Apply(fs)
	}
	if err == nil {
		c.settings.Policy.Rule, err = pick.ParseRule(*policy)
	}
	if len(c.serve.Own) > 0 {
		if !fs.Changed("grpc-port") {
			c.serve.Port = -1
		}
		if !fs.Changed("grpc-health-port") {
			c.serve.HealthPort = -1
		}
	}
	if c.serve.Port >= 0 && !fs.Changed("drain-timeout") {
		c.serve.DrainTimeout = 30 * time.Second
	}
	if !fs.Changed("lost") {
		c.settings.Lost = max(c.settings.Lost, c.settings.Stale)
	}
	switch {
	case c.pool.Name != "" && c.objects == "" && !c.kube.On && len(c.endpoints) == 0: // as other endpoint pickers are started
		c.kube.On, c.kube.Namespace = true, cmp.Or(c.kube.Namespace, c.pool.Namespace)
	case c.pool.Name != "":
	case len(c.endpoints) > 0:
		c.pool = objects.EndpointsPool
	default:
		c.pool = objects.Name{}
	}
	c.noteFlags(fs)
	if err == nil {
		err = c.check(fs.Args())
	}
	if err != nil {
		return c, fmt.Errorf("%w; see extproc --help", err)
	}
	return c, nil
}

// log writes to w. Its first line names all flags that say nothing.
func (c config) log(w io.Writer) *slog.Logger {
	log := slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: c.logLevel}))
	if len(c.theirs.Ignored) > 0 {
		log.Warn("extproc ignores flags of other endpoint pickers; docs/gateways.md says why", "flags", strings.Join(c.theirs.Ignored, " "))
	}
	return log
}

// source is where the objects come from.
func (c config) source() source.Source {
	return source.Source{Dir: c.objects, Kube: c.kube, Endpoints: c.endpoints, Named: map[string]objects.Name{"pool-name": c.pool}}
}

// random returns numbers that are the same in each run with a seed, and good ones without.
func (c config) random() func() uint64 {
	if c.seed == 0 {
		return rand.Uint64
	}
	source := rand.New(rand.NewPCG(c.seed, 0))
	var mu sync.Mutex // guards source
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return source.Uint64()
	}
}

func (c config) check(rest []string) error {
	switch {
	case len(rest) > 0 && (rest[0] == "true" || rest[0] == "false"):
		return fmt.Errorf("what is %q? write it with the flag that it is for: --flag=%[1]s", rest[0])
	case len(rest) > 0:
		return fmt.Errorf("what is %q? every setting is a flag", strings.Join(rest, " "))
	case c.objects == "" && !c.kube.On && len(c.endpoints) == 0:
		return errors.New("say where the engines are: --objects DIR, a folder with YAML; --kube, an API server; or --endpoints HOST:PORT")
	case len(c.serve.Own) == 0 && c.serve.Port < 0 && !c.explain.On:
		return errors.New("there is nobody to serve: say --listen unix:PATH for an Envoy beside, or --grpc-port for other gateways")
	case c.serve.TakeOver && (len(c.serve.Own) == 0 || slices.ContainsFunc(c.serve.Own, func(a string) bool { return !strings.HasPrefix(a, "unix:") })):
		return errors.New("--take-over: only sockets can be taken over: say --listen unix:PATH and no other address")
	case c.settings.Policy.Threshold < 1:
		return fmt.Errorf("--adapter-threshold %d: it must be at least 1", c.settings.Policy.Threshold)
	case c.settings.Picks < 1 || c.settings.Picks > 1+objects.MaxAttempts:
		return fmt.Errorf("--picks %d: it must be 1 to %d", c.settings.Picks, 1+objects.MaxAttempts)
	case c.settings.Lease <= 0:
		return fmt.Errorf("--lease %v: it must be above 0", c.settings.Lease)
	case c.settings.Stale <= 0 || c.settings.Lost < c.settings.Stale:
		return fmt.Errorf("--stale %v, --lost %v: the first must be above 0, and the second at least as long", c.settings.Stale, c.settings.Lost)
	case c.settings.Hold <= 0:
		return fmt.Errorf("--max-hold %v: it must be above 0", c.settings.Hold)
	case c.maxHeld < 1 || c.maxHeldMiB < 1:
		return fmt.Errorf("--max-held %d, --max-held-mib %d: both must be at least 1", c.maxHeld, c.maxHeldMiB)
	case c.control == "" && c.controlCAFile+c.controlTokenFile+c.controlCertPath != "":
		return errors.New("--control-ca-file, --control-token-file and --control-cert-path are of no use without --control")
	case c.scrapeInterval < 10*time.Millisecond || c.modelsInterval < 10*time.Millisecond:
		return errors.New("a scrape interval below 10ms would keep the engines busy with nothing else")
	}
	if err := c.kube.Check(c.objects); err != nil {
		return err
	}
	if err := c.engines.Check(c.kube.On); err != nil {
		return err
	}
	for _, text := range c.endpoints {
		if _, err := objects.ParseAddress(text); err != nil {
			return fmt.Errorf("--endpoints %q: %w", text, err)
		}
	}
	for flag, port := range map[string]int{"metrics-port": c.metricsPort, "grpc-port": c.serve.Port, "grpc-health-port": c.serve.HealthPort} {
		if port < -1 || port > 65535 {
			return fmt.Errorf("--%s %d is no port", flag, port)
		}
	}
	return nil
}
