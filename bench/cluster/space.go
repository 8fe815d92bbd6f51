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

// Space is a network namespace in the cluster, of the node or of a pod, in which connections can be opened from here.
type Space struct {
	process string // the folder below /proc of a process that is in it
}

// Dial opens a connection from within the namespace. The socket is used from here as any other: no program stands between.
// An address may name a Service, as NAME.NAMESPACE.svc.cluster.local, which CoreDNS is asked for.
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

// dial is Dial for an IP address: the thread that makes the socket is in the namespace, and ends then.
func (s Space) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // without an Unlock: the thread ends with the goroutine, for it is of no use elsewhere
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

// Client asks from within the namespace.
func (s Space) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: s.Dial, MaxIdleConnsPerHost: 256}}
}

// File reads a file that the processes of the namespace see.
func (s Space) File(path string) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.process, "root", path))
}
