// Package rig runs Headgate as processes: simulated engines, control, extproc and Envoy. It starts
// them in order, waits until each is ready, and stops all of them. The quickstart and the
// end-to-end tests use it.
package rig

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/headgate/envoy/adapt"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/process"
)

// SimulateLabel is a label of pods and EndpointLists. If its value is true, the rig starts a
// simulated engine at each address of the object: a model runtime if the object names its
// management address, otherwise a vLLM. If the value is agent, the rig starts an engine on sockets,
// and an agent at the address and the management address.
const SimulateLabel = "headgate.dev/simulate"

// picks is the number of endpoints that extproc names for a request: one for the first attempt, and
// one for each retry in envoy.yaml.
const picks = 3

// startTimeout limits how long the start of all processes together may take.
const startTimeout = 30 * time.Second

// Config is the configuration of a Rig. Paths may be relative.
type Config struct {
	Programs     Programs
	EnvoyYAML    string // path of Envoy's configuration; empty for the built-in envoy.yaml
	EnvoyChanges []adapt.Change
	// Gateway is the NAMESPACE/NAME of a Gateway, or empty. If it is set, control configures Envoy
	// for that Gateway, EnvoyYAML and EnvoyChanges are ignored, and Listen is the address of the
	// Gateway's listener.
	Gateway   string
	Objects   string   // folder of objects; empty for no objects
	Endpoints []string // HOST:PORT of each engine that already runs
	// ExtprocKube and ControlKube are the paths of kubeconfig files. If they are set, the programs
	// read objects from an API server, and the folder Objects only says which pods to simulate.
	ExtprocKube, ControlKube string
	Dir                      string // folder for logs, sockets and Envoy's configuration; created if missing
	Listen                   string // HOST:PORT for clients
	// MeshREST and MeshGRPC are the HOST:PORTs for clients of ModelMesh, or empty.
	MeshREST, MeshGRPC string
	Admin              string // HOST:PORT of Envoy's admin interface
	Metrics            string // HOST:PORT of extproc's metrics
	// ControlMetrics is the HOST:PORT of control's metrics. If it is empty, the rig runs without
	// control, and simulated engines have every adapter from the start.
	ControlMetrics string
	Model          string // base model of simulated engines
	// MLServer is the path of the program mlserver, which is then the engine behind each agent. If
	// it is empty, these engines are simulated model runtimes.
	MLServer     string
	ExtprocFlags []string
	ControlFlags []string
	EngineFlags  []string
}

// Programs contains the paths of the binaries. Extproc is another version of extproc, or empty for
// the one in Headgate. Agent may be empty if no object has an agent.
type Programs struct{ Headgate, Envoy, Extproc, Agent string }

// command returns a command that runs the program headgate by another name.
func command(headgate, name string, args ...string) *exec.Cmd {
	c := exec.Command(headgate, args...)
	c.Args[0] = name
	return c
}

// Rig runs the processes of one run. Its methods are not safe for concurrent use. The methods of
// its processes are.
type Rig struct {
	Config
	// Engines contains the processes of the simulated engines, by address.
	Engines map[string]*process.Process
	// Agents contains the processes of the agents, by the address at which they serve requests.
	Agents  map[string]*process.Process
	Control *process.Process
	Extproc *process.Process
	Envoy   *process.Process

	starter process.Starter
	world   *objects.World
	knows   bool // whether Envoy gets endpoints from extproc
}

// New reads the objects and checks that the addresses are free. It starts no process.
func New(c Config) (*Rig, error) {
	set := objects.Endpoints(c.Endpoints)
	if c.Objects != "" {
		read, err := dir.Read(c.Objects, kinds.WithNetwork())
		if err != nil {
			return nil, err
		}
		set = set.Join(read)
	}
	world := objects.Build(set)
	knows := true
	if c.Gateway == "" {
		config, err := c.envoyYAML()
		if err != nil {
			return nil, err
		}
		if knows, err = adapt.KnowsEndpoints(config); err != nil {
			return nil, fmt.Errorf("%s: %w", c.EnvoyYAML, err)
		}
	}
	r := &Rig{Config: c, Engines: make(map[string]*process.Process), Agents: make(map[string]*process.Process), world: world, knows: knows}
	for _, a := range []struct{ use, address string }{
		{"listen", c.Listen},
		{"admin", c.Admin},
		{"metrics", c.Metrics},
		{"control-metrics", c.ControlMetrics},
		{"modelmesh-rest", c.MeshREST},
		{"modelmesh-grpc", c.MeshGRPC},
	} {
		if a.address != "" {
			if err := checkFree(a.use, a.address); err != nil {
				return nil, err
			}
		}
	}
	for _, address := range r.Simulated() {
		if err := checkFree("", address); err != nil {
			return nil, err
		}
	}
	return r, os.MkdirAll(c.Dir, 0o755)
}

// envoyYAML returns Envoy's configuration before its addresses are changed.
func (c Config) envoyYAML() ([]byte, error) {
	if c.EnvoyYAML == "" {
		return headgate.EnvoyYAML, nil
	}
	return os.ReadFile(c.EnvoyYAML)
}

// Taken is the error that an address of a Config is already in use.
type Taken struct {
	Address string
	// Use is the flag of headgate run that sets the address, such as listen. It is empty for the
	// address of a simulated engine.
	Use string
}

func (t Taken) Error() string { return fmt.Sprintf("the address %s is taken", t.Address) }

// checkFree returns an error if an address is in use or does not belong to this machine.
func checkFree(use, address string) error {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return Taken{address, use}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("the address %s is not one of this machine (on macOS: sudo ifconfig lo0 alias %s)", address, hostOf(address))
	case err != nil:
		return err
	}
	return l.Close()
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

// World returns the objects that New read.
func (r *Rig) World() *objects.World { return r.world }

// Simulated returns the sorted addresses of simulated engines.
func (r *Rig) Simulated() []string {
	var all []string
	for _, p := range r.world.Pools {
		for _, e := range p.Endpoints {
			if l := e.Labels[SimulateLabel]; l == "true" || l == withAgent {
				all = append(all, e.Address)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// adapters returns the sorted names of the adapters of all routes.
func (r *Rig) adapters() []string {
	var all []string
	for _, route := range r.world.Routes {
		if route.Adapter != "" {
			all = append(all, route.Adapter)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Start starts all processes and returns when Envoy answers requests. The caller must stop the rig,
// even after an error.
func (r *Rig) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	r.starter = process.NewStarter()
	if err := r.startEngines(ctx); err != nil {
		return err
	}
	if r.ControlMetrics != "" || r.Gateway != "" {
		if err := r.StartControl(ctx); err != nil {
			return err
		}
	}
	if err := r.StartExtproc(ctx); err != nil {
		return err
	}
	if err := r.StartEnvoy(); err != nil {
		return err
	}
	return r.AwaitEnvoy(ctx)
}

func (r *Rig) startEngines(ctx context.Context) error {
	for _, address := range r.Simulated() {
		if err := r.startEngine(address); err != nil {
			return err
		}
	}
	for address := range r.Engines {
		if err := r.awaitEngine(ctx, address); err != nil {
			return err
		}
	}
	return nil
}

// startEngine starts the simulated engine at an address. If the rig runs without control, the
// engine has all adapters from the start.
func (r *Rig) startEngine(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	args := []string{"engine", "--host", host, "--port", port, "--event-log", r.EventLog(address)}
	if r.hasAgent(address) {
		return r.startBehindAgent(address)
	}
	if management := r.endpoint(address).Management; management != "" {
		args = append(args, "--kind", string(engine.ModelRuntime), "--management", management)
	} else {
		args = append(args, r.Model)
		if r.ControlMetrics == "" {
			for _, a := range r.adapters() {
				args = append(args, "--lora-modules", a+"=sim:")
			}
		}
	}
	p, err := r.starter.Start("engine-"+host, r.Dir, exec.Command(r.Programs.Headgate, append(args, r.EngineFlags...)...))
	if err != nil {
		return err
	}
	r.Engines[address] = p
	return nil
}

// EventLog returns the path of the file in which the simulated engine at an address logs loads and
// unloads.
func (r *Rig) EventLog(address string) string {
	return filepath.Join(r.Dir, "engine-"+hostOf(address)+".events")
}

// StartEngine starts the engine at an address after it has ended, and returns when it is ready.
func (r *Rig) StartEngine(ctx context.Context, address string) error {
	if err := r.startEngine(address); err != nil {
		return err
	}
	return r.awaitEngine(ctx, address)
}

// StartControl starts control and returns when it has read its objects. It may be called again
// after control has ended.
func (r *Rig) StartControl(ctx context.Context) error {
	args := []string{"--listen", "unix:" + r.ControlSocket()}
	if r.ControlMetrics != "" {
		host, port, err := net.SplitHostPort(r.ControlMetrics)
		if err != nil {
			return err
		}
		args = append(args, "--metrics-host", host, "--metrics-port", port)
	} else {
		args = append(args, "--metrics-port", "-1")
	}
	if r.ControlKube == "" {
		args = append(args, "--objects", r.Objects, "--state-file", filepath.Join(r.Dir, "control.db"))
	} else {
		args = append(args, "--kube", "--kubeconfig", r.ControlKube)
	}
	if r.Gateway != "" {
		args = append(args, "--xds-address", "unix:"+r.envoysSocket())
	}
	p, err := r.starter.Start("control", r.Dir, command(r.Programs.Headgate, "control", append(args, r.ControlFlags...)...))
	if err != nil {
		return err
	}
	r.Control = p
	if r.ControlMetrics == "" {
		return nil
	}
	return p.AwaitOK(ctx, "http://"+r.ControlMetrics+"/readyz")
}

// ControlSocket returns the path of control's Unix socket.
func (r *Rig) ControlSocket() string { return filepath.Join(r.Dir, "control.sock") }

// envoysSocket returns the path of the Unix socket at which control serves the Envoys of Gateways.
func (r *Rig) envoysSocket() string { return filepath.Join(r.Dir, "envoys.sock") }

// StartExtproc starts extproc and returns when it has read its objects. It may be called again
// after extproc has ended.
func (r *Rig) StartExtproc(ctx context.Context) error {
	if err := r.startExtproc(); err != nil {
		return err
	}
	return r.Extproc.AwaitOK(ctx, "http://"+r.Metrics+"/readyz")
}

// ReplaceExtproc starts an extproc that takes over from the running one, then stops the old one,
// and returns when the old one has ended.
func (r *Rig) ReplaceExtproc(ctx context.Context) error {
	before, err := os.Stat(r.socket())
	if err != nil {
		return err
	}
	old := r.Extproc
	if err := r.startExtproc("--take-over"); err != nil {
		return err
	}
	for {
		if now, err := os.Stat(r.socket()); err == nil && !os.SameFile(before, now) {
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-r.Extproc.Done():
			return fmt.Errorf("the extproc that was to take over has ended; its log is %s", r.Extproc.Log)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	old.Signal(syscall.SIGTERM)
	select {
	case <-old.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	return r.Extproc.AwaitOK(ctx, "http://"+r.Metrics+"/readyz")
}

func (r *Rig) startExtproc(flags ...string) error {
	host, port, err := net.SplitHostPort(r.Metrics)
	if err != nil {
		return err
	}
	args := []string{"--listen", "unix:" + r.socket(), "--metrics-host", host, "--metrics-port", port}
	switch {
	case r.ExtprocKube != "":
		args = append(args, "--kube", "--kubeconfig", r.ExtprocKube)
	case r.Objects != "":
		args = append(args, "--objects", r.Objects)
	}
	if len(r.Endpoints) > 0 {
		args = append(args, "--endpoints", strings.Join(r.Endpoints, ","))
	}
	if r.knows {
		args = append(args, "--endpoints-per-request", strconv.Itoa(picks))
	}
	if r.ControlMetrics != "" {
		args = append(args, "--control", "unix:"+r.ControlSocket())
	}
	program := cmp.Or(r.Programs.Extproc, r.Programs.Headgate)
	p, err := r.starter.Start("extproc", r.Dir, command(program, "extproc", slices.Concat(args, r.ExtprocFlags, flags)...))
	if err == nil {
		r.Extproc = p
	}
	return err
}

func (r *Rig) socket() string { return filepath.Join(r.Dir, "extproc.sock") }

// StartEnvoy starts Envoy and does not wait until it is ready. It may be called again after Envoy
// has ended.
func (r *Rig) StartEnvoy() error {
	config, err := r.envoyConfig()
	if err != nil {
		return err
	}
	file := filepath.Join(r.Dir, "envoy.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return err
	}
	// Without this flag, several Envoys on one machine would share memory for hot restarts.
	p, err := r.starter.Start("envoy", r.Dir, exec.Command(r.Programs.Envoy, "--config-path", file, "--disable-hot-restart",
		"--log-level", "warning", "--file-flush-interval-msec", "500"))
	if err != nil {
		return err
	}
	r.Envoy = p
	return nil
}

// envoyConfig returns Envoy's bootstrap configuration.
func (r *Rig) envoyConfig() ([]byte, error) {
	if r.Gateway == "" {
		text, err := r.envoyYAML()
		if err != nil {
			return nil, err
		}
		more := slices.DeleteFunc([]string{r.MeshREST, r.MeshGRPC}, func(a string) bool { return a == "" })
		at := adapt.Addresses{Listen: r.Listen, More: more, Admin: r.Admin, Socket: r.socket()}
		config, err := adapt.Config(text, at, r.EnvoyChanges...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cmp.Or(r.EnvoyYAML, "envoy.yaml"), err)
		}
		return config, nil
	}
	bootstrap := command(r.Programs.Headgate, "control", "bootstrap", "--control", r.envoysSocket(), "--extproc", r.socket(), "--admin", r.Admin,
		"--node", "envoy-0", r.Gateway)
	config, err := bootstrap.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("control bootstrap: %s", bytes.TrimSpace(exit.Stderr))
	}
	return config, err
}

// AwaitEnvoy waits until Envoy answers requests.
func (r *Rig) AwaitEnvoy(ctx context.Context) error {
	return r.Envoy.AwaitOK(ctx, "http://"+r.Listen+"/v1/models")
}

// Ended returns a channel that receives each process of the rig when it ends.
func (r *Rig) Ended() <-chan *process.Process {
	ended := make(chan *process.Process, 3+len(r.Engines)+len(r.Agents))
	for _, p := range r.processes() {
		go func() {
			<-p.Done()
			ended <- p
		}()
	}
	return ended
}

func (r *Rig) processes() []*process.Process {
	var all []*process.Process
	for _, p := range slices.Concat([]*process.Process{r.Envoy, r.Extproc, r.Control}, r.engines(), slices.Collect(maps.Values(r.Agents))) {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

func (r *Rig) engines() []*process.Process {
	var all []*process.Process
	for _, p := range r.Engines {
		all = append(all, p)
	}
	return all
}

// Stop stops all processes. It stops Envoy first, so that the others have no clients left to wait
// for, and engines last. Processes that take longer than patience are killed. Stop may be called
// again.
func (r *Rig) Stop(patience time.Duration) {
	agents := slices.Collect(maps.Values(r.Agents))
	for _, group := range [][]*process.Process{{r.Envoy}, append(agents, r.Extproc, r.Control), r.engines()} {
		var ends sync.WaitGroup
		for _, p := range group {
			if p != nil {
				ends.Go(func() { p.Stop(patience) })
			}
		}
		ends.Wait()
	}
	if r.starter != nil {
		close(r.starter)
		r.starter = nil
	}
}
