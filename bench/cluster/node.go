//go:build linux

package cluster

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/test/apiserver"
)

const (
	pauseImage = "headgate.dev/pause:dev"
	dnsImage   = "headgate.dev/coredns:dev"

	// insideName is the file name of the admin kubeconfig for programs inside the namespaces.
	insideName = "admin.kubeconfig"

	// startTimeout is how long the cluster may take to start, even on a busy machine.
	startTimeout = 5 * time.Minute
)

//go:embed config
var files embed.FS

// values are inserted into the templates in the folder config.
type values struct {
	Pause, Plugins, CNI, PodRange      string
	NodeAddress, DNSAddress, Authority string
	DNSImage                           string
}

// node runs the programs of a Kubernetes node. It runs inside the namespaces.
type node struct {
	nodeConfig
	begun    time.Time
	progress io.Writer
	starter  process.Starter
	server   *apiserver.Server
	ended    chan *process.Process // programs that ended unexpectedly
}

// nodeProcess runs the node until it is asked to stop or one of its programs ends.
func nodeProcess(ctx context.Context) error {
	n := &node{begun: time.Now(), progress: os.Stdout, starter: process.NewStarter(), ended: make(chan *process.Process, 8)}
	if err := json.NewDecoder(os.Stdin).Decode(&n.nodeConfig); err != nil {
		return fmt.Errorf("this command is for bench cluster up to start: %w", err)
	}
	inheritNothing()
	outages := make(chan os.Signal, 8)
	signal.Notify(outages, outageSignal, restartSignal)
	if err := n.start(ctx); err != nil {
		return err
	}
	fmt.Fprintln(n.progress, ready)
	_ = os.Stdout.Close() // the reader of the progress has ended
	for {
		select {
		case <-ctx.Done():
			return nil // the other programs end with the namespaces
		case p := <-n.ended:
			return fmt.Errorf("%s ended, and with it the cluster: %s", p.Name, p.LastWords())
		case s := <-outages:
			if s == outageSignal {
				n.server.Outage()
			} else if err := n.server.Restart(ctx); err != nil {
				return err
			}
		}
	}
}

// start starts all programs in order of their dependencies and returns when pods can run.
func (n *node) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := prepareMounts(n.Dir); err != nil {
		return err
	}
	if err := prepareNetwork(); err != nil {
		return err
	}
	both, inBoth := errgroup.WithContext(ctx)
	both.Go(func() error { return n.startContainers(inBoth) })
	both.Go(func() error { return n.startServer(inBoth) })
	if err := both.Wait(); err != nil {
		return err
	}
	if err := n.startRest(); err != nil {
		return err
	}
	return n.await(ctx)
}

// say prints a line of progress.
func (n *node) say(what string) {
	fmt.Fprintf(n.progress, "%6.1f s  %s\n", time.Since(n.begun).Seconds(), what)
}

// run starts a program. When the program ends, the cluster ends.
func (n *node) run(name string, args ...string) (*process.Process, error) {
	program := filepath.Join(n.Binaries, name)
	if _, err := os.Stat(program); err != nil {
		program = name // the program is from a Debian package, in PATH
	}
	p, err := n.starter.Start(name, n.Dir, exec.Command(program, args...))
	if err != nil {
		return nil, err
	}
	go func() {
		<-p.Done()
		n.ended <- p
	}()
	return p, nil
}

// startContainers starts containerd and imports the images.
func (n *node) startContainers(ctx context.Context) error {
	config, err := n.write("containerd.toml", "pods.conflist")
	if err != nil {
		return err
	}
	p, err := n.run("containerd", "--config", config)
	if err != nil {
		return err
	}
	if err := awaitSocket(ctx, p, "/run/containerd/containerd.sock"); err != nil {
		return err
	}
	if err := importImages(ctx, exec.CommandContext, n.Images); err != nil {
		return err
	}
	n.say(fmt.Sprintf("containerd has %d images", len(n.Images)))
	return nil
}

// startServer starts etcd and kube-apiserver, and forwards connections from outside the namespaces
// to kube-apiserver.
func (n *node) startServer(ctx context.Context) (err error) {
	host, _, err := net.SplitHostPort(n.API)
	if err != nil {
		return err
	}
	n.server, err = apiserver.Start(ctx, apiserver.Config{
		Binaries: n.Binaries, Dir: n.Dir, Address: nodeAddress, Etcd: "127.0.0.1", Names: []string{host, "localhost"},
	})
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(apiFD, "api"))
	if err != nil {
		return err
	}
	go forward(listener, net.JoinHostPort(nodeAddress, apiserver.Port))
	n.say("etcd and kube-apiserver answer")
	return nil
}

// forward accepts connections at a listener and forwards each to an address.
func forward(from net.Listener, to string) {
	for {
		in, err := from.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer out.Close()
			done := make(chan struct{}, 2)
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(way[0], way[1])
					done <- struct{}{}
				}()
			}
			<-done // when one side closes, both connections are closed
		}()
	}
}

// startRest starts the programs that connect to the API server.
func (n *node) startRest() error {
	if _, err := n.write("kubelet.yaml"); err != nil {
		return err
	}
	for _, c := range []struct {
		program, user string
		groups        []string
		args          []string
	}{
		{"kube-controller-manager", "system:kube-controller-manager", nil, []string{
			"--bind-address", "127.0.0.1", "--leader-elect=false", "--use-service-account-credentials", "--root-ca-file",
			n.server.AuthorityFile(),
			"--service-account-private-key-file", n.server.AccountsKeyFile(),
		}},
		{"kube-scheduler", "system:kube-scheduler", nil, []string{"--bind-address", "127.0.0.1", "--leader-elect=false"}},
		{"kubelet", "system:node:" + nodeName, []string{"system:nodes"}, []string{
			"--config", filepath.Join(n.Dir, "kubelet.yaml"), "--node-ip", nodeAddress, "--hostname-override", nodeName,
		}},
		{"kube-proxy", "system:kube-proxy", nil, []string{
			"--hostname-override", nodeName, "--proxy-mode", "iptables", "--cluster-cidr", podRange, "--bind-address", nodeAddress,
			"--oom-score-adj", "0", "--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0",
			"--conntrack-tcp-timeout-close-wait", "0",
			// kube-proxy updates iptables rules at most this often. The default is once per second.
			"--iptables-min-sync-period", "100ms",
		}},
	} {
		kubeconfig, err := n.kubeconfig(c.program+".kubeconfig", c.user, c.groups...)
		if err != nil {
			return err
		}
		if _, err := n.run(c.program, append(c.args, "--kubeconfig", kubeconfig)...); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig writes a user's kubeconfig for programs inside the namespaces.
func (n *node) kubeconfig(name, user string, groups ...string) (string, error) {
	config, err := n.server.User(user, groups...)
	if err != nil {
		return "", err
	}
	text, err := apiserver.Kubeconfig(config)
	if err != nil {
		return "", err
	}
	path := filepath.Join(n.Dir, name)
	return path, os.WriteFile(path, text, 0o600)
}

// await waits until pods run and names resolve, and then writes the kubeconfig for programs outside
// the namespaces.
func (n *node) await(ctx context.Context) error {
	inside, err := n.kubeconfig(insideName, "admin", "system:masters")
	if err != nil {
		return err
	}
	dns, err := render("dns.yaml", n.values())
	if err != nil {
		return err
	}
	timeout := "--timeout=" + startTimeout.String()
	for _, step := range []struct {
		say   string
		stdin []byte
		args  []string
	}{
		{"", nil, []string{"wait", "--for", "create", "node/" + nodeName, timeout}},
		{"the node is ready", nil, []string{"wait", "--for", "condition=Ready", "node/" + nodeName, timeout}},
		{"", dns, []string{"apply", "--filename", "-"}},
		{"CoreDNS runs", nil, []string{"rollout", "status", "deployment/coredns", "--namespace", "kube-system", timeout}},
	} {
		command := exec.CommandContext(ctx, filepath.Join(n.Binaries, "kubectl"),
			append(step.args, "--kubeconfig", inside, "--cache-dir", filepath.Join(n.Dir, "kubectl"))...)
		command.Stdin = bytes.NewReader(step.stdin)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %v: %w: %s", step.args, err, out)
		}
		if step.say != "" {
			n.say(step.say)
		}
	}
	admin := n.server.Admin()
	admin.Host = "https://" + n.API
	text, err := apiserver.Kubeconfig(admin)
	if err != nil {
		return err
	}
	return os.WriteFile((&Cluster{Dir: n.Dir}).Kubeconfig(), text, 0o600)
}

func (n *node) values() values {
	return values{
		Pause: pauseImage, Plugins: plugins, CNI: filepath.Join(n.Dir, "cni"), PodRange: podRange, NodeAddress: nodeAddress,
		DNSAddress: dnsAddress, DNSImage: dnsImage, Authority: filepath.Join(n.Dir, "ca.crt"),
	}
}

// write writes files of the folder config and returns the path of the first.
func (n *node) write(names ...string) (string, error) {
	if err := os.MkdirAll(n.values().CNI, 0o755); err != nil {
		return "", err
	}
	for _, name := range names {
		text, err := render(name, n.values())
		if err != nil {
			return "", err
		}
		dir := n.Dir
		if filepath.Ext(name) == ".conflist" {
			dir = n.values().CNI
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return "", err
		}
	}
	return filepath.Join(n.Dir, names[0]), nil
}

func render(name string, v values) ([]byte, error) {
	t, err := template.ParseFS(files, "config/"+name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, v)
	return b.Bytes(), err
}

// awaitSocket waits until a program accepts connections at a socket.
func awaitSocket(ctx context.Context, p *process.Process, path string) error {
	answers := func() bool {
		c, err := net.Dial("unix", path)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}
	if !within(time.Until(deadline(ctx)), func() bool { return answers() || ended(p) }) || ended(p) {
		return fmt.Errorf("%s does not answer at %s: %s", p.Name, path, p.LastWords())
	}
	return nil
}

func deadline(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}

func ended(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

var (
	// outageSignal and restartSignal stop and restart kube-apiserver. They are sent to the first
	// process, which forwards them to the node.
	outageSignal  = syscall.SIGUSR1
	restartSignal = syscall.SIGUSR2

	errNotUp = errors.New("the cluster is not up: bench cluster up starts it")
)
