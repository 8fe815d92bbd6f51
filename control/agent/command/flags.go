package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/headgate/headgate/control/agent/layout"
	"github.com/headgate/headgate/control/agent/relay"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/version"
)

// config contains the values of the flags.
type config struct {
	kind       engine.Kind
	engine     string
	engineData string
	protocol   string

	management string
	data       string
	certPath   string
	tokenFile  string
	engineKey  string

	modelsDir     string
	storageConfig string
	helper        bool
	disk          byteCount
	allow         []string
	claimsDir     string
	hubEndpoint   string // HF_ENDPOINT
	hubToken      string // HF_TOKEN

	memoryRequest byteCount
	memoryBuffer  byteCount
	sizeFactor    float64
	defaultSize   byteCount
	loads         int
	loadTimeout   time.Duration
	concurrency   int
	version       string

	healthAddress  string
	prestopControl string
	pod            string
	logLevel       slog.Level

	// The endpoints of engine and engineData.
	at, dataAt relay.Endpoint
}

// adapterKinds are the kinds of engines onto which adapters are loaded over HTTP.
var adapterKinds = []engine.Kind{engine.VLLM, engine.SGLang}

// grpcProtocol and httpProtocol are the protocols of a V2 model repository.
const grpcProtocol, httpProtocol = "grpc", "http"

// drivenKinds are the kinds of engines without mmesh.ModelRuntime that the agent drives.
var drivenKinds = []engine.Kind{engine.Triton, engine.MLServer, engine.TorchServe, engine.OVMS, engine.TFServing}

func (c *config) driven() bool { return slices.Contains(drivenKinds, c.kind) }

func (c *config) adapters() bool { return slices.Contains(adapterKinds, c.kind) }

const usage = `agent runs beside one engine, in its pod or on its machine. It fetches models and LoRA adapters from storage, loads them
onto the engine when control requests it, and relays requests to an engine that listens on a socket or on localhost.

Sources are s3://, gs://, https:// (also Azure Blob Storage), http://, pvc://, hf:// and oci://. Credentials are in the
files of --storage-config. HF_ENDPOINT and HF_TOKEN in the environment are for the Hugging Face Hub.

Usage:

  agent --kind KIND --engine ADDRESS --management ADDRESS [flags]

Examples:

  LoRA adapters for a vLLM; set "management: port:8086" in the pool's placement:

    agent --kind vllm --engine 127.0.0.1:8000 --management :8086 --models-dir /models --storage-config /storage-config

  A runtime written for ModelMesh, with both endpoints on sockets:

    agent --kind modelruntime --engine unix:/socks/rt.sock --engine-data unix:/socks/data.sock \
      --management :8086 --data :8001

  A Triton that listens on localhost, as a replacement of ModelMesh's adapter:

    agent --kind triton --engine 127.0.0.1:8001 --management :8086 --data :8033 --memory-request 4Gi

An address is HOST:PORT, port:N for a port of this pod, or unix:PATH.

`

// byteCount is a flag with a number of bytes, such as 512Mi.
type byteCount int64

func (b *byteCount) String() string {
	return resource.NewQuantity(int64(*b), resource.BinarySI).String()
}

// Set implements [pflag.Value].
func (b *byteCount) Set(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("%q is no number of bytes, such as 512Mi", text)
	}
	if q.Sign() < 0 || q.Cmp(*resource.NewQuantity(math.MaxInt64/2, resource.BinarySI)) > 0 {
		return fmt.Errorf("%s is out of range", text)
	}
	*b = byteCount(q.Value())
	return nil
}

// Type implements [pflag.Value].
func (b *byteCount) Type() string { return "BYTES" }

// parseFlags parses the command line and the environment. After it has printed help or the version,
// it returns pflag.ErrHelp.
func parseFlags(args []string, getenv func(string) string, out io.Writer) (config, error) {
	var c config
	fs := cli.Flags("agent", usage, out)
	fs.Group("The engine")
	kind := fs.String("kind", "",
		"`KIND` of the engine: modelruntime (it serves mmesh.ModelRuntime), triton, mlserver, torchserve, ovms, tfserving, vllm or sglang")
	fs.StringVar(&c.engine, "engine", "",
		"`ADDRESS` at which the engine is managed. Kinds with an adapter of ModelMesh have the adapter's default, such as 127.0.0.1:8001")
	fs.StringVar(&c.engineData, "engine-data", "", "`ADDRESS` to which --data relays (default: that of --engine)")
	fs.StringVar(&c.protocol, "engine-protocol", grpcProtocol,
		"with --kind triton and mlserver: `PROTOCOL` of --engine for the calls of the model repository, grpc or http")
	fs.StringVar(&c.engineKey, "engine-key-file", "",
		"with --kind vllm and sglang: the engine's API key is in this `FILE` (default: the agent passes the caller's token)")
	fs.Group("Servers")
	fs.StringVar(&c.management, "management", "", "serve management for control at this `ADDRESS`; all addresses: :PORT")
	fs.StringVar(&c.data, "data", "", "relay connections from this `ADDRESS` to the engine")
	fs.StringVar(&c.certPath, "cert-path", "",
		"serve --management and --data over TLS, with tls.crt and tls.key in this `DIR`, for pools with engineTLS. The engine gets plain connections")
	fs.StringVar(&c.tokenFile, "token-file", "",
		"serve --management only to callers with the bearer token in this `FILE`, that of the pool's engineToken; the agent reads it again when it changes")
	fs.StringVar(&c.healthAddress, "health-address", "", "serve /ready, /live, /metrics and /prestop at this `ADDRESS` over HTTP")
	fs.Group("Files of models")
	fs.StringVar(&c.modelsDir, "models-dir", "/models", "store files in this `DIR`, which the engine must have mounted at the same path")
	fs.StringVar(&c.storageConfig, "storage-config", "",
		"the credentials of storage are in this `DIR`: the mounted Secret storage-config, JSON by key. The agent reads it for each load")
	fs.BoolVar(&c.helper, "storage-helper", true,
		"fetch the files of models; if false, pass paths and keys to the engine unchanged")
	fs.Var(&c.disk, "disk", "keep files of models after an unload until all files take this many `BYTES` (default: until the disk is full)")
	fs.StringSliceVar(&c.allow, "allow", nil, "fetch only URIs that begin with one of these `PREFIXES`, such as s3://models/ (default: all)")
	fs.StringVar(&c.claimsDir, "pvc-dir", "", "PersistentVolumeClaims are mounted below this `DIR`, each with its name, for pvc:// URIs")
	fs.Group("Limits of an engine that ModelMesh drives by an adapter")
	fs.Var(&c.memoryRequest, "memory-request", "memory request of the engine's container in `BYTES` (CONTAINER_MEM_REQ_BYTES)")
	fs.Var(&c.memoryBuffer, "memory-buffer", "`BYTES` of it that models cannot use (MEM_BUFFER_BYTES; default 128Mi)")
	fs.Float64Var(&c.sizeFactor, "size-factor", 0,
		"a model takes this `NUMBER` times its bytes on disk (MODELSIZE_MULTIPLIER; default 1.25, torchserve 2.75)")
	fs.Var(&c.defaultSize, "default-size", "`BYTES` of a model of unknown size (DEFAULT_MODELSIZE; default 1M)")
	fs.IntVar(&c.loads, "loads", 0, "number of `MODELS` that are loaded at once (LOADING_CONCURRENCY; default 1, triton 2)")
	fs.DurationVar(&c.loadTimeout, "load-timeout", 0,
		"a load ends after this `DURATION`, with the transfer of its files (LOADTIME_TIMEOUT, in milliseconds; default 90s)")
	fs.IntVar(&c.concurrency, "concurrency", 0, "number of `REQUESTS` at once for one model (LIMIT_PER_MODEL_CONCURRENCY; default no limit)")
	fs.StringVar(&c.version, "runtime-version", "v1", "report this `VERSION` of the runtime (RUNTIME_VERSION)")
	fs.Group("The pod")
	fs.StringVar(&c.pod, "pod", "", "the agent is in the pod `NAMESPACE/NAME`")
	fs.StringVar(&c.prestopControl, "prestop-control", "",
		"/prestop queries control at this `ADDRESS`, that of its --prestop-address, until the models of --pod have copies elsewhere")
	fs.Group("Logs")
	fs.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "log messages of this `LEVEL` and above: debug, info, warn or error")
	versions := fs.Bool("version", false, "print the version, then exit")
	if err := cli.Parse(fs, args, 0); err != nil {
		return c, err
	}
	if *versions {
		fmt.Fprintln(out, "agent", version.Read())
		return c, pflag.ErrHelp
	}
	c.kind = engine.Kind(*kind)
	err := apply(fs.FlagSet, forKind(c.kind, getenv), c.driven())
	if err == nil {
		c.setDefaults(fs.FlagSet)
		c.hubEndpoint, c.hubToken = getenv("HF_ENDPOINT"), getenv("HF_TOKEN")
		err = c.check()
	}
	return c, fs.Wrong(err)
}

// setDefaults sets the values that depend on the kind.
func (c *config) setDefaults(fs *pflag.FlagSet) {
	a, is := layout.AdapterOf(c.kind)
	if !is {
		return
	}
	c.engine = cmp.Or(c.engine, a.Management)
	c.loads, c.loadTimeout = cmp.Or(c.loads, a.Loads), cmp.Or(c.loadTimeout, a.LoadTimeout)
	c.sizeFactor, c.defaultSize = cmp.Or(c.sizeFactor, a.SizeFactor), cmp.Or(c.defaultSize, byteCount(a.DefaultBytes))
	if !fs.Changed("memory-buffer") {
		c.memoryBuffer = byteCount(a.Buffer)
	}
}

// check returns what is wrong, and sets at and dataAt.
func (c *config) check() error {
	switch {
	case c.kind != engine.ModelRuntime && !c.driven() && !c.adapters():
		return fmt.Errorf("--kind %q: want modelruntime, triton, mlserver, torchserve, ovms, tfserving, vllm or sglang", c.kind)
	case c.engine == "":
		return errors.New("set --engine to the address of the engine: HOST:PORT, port:N or unix:PATH")
	case c.management == "" && c.data == "":
		return errors.New("nothing to serve: set --management, where control loads models, or --data, where requests are relayed")
	case c.adapters() && !c.helper:
		return fmt.Errorf("--storage-helper=false with --kind %s leaves nothing to do: let control call the engine itself", c.kind)
	case c.protocol != grpcProtocol && c.protocol != httpProtocol:
		return fmt.Errorf("--engine-protocol %q: want grpc or http", c.protocol)
	case c.engineKey != "" && !c.adapters():
		return errors.New("--engine-key-file needs --kind vllm or sglang: other engines have no key")
	}
	if err := c.checkLimits(); err != nil {
		return err
	}
	for _, prefix := range c.allow {
		if !strings.Contains(prefix, "://") {
			return fmt.Errorf("--allow %q: want the beginning of a URI, such as s3://models/", prefix)
		}
	}
	if c.prestopControl != "" {
		host, _, err := net.SplitHostPort(c.prestopControl)
		_, named := objects.ParseName(c.pod)
		switch {
		case err != nil || host == "":
			return fmt.Errorf("--prestop-control %q: want HOST:PORT, such as headgate-control.headgate:9092", c.prestopControl)
		case !named:
			return fmt.Errorf("--prestop-control needs --pod NAMESPACE/NAME, from the Downward API; it is %q", c.pod)
		case c.healthAddress == "":
			return errors.New("--prestop-control needs --health-address, where hooks call /prestop")
		}
	}
	var err error
	if c.at, err = relay.ParseEndpoint(c.engine); err != nil {
		return fmt.Errorf("--engine: %w", err)
	}
	if c.dataAt, err = relay.ParseEndpoint(cmp.Or(c.engineData, c.engine)); err != nil {
		return fmt.Errorf("--engine-data: %w", err)
	}
	if c.driven() && c.management != "" && c.at.Network != "tcp" {
		return fmt.Errorf("--engine %s: engines of the kind %s are managed at a port: want HOST:PORT or port:N", c.engine, c.kind)
	}
	return nil
}

func (c *config) checkLimits() error {
	switch {
	case !c.driven() || c.management == "":
		return nil
	case c.memoryRequest == 0:
		return errors.New("set --memory-request, or CONTAINER_MEM_REQ_BYTES by the Downward API, " +
			"to the memory request of the engine's container: its models share it")
	case c.memoryRequest <= c.memoryBuffer:
		return fmt.Errorf("--memory-request %s leaves no room for models beside --memory-buffer %s: raise the first, or lower the second",
			&c.memoryRequest, &c.memoryBuffer)
	case c.sizeFactor <= 0:
		return fmt.Errorf("--size-factor %v: it must be above 0", c.sizeFactor)
	case c.loads < 1:
		return fmt.Errorf("--loads %d: it must be at least 1", c.loads)
	case c.loadTimeout <= 0:
		return fmt.Errorf("--load-timeout %v: it must be above 0", c.loadTimeout)
	case c.concurrency < 0:
		return fmt.Errorf("--concurrency %d: it must not be below 0", c.concurrency)
	}
	return nil
}
