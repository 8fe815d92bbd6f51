package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/serve"
	"github.com/headgate/headgate/internal/explain"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/internal/reach"
	"github.com/headgate/headgate/internal/version"
)

// config is what the command line says.
type config struct {
	objects      string
	kube         source.Kube
	endpoints    []string
	state        string
	listen       []string
	certPath     string
	placement    serve.Callers
	mesh         serve.Callers
	metricsHost  string
	metricsPort  int
	meshPool     string
	pod          string
	podIP        string
	credentials  string
	drainLimit   time.Duration
	lookInterval time.Duration
	engines      reach.Flags
	logLevel     slog.Level
	explain      explain.Command
}

const usage = `control puts models and LoRA adapters onto engines, before and when requests need them.

Usage:

  control --objects DIR --listen unix:PATH [flags]

DIR holds the objects that extproc reads too: InferencePool, Pod, EndpointList, PoolSettings, LLMRoute, and Model (what a
model is, where engines find it, how many copies there must be). The adapter of an LLMRoute that has no Model is loaded
with defaults: from the source in its pool's PoolSettings, else by its name. Edits are in force within a second. With
--kube in the place of --objects, they come from an API server.

Extprocs call --listen (extproc --control) and say which models requests wait for; a request for a model without a copy
waits there until it is loaded. Clients of ModelMesh call it too: it serves mmesh.ModelMesh. Models that they register, and
what was asked of engines, are written into --state, never into DIR.

What there is to see: /metrics for Prometheus, and /models, each model with its copies, failures and the reason why it
has no more of them, as JSON (curl localhost:9091/models?id=NAME). Both are on loopback; --metrics-host= serves /metrics,
/healthz and /readyz to other machines too, and /models to none.

In a cluster (--kube) several controls run, and one leads: the one that holds the Lease headgate-control. The others answer
health and reflection. What the leader would write into --state is in the status of Models. While the API server is away nothing is loaded or unloaded, and extprocs
are told what is known.

Examples:

  control --objects bench/quickstart/objects --listen unix:.run/control.sock
  control --objects /etc/headgate --state /var/lib/headgate/control.db --listen :8034 \
    --cert-path /etc/headgate/tls --token-file /etc/headgate/token --mesh-token-file /etc/headgate/mesh-token
  control --kube --kubeconfig ~/.kube/config --listen unix:.run/control.sock

Flags:

`

// parseFlags reads the command line. It returns pflag.ErrHelp after printing help, or the version, to out.
func parseFlags(args []string, out io.Writer) (config, error) {
	var c config
	fs := pflag.NewFlagSet("control", pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintln(out, usage+fs.FlagUsagesWrapped(100)) }
	fs.SortFlags = false
	fs.StringVar(&c.objects, "objects", "", "the `DIR` with the objects (required without --kube or --endpoints)")
	c.kube.Register(fs)
	fs.StringSliceVar(&c.endpoints, "endpoints", nil, "engines at these `HOST:PORT`s, separated by commas, without objects: the pool default/endpoints")
	fs.StringVar(&c.state, "state", "", "remember in this `FILE` what is not in the objects; the default is DIR.db, beside DIR")
	fs.StringArrayVar(&c.listen, "listen", nil, "serve extprocs, and clients of ModelMesh, at this `ADDRESS`, unix:PATH or HOST:PORT; may be repeated (required)")
	fs.StringVar(&c.certPath, "cert-path", "", "serve with TLS at addresses that others can reach: a `DIR` with tls.crt and tls.key, read again when they change")
	fs.StringVar(&c.placement.ClientCAFile, "client-ca-file", "", "serve there only extprocs whose certificate an authority in this `FILE` of PEM has signed")
	fs.StringVar(&c.placement.TokenFile, "token-file", "", "serve there only extprocs that send the bearer token in this `FILE`, which may be replaced at any time")
	fs.StringVar(&c.mesh.ClientCAFile, "mesh-client-ca-file", "", "serve ModelMesh's API there to clients whose certificate an authority in this `FILE` of PEM has signed")
	fs.StringVar(&c.mesh.TokenFile, "mesh-token-file", "", "serve ModelMesh's API there to clients that send the bearer token in this `FILE`, which is not that of --token-file. Without either, clients on other machines are refused")
	fs.StringVar(&c.metricsHost, "metrics-host", "127.0.0.1", "serve metrics and health on this `HOST`; empty means all addresses. Whatever it is, /models is served on loopback alone")
	fs.IntVar(&c.metricsPort, "metrics-port", 9091, "serve /metrics, /models, /healthz and /readyz on this `PORT`; 0 picks a free one and logs it, -1 serves none")
	fs.StringVar(&c.meshPool, "mesh-pool", "", "models that clients register belong to this InferencePool, `NAMESPACE/NAME`; without it to the only one whose engines are model runtimes")
	fs.DurationVar(&c.drainLimit, "drain-limit", decide.DrainLimit, "before a model is unloaded, give requests at it this long to end")
	fs.DurationVar(&c.lookInterval, "look-interval", place.DefaultLookInterval, "look at each engine this often: what people load by hand is known then")
	fs.StringVar(&c.pod, "pod", "", "with --kube: this is the pod `NAMESPACE/NAME`; the Lease by which one of several controls leads is in its namespace (default default/HOSTNAME)")
	fs.StringVar(&c.podIP, "pod-ip", "", "with --kube: the Service headgate-placement of that namespace leads to this `IP` and the port of --listen while this control leads")
	fs.StringVar(&c.credentials, "credentials-dir", "", "with --kube: serve with the certificate and the tokens in the Secret headgate-placement, in the place of --cert-path, --token-file and --mesh-token-file; control writes them into this `DIR`, and makes what is missing in the Secret")
	c.engines.Register(fs)
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "log from this `LEVEL` on: debug, info, warn or error")
	c.explain.Register(fs)
	versions := fs.Bool("version", false, "print the version, and end")

	err := fs.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return c, err
	}
	if err == nil && *versions {
		fmt.Fprintln(out, "control", version.Read())
		return c, pflag.ErrHelp
	}
	if host, err := os.Hostname(); err == nil && c.kube.On && c.pod == "" {
		c.pod = "default/" + host
	}
	if c.state == "" && c.objects != "" {
		c.state = filepath.Clean(c.objects) + ".db"
	}
	c.explain.Note(fs, nil, os.Getenv("KUBECONFIG")) //nolint:forbidigo // main
	if err == nil {
		err = c.check(fs.Args())
	}
	if err != nil {
		return c, fmt.Errorf("%w; see control --help", err)
	}
	return c, nil
}

// source is where the objects come from.
func (c config) source() source.Source {
	return source.Source{Dir: c.objects, Kube: c.kube, Endpoints: c.endpoints, Named: map[string]objects.Name{"mesh-pool": c.pool()}}
}

// pool is --mesh-pool, zero if it is not given.
func (c config) pool() objects.Name { return objectName(c.meshPool) }

// objectName reads NAMESPACE/NAME; anything else is zero.
func objectName(text string) objects.Name {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return objects.Name{}
	}
	return objects.Name{Namespace: namespace, Name: name}
}

func (c config) check(rest []string) error {
	if err := c.kube.Check(c.objects); err != nil {
		return err
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("what is %q? every setting is a flag", strings.Join(rest, " "))
	case c.objects == "" && !c.kube.On && len(c.endpoints) == 0:
		return errors.New("say where the engines are: --objects DIR, a folder with YAML; --kube, an API server; or --endpoints HOST:PORT")
	case c.kube.On && c.state != "":
		return errors.New("--state is of no use with --kube: what is registered and loaded is remembered in objects")
	case !c.kube.On && c.pod+c.podIP+c.credentials != "":
		return errors.New("--pod, --pod-ip and --credentials-dir are of no use without --kube")
	case c.credentials != "" && c.certPath+c.placement.TokenFile+c.mesh.TokenFile != "":
		return errors.New("--credentials-dir takes the place of --cert-path, --token-file and --mesh-token-file: leave one or the others out")
	case c.kube.On && objectName(c.pod) == (objects.Name{}):
		return fmt.Errorf("--pod %q: want NAMESPACE/NAME", c.pod)
	case c.podIP != "" && net.ParseIP(c.podIP) == nil:
		return fmt.Errorf("--pod-ip %q is no IP address", c.podIP)
	case c.state == "" && !c.kube.On && !c.explain.On:
		return errors.New("say where to remember what is registered and loaded: --state FILE")
	case len(c.listen) == 0 && !c.explain.On:
		return errors.New("there is nobody to serve: say --listen unix:PATH or HOST:PORT, which extprocs call")
	case c.meshPool != "" && c.pool() == (objects.Name{}):
		return fmt.Errorf("--mesh-pool %q: want NAMESPACE/NAME, such as default/runtimes", c.meshPool)
	case c.drainLimit <= 0:
		return fmt.Errorf("--drain-limit %v: it must be above 0", c.drainLimit)
	case c.lookInterval < 10*time.Millisecond:
		return errors.New("a look interval below 10ms would keep the engines busy with nothing else")
	case c.metricsPort < -1 || c.metricsPort > 65535:
		return fmt.Errorf("--metrics-port %d is no port", c.metricsPort)
	}
	for _, text := range c.endpoints {
		if _, err := objects.ParseAddress(text); err != nil {
			return fmt.Errorf("--endpoints %q: %w", text, err)
		}
	}
	return c.engines.Check(c.kube.On)
}
