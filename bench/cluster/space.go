//go:build linux

package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Space is a network namespace in the cluster, of the node or a pod, in which this process can open
// connections.
type Space struct {
	process string // the directory below /proc of a process in it
}

// Dial opens a connection inside the namespace. The socket can be used directly from here. The
// address may name a Service, as NAME.NAMESPACE.svc.cluster.local, which CoreDNS resolves.
func (s Space) Dial(ctx context.Context, network, address string) (net.Conn, error) {
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

// dial is Dial for an IP address. The socket is created on a thread inside the namespace, which
// ends afterwards.
func (s Space) dial(ctx context.Context, network, address string) (net.Conn, error) {
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

// Client returns an HTTP client inside the namespace.
func (s Space) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: s.Dial, MaxIdleConnsPerHost: 256}}
}

// File reads a file as the processes of the namespace see it.
func (s Space) File(path string) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.process, "root", path))
}
