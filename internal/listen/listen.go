// Package listen is how programs listen: on sockets and ports, with certificates that may be replaced.
package listen

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// IsLocal says whether nobody outside this machine can reach an address.
func IsLocal(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// maxSocketPath is what macOS allows; Linux allows four more.
const maxSocketPath = 103

// On opens an address of a flag: unix:PATH or HOST:PORT. A socket that a process left behind is taken over; one that a process
// still serves is not.
func On(flag, address string) (net.Listener, error) {
	return named(flag, address)(open(address, false, 0))
}

// Private is On for a socket that only processes of this user can call, whatever the umask.
func Private(flag, address string) (net.Listener, error) {
	return named(flag, address)(open(address, false, 0o600))
}

// named has an error say which flag's address cannot be served.
func named(flag, address string) func(net.Listener, error) (net.Listener, error) {
	return func(l net.Listener, err error) (net.Listener, error) {
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
		}
		return l, nil
	}
}

// Over is On for a process that takes the place of another: a socket that another serves is replaced by the own one in the moment
// in which that is ready. What has connected to the other stays there. Only sockets can be replaced.
func Over(flag, address string) (net.Listener, error) {
	return named(flag, address)(open(address, true, 0))
}

// open opens an address. A socket gets a mode, or with 0 that which the umask leaves.
func open(address string, over bool, mode fs.FileMode) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return net.Listen("tcp", address)
	}
	// Whoever connects finds either the old socket or the new one: it is made under a name of its own, and renamed.
	made := filepath.Join(filepath.Dir(path), "."+rand.Text()[:8])
	if n := max(len(path), len(made)); n > maxSocketPath {
		return nil, fmt.Errorf("the path of a Unix socket has at most %d bytes, this one has %d", maxSocketPath, n)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, errors.New("there is a file that is no socket")
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		if !over {
			return nil, errors.New("another process serves there")
		}
	}
	l, err := net.Listen("unix", made)
	if err != nil {
		return nil, err
	}
	if mode != 0 {
		if err := os.Chmod(made, mode); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	// The file stays when the process ends, for it may be the socket of one that has taken over by then.
	if err := os.Rename(made, path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// headerTimeout is how long a client may take for the headers of a request.
const headerTimeout = 5 * time.Second

// HTTP serves on a listener, which it closes, until ctx ends: then it cuts what is served, and returns nil.
func HTTP(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
