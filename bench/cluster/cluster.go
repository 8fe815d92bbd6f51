//go:build linux

// Package cluster runs a real Kubernetes on this machine: one node, without Docker or a registry,
// from Go modules and Debian packages.
//
// The cluster runs in its own process, mount, network and cgroup namespaces. Everything that a node
// changes on a machine (interfaces, iptables, mounts, /run and /var, containers) is inside these
// namespaces and disappears when their first process ends for any reason. Outside there are only a
// directory, a loopback port for kubectl, and cgroups, which are removed.
//
//	bench cluster up      builds images and starts a process in new namespaces (start.go)
//	  └ init              inside: joins cgroups, reaps orphans (init.go)
//	      └ node          mounts, the network, then Kubernetes (node.go, mounts.go, run.go)
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/headgate/headgate/bench/image"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/test/apiserver"
)

// Addresses inside the cluster. They are not visible outside its network namespace.
const (
	nodeName    = "headgate"
	nodeAddress = "172.31.255.1"
	podRange    = "10.244.0.0/16"
	dnsAddress  = "10.96.0.10" // address of the DNS Service, in apiserver.ServiceRange
)

// programs are the programs of Kubernetes that a cluster needs, by name.
var programs = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl",
	"coredns",
}

const usage = `usage: bench cluster COMMAND [FLAG...]

Runs a real Kubernetes ` + apiserver.Version + ` with one node on this machine, in its own Linux namespaces: etcd, kube-apiserver,
kube-controller-manager, kube-scheduler, kubelet, kube-proxy and CoreDNS, built from their Go modules into .cache (once,
some minutes), and the containerd of Debian. It needs root. It installs these packages with apt-get if they are missing:
` + packagesText + `.

commands:
  up             start the cluster with images of Headgate's programs; do nothing if it runs
  down           stop the cluster and remove everything but its logs
  status         print whether the cluster runs, and what runs in it; the exit status is 1 if it does not run
  images         build the images from this source tree, as tarballs, and load them into the cluster if it runs
  exec -- CMD    run CMD in the cluster's network, where the addresses and names of pods and Services work
  build [NAME]   build all programs of Kubernetes, or only the named ones, such as etcd, without starting them
  api down|up    stop kube-apiserver, as in an outage, or start it again

`

// options contains the values of the flags.
type options struct {
	root string // directory of the repository
	dir  string // directory of the cluster
	api  string // HOST:PORT of the API server outside the namespaces
}

// Command runs "bench cluster".
func Command(ctx context.Context, args []string, out io.Writer) error {
	var o options
	flags := cli.Flags("bench cluster", usage, out)
	flags.StringVar(&o.dir, "dir", "", "write logs, data and the kubeconfig into this `DIR` (default .run/cluster of the repository)")
	flags.StringVar(&o.api, "api", "127.0.0.1:6443", "serve the API server to kubectl at this `HOST:PORT`; port 0 picks a free one")
	if err := cli.Parse(flags, args, len(args)); err != nil {
		return err
	}
	name, rest := flags.Arg(0), flags.Args()
	switch name {
	case initCommand:
		return initProcess()
	case nodeCommand:
		return nodeProcess(ctx)
	}
	err := checkCommand(rest)
	if err != nil {
		return flags.Wrong(err)
	}
	if o.root, err = apiserver.Root("."); err != nil {
		return err
	}
	if o.dir == "" {
		o.dir = filepath.Join(o.root, ".run", "cluster")
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	switch name {
	case "up":
		return up(ctx, o, out)
	case "down":
		return down(o.dir, out)
	case "build":
		names := rest[1:]
		if len(names) == 0 {
			names = programs
		}
		_, err := apiserver.Build(ctx, o.root, out, names...)
		return err
	}
	c, err := Open(o.dir)
	if name == "images" && errors.Is(err, errNotUp) {
		_, err := image.Headgate(ctx, o.root, imagesDir(o.root), out)
		return err
	}
	if err != nil {
		return err
	}
	switch name {
	case "status":
		return c.status(ctx, out)
	case "images":
		return c.Images(ctx, o.root, out)
	case "exec":
		return c.exec(ctx, rest[1:])
	default: // api
		if rest[1] == "down" {
			return c.Outage(ctx)
		}
		return c.Restart(ctx)
	}
}

// checkCommand checks a command of "bench cluster" and its arguments.
func checkCommand(args []string) error {
	switch {
	case len(args) == 0:
		return errors.New("a command is missing")
	case !slices.Contains(Commands, args[0]):
		return fmt.Errorf("there is no command %q", args[0])
	case args[0] == "exec" && len(args) < 2:
		return errors.New("exec needs a command, such as bench cluster exec -- curl http://NAME.NAMESPACE.svc.cluster.local")
	case args[0] == "api" && (len(args) != 2 || args[1] != "down" && args[1] != "up"):
		return errors.New("api needs one of: down, up")
	case slices.Contains([]string{"up", "down", "status", "images"}, args[0]) && len(args) > 1:
		return fmt.Errorf("unexpected argument %q", args[1])
	}
	return nil
}

// imagesDir returns the directory of image tarballs.
func imagesDir(root string) string { return filepath.Join(root, ".cache", "images") }

// status prints the nodes and pods of the cluster.
func (c *Cluster) status(ctx context.Context, w io.Writer) error {
	fmt.Fprintf(w, "up; its first process is %d, its logs are in %s\nexport KUBECONFIG=%s\n\n", c.PID, c.Dir, c.Kubeconfig())
	out, err := c.Kubectl(ctx, "", "get", "nodes,pods", "--all-namespaces", "--output", "wide", "--request-timeout", "5s")
	fmt.Fprint(w, out)
	return err
}

// exec runs a command inside the cluster, attached to this terminal.
func (c *Cluster) exec(ctx context.Context, args []string) error {
	// The command is in the terminal's process group, so it receives and handles an interrupt
	// itself.
	signal.Ignore(os.Interrupt)
	command := c.Enter(context.WithoutCancel(ctx), args[0], args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := command.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%s ended with status %d", args[0], exit.ExitCode())
	}
	return err
}

// rootOnly returns an error if this user may not create namespaces.
func rootOnly() error {
	if os.Geteuid() != 0 {
		return errors.New("creating the namespaces of the cluster needs root: run it with sudo")
	}
	return nil
}

// held reports whether the cluster of a directory is running or starting. Its processes lock the
// lock file as long as they live.
func held(dir string) (bool, error) {
	f, err := os.OpenFile(lockFile(dir), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err // the deferred close unlocks the file
}

// lockFile returns the path of a cluster's lock file. The file is beside the directory, because the
// directory is removed while the file is locked.
func lockFile(dir string) string { return dir + ".lock" }
