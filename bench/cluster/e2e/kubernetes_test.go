//go:build cluster

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/bench/cluster"
)

// dnsAddress is the address of CoreDNS in the clusters of bench cluster.
const dnsAddress = "10.96.0.10"

// testCluster is the cluster of the tests, with methods that only tests need.
type testCluster struct {
	*cluster.Cluster
	podNetwork // the network namespace of the node
}

// openCluster opens the running cluster that uses a directory.
func openCluster(dir string) (*testCluster, error) {
	c, err := cluster.Open(dir)
	if err != nil {
		return nil, err
	}
	return &testCluster{c, podNetwork{filepath.Join("/proc", strconv.Itoa(c.PID))}}, nil
}

// podNetwork is a network namespace in the cluster, of the node or a pod. This process can open
// connections in it.
type podNetwork struct {
	process string // /proc/PID of a process in the namespace
}

// Dial opens a connection from inside the namespace. The connection can be used outside it. The
// address may name a Service, as NAME.NAMESPACE.svc.cluster.local, which CoreDNS resolves.
func (s podNetwork) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) == nil {
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return s.dial(ctx, network, net.JoinHostPort(dnsAddress, "53"))
		}}
		addresses, err := resolver.LookupHost(ctx, host)
		if err != nil {
			return nil, err
		}
		host = addresses[0]
	}
	return s.dial(ctx, network, net.JoinHostPort(host, port))
}

// dial is Dial for an IP address. It creates the socket on a thread that has entered the namespace.
// The thread ends afterwards.
func (s podNetwork) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, because it is in another namespace
		conn, err := func() (net.Conn, error) {
			space, err := os.Open(filepath.Join(s.process, "ns", "net"))
			if err != nil {
				return nil, err
			}
			defer space.Close()
			if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
				return nil, fmt.Errorf("enter the cluster's network: %w", err)
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}()
		made <- result{conn, err}
	}()
	r := <-made
	return r.conn, r.err
}

// Client returns an HTTP client that connects from inside the namespace.
func (s podNetwork) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: s.Dial, MaxIdleConnsPerHost: 256}}
}

// File reads a file at the path that the processes of the namespace use for it.
func (s podNetwork) File(path string) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.process, "root", path))
}

// Pod returns the network namespace of a running pod.
func (c *testCluster) Pod(ctx context.Context, namespace, pod string) (podNetwork, error) {
	ids, err := c.containers(ctx, namespace, pod, "")
	if err != nil {
		return podNetwork{}, err
	}
	tasks, err := c.Enter(ctx, "ctr", "--namespace", "k8s.io", "tasks", "list").Output()
	if err != nil {
		return podNetwork{}, fmt.Errorf("list tasks: %w", err)
	}
	for line := range strings.Lines(string(tasks)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "RUNNING" && slices.Contains(ids, f[0]) {
			return podNetwork{filepath.Join("/proc", strconv.Itoa(c.PID), "root/proc", f[1])}, nil
		}
	}
	return podNetwork{}, fmt.Errorf("nothing of the pod %s/%s runs", namespace, pod)
}

// Kill kills the first process of a container, as in a crash. The kubelet restarts the container.
func (c *testCluster) Kill(ctx context.Context, namespace, pod, container string) error {
	ids, err := c.containers(ctx, namespace, pod, container)
	if err != nil {
		return err
	}
	var faults []error
	for _, id := range ids { // the list includes containers that have ended
		err := c.Enter(ctx, "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id).Run()
		if err == nil {
			return nil
		}
		faults = append(faults, err)
	}
	return fmt.Errorf("no container %s of the pod %s/%s runs: %w", container, namespace, pod, errors.Join(faults...))
}

// containers returns the ids of a pod's containers with a name. If the name is empty, it returns
// the ids of all containers, including the pod's sandbox.
func (c *testCluster) containers(ctx context.Context, namespace, pod, container string) ([]string, error) {
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

// AuditLog returns the file that apiserver.Requests reads.
func (c *testCluster) AuditLog() string { return filepath.Join(c.Dir, "audit.log") }
