package cost

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/headgate/envoy/adapt"
	"github.com/headgate/headgate/internal/process"
)

// variant is a gateway to measure.
type variant struct {
	name, title string
	start       func(context.Context, *rigs, place) (*gateway, error)
}

// variants are all variants, in the order of the output.
var variants = []variant{
	{"alone", "Envoy alone", alone},
	{"floor", "Envoy, ext_proc, no-op (floor)", floor},
	{"config", "our envoy.yaml, no-op", config},
	{"gateway", "our envoy.yaml, extproc", whole},
	{"smg", "smg " + smgVersion, smg},
	{"base", "envoy.yaml, extproc of --base", base},
}

// place is where a gateway runs.
type place struct {
	dir, listen, admin, metrics string
}

// gateway is a running variant.
type gateway struct {
	address       string           // for clients
	envoy, server *process.Process // each may be nil
}

// processes returns the processes of the gateway.
func (g *gateway) processes() []*process.Process {
	var all []*process.Process
	for _, p := range []*process.Process{g.envoy, g.server} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// pause stops the processes until they are resumed, so that they use no CPU time.
func (g *gateway) pause() {
	for _, p := range g.processes() {
		p.Signal(syscall.SIGSTOP)
	}
}

func (g *gateway) resume() {
	for _, p := range g.processes() {
		p.Signal(syscall.SIGCONT)
	}
}

// close ends the processes.
func (g *gateway) close() {
	g.resume()
	for _, p := range g.processes() {
		p.Stop(2 * time.Second)
	}
}

// rigs starts gateways and engines.
type rigs struct {
	*bench
	dir     string
	net     string // prefix of addresses, such as 127.200.7.
	envoy   string // path of Envoy
	smg     string // path of smg, or empty
	old     string // folder of the revision of --base, or empty
	engines []string
	starter process.Starter
	serving *process.Process // the engines
	started []*gateway
}

// numEngines is the number of engines behind the gateways: Envoy gets up to three picks.
const numEngines = 3

// close ends all processes.
func (r *rigs) close() {
	for _, g := range r.started {
		g.close()
	}
	if r.serving != nil {
		r.serving.Stop(time.Second)
	}
	close(r.starter)
}

// place makes the folder of a gateway and returns its addresses.
func (r *rigs) place(name string, n int) (place, error) {
	host := r.net + strconv.Itoa(n)
	at := place{dir: filepath.Join(r.dir, name), listen: host + ":8080", admin: host + ":9901", metrics: host + ":9090"}
	return at, os.MkdirAll(at.dir, 0o755)
}

// startEngines starts a process that serves engines.
func (r *rigs) startEngines(ctx context.Context, name, page string, addresses []string, flags ...string) (*process.Process, error) {
	cmd := exec.Command(r.self, "cost", "engines", "--page", page, "--listen", strings.Join(addresses, ","))
	cmd.Args = append(cmd.Args, flags...)
	p, err := r.starter.Start(name, r.dir, cmd)
	if err != nil {
		return nil, err
	}
	if err := p.AwaitOK(ctx, "http://"+addresses[len(addresses)-1]+readyPath); err != nil {
		p.Stop(time.Second)
		return nil, err
	}
	return p, nil
}

// startEnvoy starts Envoy with one worker.
func (r *rigs) startEnvoy(at place, config []byte) (*process.Process, error) {
	file := filepath.Join(at.dir, "envoy.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	return r.starter.Start("envoy", at.dir, exec.Command(r.envoy, "--config-path", file, "--disable-hot-restart", "--concurrency", "1",
		"--log-level", "warning", "--file-flush-interval-msec", "500"))
}

func (p place) socket() string { return filepath.Join(p.dir, "extproc.sock") }

func alone(_ context.Context, r *rigs, at place) (*gateway, error) {
	config, err := envoyAlone(at.listen, r.engines)
	if err != nil {
		return nil, err
	}
	envoy, err := r.startEnvoy(at, config)
	return &gateway{address: at.listen, envoy: envoy}, err
}

func floor(ctx context.Context, r *rigs, at place) (*gateway, error) {
	config, err := envoyFloor(at.listen, at.socket())
	if err != nil {
		return nil, err
	}
	return r.withNoop(ctx, at, config)
}

func config(ctx context.Context, r *rigs, at place) (*gateway, error) {
	config, err := r.ours("envoy.yaml", at)
	if err != nil {
		return nil, err
	}
	return r.withNoop(ctx, at, config)
}

// ours returns an envoy.yaml with the addresses of a gateway.
func (r *rigs) ours(path string, at place, changes ...adapt.Change) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	config, err := adapt.Config(text, adapt.Addresses{Listen: at.listen, Admin: at.admin, Socket: at.socket()}, changes...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// withNoop starts Envoy and a no-op.
func (r *rigs) withNoop(ctx context.Context, at place, config []byte) (*gateway, error) {
	server, err := r.startNoop(ctx, at, "GOMAXPROCS=1")
	g := &gateway{address: at.listen, server: server}
	if err != nil {
		return g, err
	}
	g.envoy, err = r.startEnvoy(at, config)
	return g, err
}

// startNoop starts a no-op that names the engines in turn.
func (r *rigs) startNoop(ctx context.Context, at place, env ...string) (*process.Process, error) {
	cmd := exec.Command(r.self, "ext", "--noop", "raw", "--listen", "unix:"+at.socket(), "--endpoint", strings.Join(r.engines, ","))
	cmd.Env = append(cmd.Environ(), env...)
	server, err := r.starter.Start("no-op", at.dir, cmd)
	if err != nil {
		return nil, err
	}
	return server, awaitSocket(ctx, server, at.socket())
}

// awaitSocket waits until a process serves a Unix socket.
func awaitSocket(ctx context.Context, p *process.Process, path string) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return &process.NotReady{Process: p, Fault: "ended at its start"}
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func whole(ctx context.Context, r *rigs, at place) (*gateway, error) {
	return r.whole(ctx, at, r.beside(), r.engines)
}

func base(ctx context.Context, r *rigs, at place) (*gateway, error) {
	return r.whole(ctx, at, r.former(), r.engines)
}

// program is a version of extproc and its envoy.yaml.
type program struct {
	title, headgate, envoyYAML string
	flags, env                 []string
}

// current returns the extproc of this revision.
func (r *rigs) current() program {
	return program{title: "extproc", headgate: r.headgate, envoyYAML: "envoy.yaml", flags: r.flags}
}

// beside returns the extproc of this revision with as many processors as its Envoy has workers.
func (r *rigs) beside() program { return r.current().with("--processors", "1") }

// former returns the extproc of --base.
func (r *rigs) former() program {
	return program{
		title: "extproc of --base", headgate: filepath.Join(r.old, "headgate.bin"), envoyYAML: filepath.Join(r.old, "envoy.yaml"),
	}
}

// programs returns extproc, and that of --base if there is one.
func (r *rigs) programs() []program {
	if r.old == "" {
		return []program{r.current()}
	}
	return []program{r.current(), r.former()}
}

// with returns the program with more flags.
func (p program) with(flags ...string) program {
	p.flags = slices.Concat(p.flags, flags)
	return p
}

// leanGC is the GOGC of lean programs.
const leanGC = "10"

// lean returns the program with less garbage, so that its memory is in use.
func (p program) lean() program {
	p.env = append(slices.Clip(p.env), "GOGC="+leanGC)
	return p
}

// whole starts an extproc that routes to engines, and its Envoy.
func (r *rigs) whole(ctx context.Context, at place, p program, engines []string, changes ...adapt.Change) (*gateway, error) {
	config, err := r.ours(p.envoyYAML, at, changes...)
	if err != nil {
		return nil, err
	}
	server, err := r.startExtproc(ctx, at, p.with("--endpoints", strings.Join(engines, ",")))
	if err != nil {
		return &gateway{server: server}, err
	}
	envoy, err := r.startEnvoy(at, config)
	return &gateway{at.listen, envoy, server}, err
}

// startExtproc starts an extproc and waits until it is ready.
func (r *rigs) startExtproc(ctx context.Context, at place, of program) (*process.Process, error) {
	host, port, _ := strings.Cut(at.metrics, ":")
	cmd := exec.Command(of.headgate, append([]string{
		"extproc", "--listen", "unix:" + at.socket(), "--metrics-host", host, "--metrics-port", port,
		"--endpoints-per-request", strconv.Itoa(numEngines),
	}, of.flags...)...)
	cmd.Env = append(cmd.Environ(), of.env...)
	p, err := r.starter.Start("extproc", at.dir, cmd)
	if err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return p, p.AwaitOK(ready, "http://"+at.metrics+"/readyz")
}

func smg(_ context.Context, r *rigs, at place) (*gateway, error) {
	host, port, _ := strings.Cut(at.listen, ":")
	args := []string{
		"launch", "--host", host, "--port", port, "--prometheus-host", host, "--prometheus-port", "29000", "--log-level", "warn",
		"--worker-urls",
	}
	for _, e := range r.engines {
		args = append(args, "http://"+e)
	}
	p, err := r.starter.Start("smg", at.dir, exec.Command(r.smg, args...))
	return &gateway{address: at.listen, server: p}, err
}
