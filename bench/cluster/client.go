//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/headgate/headgate/bench/image"
	"github.com/headgate/headgate/test/apiserver"
)

// Cluster is a running cluster. Its methods are safe for concurrent use.
type Cluster struct {
	Space // of the node
	// Dir has its logs, kubeconfig and data.
	Dir string

	pid int
}

// Open opens the running cluster of a directory.
func Open(dir string) (*Cluster, error) {
	is, err := held(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir}
	if _, err := os.Stat(c.Kubeconfig()); err != nil || !is {
		return nil, errNotUp
	}
	if c.pid, err = firstProcess(dir); err != nil {
		return nil, err
	}
	c.Space = Space{filepath.Join("/proc", strconv.Itoa(c.pid))}
	return c, nil
}

// Kubeconfig returns the path of an admin kubeconfig for this machine.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "kubeconfig") }

// KubeconfigInside returns the path of an admin kubeconfig for programs that [Cluster.Enter] runs.
func (c *Cluster) KubeconfigInside() string { return filepath.Join(c.Dir, insideName) }

// AuditLog returns the file that apiserver.Requests reads.
func (c *Cluster) AuditLog() string { return filepath.Join(c.Dir, "audit.log") }

// Config returns the client configuration for this machine.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err == nil {
		config.QPS = -1 // no client-side rate limit in tests
	}
	return config, err
}

// Kubectl runs the kubectl of the cluster's version and returns its output. Its error output is in
// the error.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	root, err := apiserver.Root(".")
	if err != nil {
		return "", err
	}
	binaries, err := apiserver.Build(ctx, root, os.Stderr, "kubectl")
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, filepath.Join(binaries, "kubectl"),
		append([]string{"--kubeconfig", c.Kubeconfig(), "--cache-dir", filepath.Join(c.Dir, "kubectl")}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	var faults strings.Builder
	command.Stderr = &faults
	out, err := command.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(faults.String()))
	}
	return string(out), err
}

// Enter returns a command that runs inside the cluster, where pod and Service addresses work and
// CoreDNS resolves names. It sees the files of this machine, except /run and /var.
func (c *Cluster) Enter(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(c.pid), "--net", "--mount", "--pid", "--uts",
		"--wd=.", "--", name}, args...)...)
}

// Pod returns the network namespace of a running pod.
func (c *Cluster) Pod(ctx context.Context, namespace, pod string) (Space, error) {
	ids, err := c.containers(ctx, namespace, pod, "")
	if err != nil {
		return Space{}, err
	}
	tasks, err := c.Enter(ctx, "ctr", "--namespace", "k8s.io", "tasks", "list").Output()
	if err != nil {
		return Space{}, fmt.Errorf("list tasks: %w", err)
	}
	for line := range strings.Lines(string(tasks)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "RUNNING" && slices.Contains(ids, f[0]) {
			return Space{filepath.Join("/proc", strconv.Itoa(c.pid), "root/proc", f[1])}, nil
		}
	}
	return Space{}, fmt.Errorf("nothing of the pod %s/%s runs", namespace, pod)
}

// Images builds Headgate's images and imports them into the cluster, for pods that start
// afterwards.
func (c *Cluster) Images(ctx context.Context, root string, w io.Writer) error {
	tarballs, err := image.Headgate(ctx, root, imagesDir(root), w)
	if err != nil {
		return err
	}
	return c.Import(ctx, tarballs...)
}

// Import imports images from tarballs.
func (c *Cluster) Import(ctx context.Context, tarballs ...string) error {
	return importImages(ctx, c.Enter, tarballs)
}

// importImages runs the client of containerd.
func importImages(ctx context.Context, run func(ctx context.Context, name string, args ...string) *exec.Cmd, tarballs []string) error {
	for _, tarball := range tarballs {
		if out, err := run(ctx, "ctr", "--namespace", "k8s.io", "images", "import", tarball).CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w: %s", tarball, err, out)
		}
	}
	return nil
}

// Kill kills the first process of a container, like a crash. The kubelet restarts the container.
func (c *Cluster) Kill(ctx context.Context, namespace, pod, container string) error {
	ids, err := c.containers(ctx, namespace, pod, container)
	if err != nil {
		return err
	}
	var faults []error
	for _, id := range ids { // ended ones are listed too
		err := c.Enter(ctx, "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id).Run()
		if err == nil {
			return nil
		}
		faults = append(faults, err)
	}
	return fmt.Errorf("no container %s of the pod %s/%s runs: %w", container, namespace, pod, errors.Join(faults...))
}

// containers returns the ids of the containers of a pod, of one name or all, including its sandbox.
func (c *Cluster) containers(ctx context.Context, namespace, pod, container string) ([]string, error) {
	filter := fmt.Sprintf(`labels."io.kubernetes.pod.namespace"==%s,labels."io.kubernetes.pod.name"==%s`, namespace, pod)
	if container != "" {
		filter += `,labels."io.kubernetes.container.name"==` + container
	}
	out, err := c.Enter(ctx, "ctr", "--namespace", "k8s.io", "containers", "list", "--quiet", filter).Output()
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// Outage kills kube-apiserver and returns when nothing answers at its address. Everything else
// continues.
func (c *Cluster) Outage(ctx context.Context) error {
	return c.signal(ctx, outageSignal, func(ready bool) bool { return !ready }, "kube-apiserver still answers")
}

// Restart starts kube-apiserver after an outage and returns when it answers.
func (c *Cluster) Restart(ctx context.Context) error {
	return c.signal(ctx, restartSignal, func(ready bool) bool { return ready }, "kube-apiserver does not answer")
}

func (c *Cluster) signal(ctx context.Context, s syscall.Signal, want func(ready bool) bool, otherwise string) error {
	config, err := c.Config()
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	client.Timeout = time.Second
	defer client.CloseIdleConnections()
	if err := syscall.Kill(c.pid, s); err != nil {
		return err
	}
	seen := within(startTimeout, func() bool {
		response, err := client.Get(config.Host + "/readyz")
		if err != nil {
			return want(false) || ctx.Err() != nil
		}
		_ = response.Body.Close()
		return want(response.StatusCode == http.StatusOK) || ctx.Err() != nil
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	if !seen {
		return fmt.Errorf("%s; see %s", otherwise, logFile(c.Dir))
	}
	return nil
}
