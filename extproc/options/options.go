// Package options holds extproc's command line: its flags, their checks, and the explanation of
// their effect.
package options

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

	"github.com/headgate/headgate/extproc/eppflags"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/payload"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/placementclient"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/extproc/scrape"
	"github.com/headgate/headgate/extproc/serve"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/configdump"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/internal/version"
)

// Options are the values that the command line sets. Create them with [Parse].
type Options struct {
	Objects        string
	Kube           source.Kube
	Serve          serve.Config
	Pool           objects.Name
	MetricsHost    string
	MetricsPort    int
	Settings       settings.Settings
	PrefixBytes    int
	ModeOverride   bool
	Conformance    bool
	ExplainPicks   bool
	EngineErrors   bool
	EmitScores     bool
	ScrapeInterval time.Duration
	ModelsInterval time.Duration
	Processors     int // limit of threads that run Go code; 0 keeps Go's own
	Seed           uint64
	Explain        configdump.Command
	LogLevel       slog.Level

	Control       placementclient.Control
	MeshTokenFile string
	ControlLost   time.Duration
	MaxQueued     int
	MaxQueuedMiB  int64

	Endpoints []string // endpoints in addition to those of the objects
	Engines   engineclient.Flags
	Payloads  payload.Flags
	Theirs    eppflags.Applied // parsed flags of other endpoint pickers
}

const usage = `extproc picks the endpoint that serves each request. Envoy, or another gateway, calls it for every request.

Usage:

  extproc --objects DIR --listen unix:PATH [flags]               beside Headgate's own Envoy
  extproc --endpoints HOST:PORT,... --listen unix:PATH [flags]   the same, with a list of endpoints and no objects
  extproc --objects DIR --pool-name NAME [flags]                 as the endpoint picker of another gateway
  extproc --pool-name NAME [flags of another picker]             in place of another endpoint picker (docs/gateways.md)
  extproc --kube --listen unix:PATH [flags]                      with the objects of a Kubernetes cluster

Commands:

  extproc drain [flags]   wait until Envoy has no request in flight (preStop hook)
  extproc install DIR     copy extproc into DIR, for Envoy's container

DIR contains YAML files. An InferencePool selects the endpoints, an LLMRoute lists the models that requests may name, and a
PoolSettings configures one pool. Endpoints are Pods, as kubectl prints them, or EndpointLists, which list host:port.
extproc applies an edit within a second. It rejects an invalid edit, logs its file and line, and keeps the last valid objects.
With --kube, extproc reads the same objects from an API server. If the API server is down, extproc keeps the last objects.

--endpoints creates the pool default/endpoints. Without objects, requests may name the models that these endpoints list.
With objects, requests may name the models of the LLMRoutes of that pool.

Headgate's own Envoy (envoy.yaml) calls --listen. It forwards only inference requests, and its access log reports to extproc
how each request ended. Other gateways (Istio, kgateway, Envoy AI Gateway, GKE) call --grpc-port, with TLS, in the
endpoint-picker protocol. Their HTTPRoutes decide which requests they forward. Such a request belongs to the pool whose
endpointPickerRef names the Service or port that the gateway calls, else to --pool-name. Without --listen, extproc serves on
the usual ports of an endpoint picker: 9002 for requests, 9003 for health, 9090 for metrics.

With --control, control decides which endpoint loads which model. If no endpoint has the model of a request, the request is
queued until control has loaded the model. The limit is --max-queue-time, or timeouts.queue of a PoolSettings. While control
is unreachable, extproc keeps the last placement state.

Examples:

  extproc --objects headgate/run/objects --listen unix:.run/extproc.sock --endpoints-per-request 3
  extproc --endpoints 10.0.0.7:8000,gpu-2.internal:8000 --listen unix:.run/extproc.sock --endpoints-per-request 3
  extproc --objects /etc/headgate --pool-name llama --pool-namespace serving
  extproc --objects /etc/headgate --explain-config

`

// Parse reads the command line. It returns pflag.ErrHelp after it has printed help, or the version,
// to out.
func Parse(args []string, out io.Writer) (Options, error) {
	c := Options{Settings: settings.Default()}
	fs := cli.Flags("extproc", usage, out)
	fs.Group("Objects")
	fs.StringVar(&c.Objects, "objects", "", "read the objects from the YAML files in this `DIR` (required without --kube or --endpoints)")
	c.Kube.Register(fs.FlagSet)
	fs.Group("Addresses")
	fs.StringArrayVar(&c.Serve.Own, "listen", nil, "serve Headgate's own Envoy at this `ADDRESS`, unix:PATH or HOST:PORT; may be repeated")
	fs.StringVar(&c.Serve.Host, "grpc-host", "", "serve other gateways on this `HOST`; empty means all addresses")
	fs.IntVar(&c.Serve.Port, "grpc-port", 9002,
		"serve other gateways on this `PORT`; -1 means not at all, which is the default with --listen")
	fs.IntVar(&c.Serve.HealthPort, "grpc-health-port", 9003,
		"serve gRPC health checks, without TLS, on this `PORT`; -1 means not at all, which is the default with --listen")
	fs.BoolVar(&c.Serve.Secure, "secure-serving", true, "serve with TLS, except on loopback addresses and Unix sockets")
	fs.StringVar(&c.Serve.CertPath, "cert-path", "",
		"serve with the certificate in this `DIR`, tls.crt and tls.key, reloaded when they change; without it, extproc creates a self-signed certificate")
	fs.Group("Pool of other gateways' requests")
	fs.StringVar(&c.Pool.Name, "pool-name", "",
		"use the InferencePool of this `NAME` for requests whose pool neither an LLMRoute nor the Service or port that the gateway calls determines")
	fs.StringVar(&c.Pool.Namespace, "pool-namespace", cmp.Or(os.Getenv("NAMESPACE"), "default"), //nolint:forbidigo // main
		"look for --pool-name in this `NAMESPACE`; the default is $NAMESPACE, else default")
	fs.Group("Metrics")
	fs.StringVar(&c.MetricsHost, "metrics-host", "", "serve metrics on this `HOST`; empty means all addresses")
	fs.IntVar(&c.MetricsPort, "metrics-port", 9090,
		"serve /metrics, /profiles, /healthz and /readyz on this `PORT`; 0 picks a free port and logs it, -1 means not at all")
	fs.Group("Choice of endpoints")
	policy := fs.String("policy", c.Settings.Policy.Rule.String(),
		"pick endpoints by this `RULE`. latency predicts the delay of the request and of others at each endpoint; it falls back to proposal while its predictions are not trusted. proposal sends the requests for an adapter to the endpoints that already use it. leastRequest, roundRobin and random are for comparison")
	fs.Int64Var(&c.Settings.Policy.Threshold, "adapter-threshold", c.Settings.Policy.Threshold,
		"with policy proposal: once an endpoint has `N` requests in flight for an adapter, prefer another endpoint; the default is one eighth of a batch of 256")
	fs.IntVar(&c.PrefixBytes, "prefix-cache-bytes", prefix.DefaultBytes,
		"remember in at most `N` bytes which prompts each endpoint probably has in its prefix cache. Each 256 bytes of a prompt at an endpoint take 64 bytes. Only policies that use prefix caches take memory")
	fs.BoolVar(&c.ExplainPicks, "explain-picks", false,
		"write what the policy compared into Envoy's access log, for the chosen endpoint and the second best: numbers of requests and adapters and, with --policy latency, predicted times in seconds")
	fs.BoolVar(&c.EmitScores, "emit-endpoint-scores", false,
		"with --policy latency: report the predicted time to first token, in seconds, of the picks and of the next best endpoint, as x-gateway-destination-endpoint-scores in dynamic metadata")
	fs.IntVar(&c.Settings.EndpointsPerRequest, "endpoints-per-request", c.Settings.EndpointsPerRequest,
		"name up to `N` endpoints for each request, so that the data plane can retry at the next one if one fails. Use 3 with envoy.yaml, and 1 with an ORIGINAL_DST cluster, which cannot retry")
	fs.DurationVar(&c.Settings.InFlightTimeout, "in-flight-timeout", c.Settings.InFlightTimeout,
		"if nothing reports the end of a request, stop counting it as in flight after this long")
	fs.DurationVar(&c.Settings.StaleAfter, "stale-after", c.Settings.StaleAfter,
		"once an endpoint has left a scrape unanswered for this long, send it requests only if no other endpoint can serve them")
	fs.DurationVar(&c.Settings.LostAfter, "lost-after", c.Settings.LostAfter,
		"once an endpoint has left scrapes unanswered for this long, send it requests only if all endpoints are silent; at least --stale-after")
	fs.Group("Other gateways and tests")
	fs.BoolVar(&c.ModeOverride, "allow-mode-override", false,
		"request the body after the headers of a request; the data plane's ext_proc must set allow_mode_override")
	fs.BoolVar(&c.Conformance, "conformance-headers", false,
		"obey the headers of the endpoint-picker protocol's conformance suite; for tests only, since they let clients choose endpoints")
	fs.Group("Control")
	fs.StringVar(&c.Control.Address, "control", "",
		"call control, which loads models on demand, at this `ADDRESS`, unix:PATH or HOST:PORT; with TLS unless it is a socket or a loopback address")
	fs.StringVar(&c.Control.CAFile, "control-ca-file", "",
		"call control with TLS and trust only the certificate authorities in this PEM `FILE`")
	fs.StringVar(&c.Control.TokenFile, "control-token-file", "",
		"call control with the bearer token in this `FILE`, which may be replaced at any time")
	fs.StringVar(&c.Control.CertPath, "control-cert-path", "",
		"call control with the client certificate in this `DIR`, tls.crt and tls.key, reloaded when they change")
	fs.DurationVar(&c.ControlLost, "control-lost", placementclient.DefaultLost,
		"once control has been silent for this long, answer requests that need a load with 503 control_unavailable")
	fs.StringVar(&c.MeshTokenFile, "mesh-token-file", "",
		"forward calls of ModelMesh's API to control if they send the bearer token in this `FILE`, which may be replaced at any time. control's flag --mesh-token-file must have the same token. Without this flag, such calls end with UNIMPLEMENTED")
	fs.Group("Queues")
	fs.DurationVar(&c.Settings.QueueTimeout, "max-queue-time", c.Settings.QueueTimeout,
		"queue a request until its model is loaded and an engine has room, for at most this long; the data plane's max_message_timeout must be at least as long")
	fs.IntVar(&c.MaxQueued, "max-queued", flow.DefaultMaxQueued,
		"queue at most `N` requests per pool; beyond that, answer 429 to the newest request of the tenant that has most")
	fs.Int64Var(&c.MaxQueuedMiB, "max-queued-mib", flow.DefaultMaxBytes>>20,
		"queue at most `N` MiB of request bodies, for all pools together; beyond that, answer 429 to the newest request of the tenant that has most")
	fs.Group("Scraping")
	fs.DurationVar(&c.ScrapeInterval, "scrape-interval", scrape.DefaultInterval,
		"scrape the load of each endpoint in use this often, and of an idle one at most once a second")
	fs.DurationVar(&c.ModelsInterval, "models-scrape-interval", scrape.DefaultModelsInterval,
		"scrape each endpoint's list of models this often")
	fs.Group("Start and stop")
	fs.DurationVar(&c.Serve.DrainDelay, "drain-delay", 5*time.Second,
		"after SIGTERM, report NOT_SERVING by gRPC health, and keep serving other gateways for this long")
	fs.DurationVar(&c.Serve.DrainTimeout, "drain-timeout", 5*time.Second,
		"after SIGTERM, wait this long for queued requests, then answer them with 503. With --grpc-port, wait for all requests in flight, by default 30s. Answers through Headgate's own Envoy continue without extproc")
	fs.BoolVar(&c.Serve.TakeOver, "take-over", false,
		"take over the sockets of --listen from a running extproc: once this one has scraped all endpoints, it accepts all new connections. Then stop the other one")
	fs.Group("Resources")
	fs.IntVar(&c.Processors, "processors", 0,
		"use at most `N` processors at a time (GOMAXPROCS). Beside an Envoy, use the number of its worker threads (--concurrency); 0 means $GOMAXPROCS, else the processors or the CPU limit of the machine or container")
	fs.Group("Logs and diagnosis")
	fs.Uint64Var(&c.Seed, "seed", 0, "seed random choices with this `NUMBER`, to repeat them in each run; 0 means a random seed")
	c.Explain.Register(fs.FlagSet)
	fs.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "log messages of this `LEVEL` and above: debug, info, warn or error")
	fs.BoolVar(&c.EngineErrors, "log-engine-errors", false,
		"when an endpoint's state changes, also log the message of the engine's error. It may quote a prompt")
	versions := fs.Bool("version", false, "print the version, then exit")
	fs.Group("Engines")
	fs.StringSliceVar(&c.Endpoints, "endpoints", nil,
		"serve the engines at these `HOST:PORT`s, separated by commas, as the pool default/endpoints; no objects needed. extproc resolves each name every 5s, and each of its addresses is an endpoint")
	c.Engines.Register(fs.FlagSet)
	fs.Group("Payload sinks")
	c.Payloads.Register(fs.FlagSet)
	eppflags.Register(fs.FlagSet)

	err := fs.Parse(eppflags.Args(args))
	if errors.Is(err, pflag.ErrHelp) {
		return c, err
	}
	if err == nil && *versions {
		fmt.Fprintln(out, "extproc", version.Read())
		return c, pflag.ErrHelp
	}
	if err == nil {
		c.Theirs, err = eppflags.Apply(fs.FlagSet)
	}
	if err == nil {
		c.Settings.Policy.Rule, err = pick.ParseRule(*policy)
	}
	if len(c.Serve.Own) > 0 {
		if !fs.Changed("grpc-port") {
			c.Serve.Port = -1
		}
		if !fs.Changed("grpc-health-port") {
			c.Serve.HealthPort = -1
		}
	}
	if c.Serve.Port >= 0 && !fs.Changed("drain-timeout") {
		c.Serve.DrainTimeout = 30 * time.Second
	}
	if !fs.Changed("lost-after") {
		c.Settings.LostAfter = max(c.Settings.LostAfter, c.Settings.StaleAfter)
	}
	switch {
	case c.Pool.Name != "" && c.Objects == "" && !c.Kube.On && len(c.Endpoints) == 0: // the usual flags of other endpoint pickers
		c.Kube.On, c.Kube.Namespace = true, cmp.Or(c.Kube.Namespace, c.Pool.Namespace)
	case c.Pool.Name != "":
	case len(c.Endpoints) > 0:
		c.Pool = objects.EndpointsPool
	default:
		c.Pool = objects.Name{}
	}
	c.noteFlags(fs.FlagSet)
	if err == nil {
		err = c.check(fs.Args())
	}
	if err != nil {
		return c, fs.Wrong(err)
	}
	return c, nil
}

// Log returns the logger that writes to w. It first warns about flags that extproc ignores.
func (c Options) Log(w io.Writer) *slog.Logger {
	log := slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: c.LogLevel}))
	if len(c.Theirs.Ignored) > 0 {
		log.Warn("extproc ignores flags of other endpoint pickers; docs/gateways.md says why", "flags", strings.Join(c.Theirs.Ignored, " "))
	}
	return log
}

// Source returns the source of the objects.
func (c Options) Source() source.Source {
	return source.Source{
		Dir: c.Objects, Kube: c.Kube, Endpoints: c.Endpoints, Also: kinds.Listeners(), Offers: true,
		Named: map[string]objects.Name{"pool-name": c.Pool},
	}
}

// Random returns a source of random numbers. With --seed it returns the same numbers in each run.
func (c Options) Random() func() uint64 {
	if c.Seed == 0 {
		return rand.Uint64
	}
	source := rand.New(rand.NewPCG(c.Seed, 0))
	var mu sync.Mutex // guards source
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return source.Uint64()
	}
}

func (c Options) check(rest []string) error {
	switch {
	case len(rest) > 0 && (rest[0] == "true" || rest[0] == "false"):
		return fmt.Errorf("unexpected argument %q: write --flag=%[1]s", rest[0])
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q: set everything by flags", strings.Join(rest, " "))
	case c.Objects == "" && !c.Kube.On && len(c.Endpoints) == 0:
		return errors.New("no engines: set --objects DIR (a folder with YAML), --kube (an API server) or --endpoints HOST:PORT")
	case len(c.Serve.Own) == 0 && c.Serve.Port < 0 && !c.Explain.On:
		return errors.New("nothing to serve: set --listen unix:PATH for Headgate's own Envoy, or --grpc-port for other gateways")
	case c.Serve.TakeOver && (len(c.Serve.Own) == 0 ||
		slices.ContainsFunc(c.Serve.Own, func(a string) bool { return !strings.HasPrefix(a, "unix:") })):
		return errors.New("--take-over works for sockets only: set --listen unix:PATH and no other address")
	case c.Settings.Policy.Threshold < 1:
		return fmt.Errorf("--adapter-threshold %d: it must be at least 1", c.Settings.Policy.Threshold)
	case c.PrefixBytes < 1:
		return fmt.Errorf("--prefix-cache-bytes %d: it must be at least 1", c.PrefixBytes)
	case c.Settings.EndpointsPerRequest < 1 || c.Settings.EndpointsPerRequest > 1+objects.MaxAttempts:
		return fmt.Errorf("--endpoints-per-request %d: it must be 1 to %d", c.Settings.EndpointsPerRequest, 1+objects.MaxAttempts)
	case c.Settings.InFlightTimeout <= 0:
		return fmt.Errorf("--in-flight-timeout %v: it must be above 0", c.Settings.InFlightTimeout)
	case c.Settings.StaleAfter <= 0 || c.Settings.LostAfter < c.Settings.StaleAfter:
		return fmt.Errorf("--stale-after %v, --lost-after %v: the first must be above 0, and the second at least as long",
			c.Settings.StaleAfter,
			c.Settings.LostAfter)
	case c.Settings.QueueTimeout <= 0:
		return fmt.Errorf("--max-queue-time %v: it must be above 0", c.Settings.QueueTimeout)
	case c.MaxQueued < 1 || c.MaxQueuedMiB < 1:
		return fmt.Errorf("--max-queued %d, --max-queued-mib %d: both must be at least 1", c.MaxQueued, c.MaxQueuedMiB)
	case c.Processors < 0:
		return fmt.Errorf("--processors %d: it must not be negative", c.Processors)
	case c.Control.Address == "" && c.Control.CAFile+c.Control.TokenFile+c.Control.CertPath+c.MeshTokenFile != "":
		return errors.New("--control-ca-file, --control-token-file, --control-cert-path and --mesh-token-file need --control")
	case c.ControlLost < placementclient.MinLost:
		return fmt.Errorf("--control-lost %v: it must be at least %v", c.ControlLost, placementclient.MinLost)
	case c.ScrapeInterval < 10*time.Millisecond || c.ModelsInterval < 10*time.Millisecond:
		return errors.New("--scrape-interval and --models-scrape-interval must be at least 10ms, so as not to overload the engines")
	}
	if err := c.Kube.Check(c.Objects); err != nil {
		return err
	}
	if err := c.Engines.Check(c.Kube.On); err != nil {
		return err
	}
	if err := c.Payloads.Check(); err != nil {
		return err
	}
	for _, text := range c.Endpoints {
		if _, err := objects.ParseAddress(text); err != nil {
			return fmt.Errorf("--endpoints %q: %w", text, err)
		}
	}
	for flag, port := range map[string]int{
		"metrics-port": c.MetricsPort, "grpc-port": c.Serve.Port,
		"grpc-health-port": c.Serve.HealthPort,
	} {
		if port < -1 || port > 65535 {
			return fmt.Errorf("--%s %d is not a port", flag, port)
		}
	}
	return nil
}
