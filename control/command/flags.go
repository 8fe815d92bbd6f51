package command

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/control/lifecycle"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/serve"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/configdump"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/internal/version"
)

// config contains the values of the flags.
type config struct {
	objects           string
	kube              source.Kube
	endpoints         []string
	stateFile         string
	listen            []string
	prestopAddress    string
	xdsAddress        string
	envoyImage        string
	extprocImage      string
	certPath          string
	placement         serve.Callers
	mesh              serve.Callers
	metricsHost       string
	metricsPort       int
	meshPool          string
	pod               string
	podIP             string
	credentials       string
	drainTimeout      time.Duration
	scrapeInterval    time.Duration
	rebalanceInterval time.Duration
	engines           engineclient.Flags
	logLevel          slog.Level
	explain           configdump.Command
}

const usage = `control loads models and LoRA adapters onto engines, before and when requests need them. It also configures the Envoys of Gateways.

Usage:

  control --objects DIR --listen unix:PATH [flags]
  control --kube --listen HOST:PORT [flags]
  control bootstrap NAMESPACE/NAME                print the configuration with which an Envoy of a Gateway starts
  control import --etcd FILE --pool NAME          print the models that clients have registered at ModelMesh

DIR contains the YAML files that extproc also reads: InferencePool, Pod, EndpointList, PoolSettings, LLMRoute, Model and VModel. A
Model names the source of a model and its minimum number of copies. An adapter in an LLMRoute needs no Model: control loads it
from the source in the pool's PoolSettings, else by its name. A VModel is an alias: control moves its requests to another
model once that model is loaded. Edits take effect within a second. With --kube, objects come from an API server.

Each extproc calls --listen (extproc --control) and reports which models have queued requests; control loads these. Clients of
ModelMesh call the same address (mmesh.ModelMesh). Control stores the models that they register, and the loads of engines,
in --state-file, never in DIR.

Envoys of Gateways of the class headgate.dev/gateway-controller call --xds-address. Control configures them from Gateways,
ListenerSets, HTTPRoutes, GRPCRoutes and LLMRoutes. Each Envoy has an extproc beside it.

Control serves /metrics for Prometheus and /models with the state of each model as JSON (curl localhost:9091/models?id=NAME).
headgate status reads /placement. All are on loopback. --metrics-host= also serves /metrics, /healthz and /readyz to other
machines; /models and /placement stay on loopback.

In a cluster (--kube), several controls run and the holder of the Lease headgate-control leads. The others serve health checks,
reflection and Envoys. Instead of --state-file, the leader uses the status of Models. While the API server does not answer,
control pauses loads and unloads, and serves extprocs with the state that it has.

Examples:

  control --objects headgate/run/objects --listen unix:.run/control.sock
  control --objects /etc/headgate --state-file /var/lib/headgate/control.db --listen :8034 \
    --cert-path /etc/headgate/tls --token-file /etc/headgate/token --mesh-token-file /etc/headgate/mesh-token
  control --kube --kubeconfig ~/.kube/config --listen unix:.run/control.sock

`

// parseFlags parses the command line. It returns pflag.ErrHelp after it printed help or the version
// to out.
func parseFlags(args []string, out io.Writer) (config, error) {
	var c config
	fs := cli.Flags("control", usage, out)
	fs.Group("Objects and state")
	fs.StringVar(&c.objects, "objects", "", "read the objects from the YAML files in this `DIR` (required without --kube or --endpoints)")
	c.kube.Register(fs.FlagSet)
	fs.StringSliceVar(&c.endpoints, "endpoints", nil,
		"use the engines at these comma-separated `HOST:PORT`s as the pool default/endpoints, without objects")
	fs.StringVar(&c.stateFile, "state-file", "", "store registered models and the loads of engines in this `FILE` (default DIR.db, beside DIR)")
	fs.Group("Addresses")
	fs.StringArrayVar(&c.listen, "listen", nil,
		"serve extprocs and clients of ModelMesh at this `ADDRESS`, unix:PATH or HOST:PORT; repeatable (required)")
	fs.StringVar(&c.prestopAddress, "prestop-address", "",
		"answer preStop hooks of pods with migrating models at this `HOST:PORT`, as http://HOST:PORT/prestop/NAMESPACE/POD, for any caller (:8036 in the manifests). All controls must use the same port, since followers ask the leader")
	fs.Group("Gateways")
	fs.StringVar(&c.xdsAddress, "xds-address", "",
		"serve xDS to the Envoys of Gateways at this `ADDRESS`: unix:PATH, or with --kube HOST:PORT. Every process that may open the socket gets the keys of every Gateway. At HOST:PORT Envoys need certificates of the authority in the Secret headgate-gateways, which control creates")
	fs.StringVar(&c.envoyImage, "envoy-image", "",
		"with --kube: create for each Gateway, in control's namespace, pods with Envoy from this `IMAGE` and extproc from --extproc-image, and a Service. Without it you run the Envoys of Gateways")
	fs.StringVar(&c.extprocImage, "extproc-image", "", "the `IMAGE` of extproc beside Envoys, with --envoy-image")
	fs.Group("TLS and callers")
	fs.StringVar(&c.certPath, "cert-path", "",
		"serve other machines over TLS, with tls.crt and tls.key in this `DIR`; control reloads them when they change")
	fs.StringVar(&c.placement.ClientCAFile, "client-ca-file", "",
		"on other machines, serve only extprocs with a client certificate of an authority in this PEM `FILE`")
	fs.StringVar(&c.placement.TokenFile, "token-file", "",
		"on other machines, serve only extprocs that send the bearer token in this `FILE`; control reads it again when it changes")
	fs.StringVar(&c.mesh.ClientCAFile, "mesh-client-ca-file", "",
		"serve ModelMesh's API also to clients on other machines whose certificate is signed by an authority in this PEM `FILE`")
	fs.StringVar(&c.mesh.TokenFile, "mesh-token-file", "",
		"serve ModelMesh's API to clients on other machines that send the bearer token in this `FILE`, which must differ from that of --token-file. Without this flag and --mesh-client-ca-file, control rejects clients on other machines")
	fs.Group("Metrics")
	fs.StringVar(&c.metricsHost, "metrics-host", "127.0.0.1",
		"serve metrics and health on this `HOST`; empty: all addresses. /models and /placement are always on loopback only")
	fs.IntVar(&c.metricsPort, "metrics-port", 9091,
		"serve /metrics, /models, /placement, /healthz and /readyz on this `PORT`; 0: any free port, which control logs; -1: none")
	fs.Group("Placement")
	fs.StringVar(&c.meshPool, "mesh-pool", "",
		"put registered models into this InferencePool, `NAMESPACE/NAME` (default: the only pool of model runtimes, or without one, the only pool whose engines have a model repository)")
	fs.DurationVar(&c.drainTimeout, "drain-timeout", decide.DrainLimit,
		"before control unloads a model, wait this long at most until its running requests have ended")
	fs.DurationVar(&c.scrapeInterval, "scrape-interval", place.DefaultScrapeInterval,
		"scrape each engine at this interval, to find models that others loaded or unloaded")
	fs.DurationVar(&c.rebalanceInterval, "rebalance-interval", decide.TickInterval,
		"rebalance at this interval: more copies of busy models, second copies, balance between endpoints, and loads into free room")
	fs.Group("Pods in a cluster")
	fs.StringVar(&c.pod, "pod", "",
		"with --kube: this control runs in the pod `NAMESPACE/NAME`, and the Lease headgate-control is in that namespace (default default/HOSTNAME)")
	fs.StringVar(&c.podIP, "pod-ip", "",
		"with --kube: while this control leads, point the Service headgate-placement to this `IP` and the port of --listen")
	fs.StringVar(&c.credentials, "credentials-dir", "",
		"with --kube: use the certificate and tokens of the Secret headgate-placement instead of --cert-path, --token-file and --mesh-token-file. Control adds missing entries to the Secret, and copies it into this `DIR`")
	fs.Group("Engines")
	c.engines.Register(fs.FlagSet)
	fs.Group("Logs and diagnosis")
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "log messages of this `LEVEL` and above: debug, info, warn or error")
	c.explain.Register(fs.FlagSet)
	versions := fs.Bool("version", false, "print the version, then exit")

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
	if c.stateFile == "" && c.objects != "" {
		c.stateFile = filepath.Clean(c.objects) + ".db"
	}
	c.explain.Note(fs.FlagSet, nil, os.Getenv("KUBECONFIG")) //nolint:forbidigo // main
	if err == nil {
		err = c.check(fs.Args())
	}
	if err != nil {
		return c, fs.Wrong(err)
	}
	return c, nil
}

// source returns the source of the objects.
func (c config) source() source.Source {
	return source.Source{
		Dir: c.objects, Kube: c.kube, Endpoints: c.endpoints, Also: slices.Concat(kinds.Network(), kinds.ByName()),
		Named: map[string]objects.Name{"mesh-pool": c.pool()},
	}
}

// pool returns --mesh-pool, zero if it is not set.
func (c config) pool() objects.Name { return objectName(c.meshPool) }

// objectName parses NAMESPACE/NAME; zero if it is invalid.
func objectName(text string) objects.Name {
	name, _ := objects.ParseName(text)
	return name
}

func (c config) check(rest []string) error {
	if err := c.kube.Check(c.objects); err != nil {
		return err
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q: set everything by flags", strings.Join(rest, " "))
	case c.objects == "" && !c.kube.On && len(c.endpoints) == 0:
		return errors.New("no engines: set --objects DIR (a folder with YAML), --kube (an API server) or --endpoints HOST:PORT")
	case c.kube.On && c.stateFile != "":
		return errors.New("--state-file has no effect with --kube: control stores its state in the status of objects")
	case !c.kube.On && c.pod+c.podIP+c.credentials != "":
		return errors.New("--pod, --pod-ip and --credentials-dir need --kube")
	case c.credentials != "" && c.certPath+c.placement.TokenFile+c.mesh.TokenFile != "":
		return errors.New("--credentials-dir replaces --cert-path, --token-file and --mesh-token-file: remove one or the others")
	case c.kube.On && objectName(c.pod) == (objects.Name{}):
		return fmt.Errorf("--pod %q: want NAMESPACE/NAME", c.pod)
	case c.podIP != "" && net.ParseIP(c.podIP) == nil:
		return fmt.Errorf("--pod-ip %q is not an IP address", c.podIP)
	case c.stateFile == "" && !c.kube.On && !c.explain.On:
		return errors.New("set --state-file FILE, where control stores registered models and loads")
	case len(c.listen) == 0 && !c.explain.On:
		return errors.New("nothing to serve: set --listen to unix:PATH or HOST:PORT, which extprocs call")
	case c.xdsAddress != "" && !strings.HasPrefix(c.xdsAddress, "unix:") && !c.kube.On:
		return fmt.Errorf("--xds-address %s: want unix:PATH, or --kube, where Envoys have certificates", c.xdsAddress)
	case (c.envoyImage == "") != (c.extprocImage == ""):
		return errors.New("--envoy-image and --extproc-image must be set together: a Gateway's pods have both")
	case c.envoyImage != "" && (!c.kube.On || lifecycle.Port(c.xdsAddress) == 0):
		return errors.New("--envoy-image needs --kube, and --xds-address HOST:PORT, where pods reach control")
	case c.meshPool != "" && c.pool() == (objects.Name{}):
		return fmt.Errorf("--mesh-pool %q: want NAMESPACE/NAME, such as default/runtimes", c.meshPool)
	case c.drainTimeout <= 0:
		return fmt.Errorf("--drain-timeout %v: it must be above 0", c.drainTimeout)
	case c.scrapeInterval < 10*time.Millisecond:
		return errors.New("--scrape-interval must be at least 10ms: a shorter one loads the engines")
	case c.rebalanceInterval < time.Second:
		return errors.New("--rebalance-interval must be at least 1s: load is averaged over it, and with a shorter one copies come and go")
	case c.metricsPort < -1 || c.metricsPort > 65535:
		return fmt.Errorf("--metrics-port %d is not a port", c.metricsPort)
	}
	for _, text := range c.endpoints {
		if _, err := objects.ParseAddress(text); err != nil {
			return fmt.Errorf("--endpoints %q: %w", text, err)
		}
	}
	return c.engines.Check(c.kube.On)
}
