//go:build cluster

package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/test/apiserver"
)

var keep = flag.Bool("keep", false, "leave the cluster up that the tests started")

var (
	// k8s is the cluster of all tests. Each test has its own namespace.
	k8s *testCluster
	// root is the folder of the repository.
	root string
)

func TestMain(m *testing.M) {
	flag.Parse()
	status, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		status = 1
	}
	os.Exit(status)
}

func run(m *testing.M) (status int, err error) {
	if root, err = apiserver.Root("."); err != nil {
		return 0, err
	}
	ctx, dir := context.Background(), filepath.Join(root, ".run", "cluster")
	if k8s, err = openCluster(dir); err == nil {
		if err := k8s.Images(ctx, root, os.Stderr); err != nil {
			return 0, err
		}
		return m.Run(), nil
	}
	bench, err := buildBench()
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(filepath.Dir(bench))
	command := func(args ...string) error {
		c := exec.Command(bench, append([]string{"cluster"}, args...)...)
		c.Dir, c.Stdout, c.Stderr = root, os.Stderr, os.Stderr
		return c.Run()
	}
	before, err := traces()
	if err != nil {
		return 0, err
	}
	if err := command("up", "--api", "127.0.0.1:0"); err != nil {
		return 0, err
	}
	if k8s, err = openCluster(dir); err != nil {
		return 0, err
	}
	status = m.Run()
	if *keep {
		return status, nil
	}
	if err := command("down"); err != nil {
		return status, err
	}
	after, err := traces()
	if err != nil {
		return status, err
	}
	for what, is := range after {
		if left := added(before[what], is); len(left) > 0 {
			return 1, fmt.Errorf("the cluster has left traces behind (%s):\n%s", what, strings.Join(left, "\n"))
		}
	}
	return status, nil
}

func buildBench() (string, error) {
	dir, err := os.MkdirTemp("", "headgate-cluster-")
	if err != nil {
		return "", err
	}
	bench := filepath.Join(dir, "bench")
	if out, err := exec.Command("go", "build", "-C", root, "-o", bench, "./bench").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build bench: %w\n%s", err, out)
	}
	return bench, nil
}

// traces returns what clusters have left on this machine, by kind, such as processes or mounts.
func traces() (map[string]string, error) {
	seen := make(map[string]string)
	for what, command := range map[string]string{
		"mounts":     "cat /proc/self/mounts",
		"interfaces": "ip -oneline link | cut -d: -f2",
		"addresses":  "ip -oneline address | awk '{print $2, $4}'",
		"routes":     "ip route",
		"iptables":   "iptables-save | grep -v '^[#:]' || true",
		"namespaces": "ip netns list; ls /run/netns 2>/dev/null || true",
		"cgroups":    "find /sys/fs/cgroup -type d -name 'headgate*' -o -type d -name kubepods -o -type d -name k8s.io",
		"settings":   "sysctl -n vm.overcommit_memory kernel.panic kernel.panic_on_oops net.ipv4.ip_forward",
		// Other clusters may run at the same time, so only processes of the default directory are
		// compared. All processes of a cluster run in the cluster's cgroups, which cannot be
		// removed while they run.
		"processes":    "ps -eo args | grep -F '/.run/cluster/' | grep -v grep || true",
		"containerd's": "ls -d /run/containerd /var/lib/containerd /var/lib/kubelet /var/lib/cni /var/log/pods /etc/cni 2>/dev/null || true",
	} {
		out, err := exec.Command("sh", "-c", command).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", command, err, out)
		}
		seen[what] = string(out)
	}
	return seen, nil
}

// added returns the lines in after that are not in before. Lines that are only in before belong to
// other programs, which have ended meanwhile.
func added(before, after string) (left []string) {
	had := make(map[string]int)
	for line := range strings.Lines(before) {
		had[line]++
	}
	for line := range strings.Lines(after) {
		if had[line]--; had[line] < 0 {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return left
}

// space is the Kubernetes namespace of one test.
type space struct {
	t    *testing.T
	name string
}

// namespace creates a namespace that is deleted when the test ends.
func namespace(t *testing.T) *space {
	t.Helper()
	s := &space{t: t, name: fmt.Sprintf("test-%d", time.Now().UnixNano())}
	if _, err := k8s.Kubectl(t.Context(), "", "create", "namespace", s.name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if t.Failed() {
			for _, args := range [][]string{
				{"get", "all", "--output", "wide"},
				{"get", "events"},
				{"logs", "--all-containers", "--tail", "8", "--prefix", "--selector", "app"},
			} {
				out, err := k8s.Kubectl(ctx, "", append(args, "--namespace", s.name)...)
				t.Logf("kubectl %s:\n%s%v", strings.Join(args, " "), out, err)
			}
		}
		if _, err := k8s.Kubectl(ctx, "", "delete", "namespace", s.name, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	return s
}

// kubectl runs kubectl in the namespace and returns what it prints.
func (s *space) kubectl(args ...string) string {
	s.t.Helper()
	out, err := k8s.Kubectl(s.t.Context(), "", append(args, "--namespace", s.name)...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// apply applies a kustomize folder. The path is relative to the repository or to this package.
func (s *space) apply(folder string) {
	s.t.Helper()
	s.kubectl("apply", "--kustomize", folder)
}

// rolledOut waits until the rollout of a workload, such as deployment/engine, is complete.
func (s *space) rolledOut(workload string) {
	s.t.Helper()
	s.kubectl("rollout", "status", workload, "--timeout", "2m")
}

// url returns the URL of a path at a Service of the namespace.
func (s *space) url(service, path string) string {
	return "http://" + service + "." + s.name + ".svc.cluster.local" + path
}

// pods returns the names of the namespace's pods that match a selector.
func (s *space) pods(selector string) []string {
	s.t.Helper()
	return strings.Fields(s.kubectl("get", "pods", "--selector", selector, "--output", "jsonpath={.items[*].metadata.name}"))
}

// get sends a GET request from inside the cluster.
func get(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	status, body, err := fetch(ctx, client, url)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

func fetch(ctx context.Context, client *http.Client, url string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// await waits until a condition holds.
func await(t *testing.T, what string, limit time.Duration, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(limit); !holds(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %v it does not hold that %s", limit, what)
		}
	}
}
