//go:build linux

package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
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
	// Dir is the directory with the cluster's logs, kubeconfig and data.
	Dir string
	// PID is the process id of the cluster's first process.
	PID int
}

// Open opens the running cluster that uses a directory.
func Open(dir string) (*Cluster, error) {
	is, err := held(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir}
	if _, err := os.Stat(c.Kubeconfig()); err != nil || !is {
		return nil, errNotUp
	}
	if c.PID, err = firstProcess(dir); err != nil {
		return nil, err
	}
	return c, nil
}

// Kubeconfig returns the path of an admin kubeconfig for this machine.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "kubeconfig") }

// KubeconfigInside returns the path of an admin kubeconfig for programs that [Cluster.Enter] runs.
func (c *Cluster) KubeconfigInside() string { return filepath.Join(c.Dir, insideName) }

// Config returns the client configuration for this machine.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err == nil {
		config.QPS = -1 // no client-side rate limit in tests
	}
	return config, err
}

// Kubectl runs the kubectl of the cluster's version and returns its standard output. The error
// contains its standard error.
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
// CoreDNS resolves names. The command sees the files of this machine, except /run and /var.
func (c *Cluster) Enter(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{
		"--target", strconv.Itoa(c.PID), "--net", "--mount", "--pid", "--uts",
		"--wd=.", "--", name,
	}, args...)...)
}

// Images builds Headgate's images and imports them into the cluster. Pods that start afterwards use
// them.
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

// importImages imports images from tarballs with containerd's client, which run starts.
func importImages(ctx context.Context, run func(ctx context.Context, name string, args ...string) *exec.Cmd, tarballs []string) error {
	for _, tarball := range tarballs {
		if out, err := run(ctx, "ctr", "--namespace", "k8s.io", "images", "import", tarball).CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w: %s", tarball, err, out)
		}
	}
	return nil
}

// Outage kills kube-apiserver and returns when nothing answers at its address. All other programs
// of the cluster keep running.
func (c *Cluster) Outage(ctx context.Context) error {
	return c.signal(ctx, outageSignal, func(ready bool) bool { return !ready }, "kube-apiserver still answers")
}

// Restart starts kube-apiserver after an outage and returns when kube-apiserver answers.
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
	if err := syscall.Kill(c.PID, s); err != nil {
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
