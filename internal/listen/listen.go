// Package listen opens listeners: Unix sockets and ports, with certificates that may be replaced.
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

// IsLocal reports whether an address can be reached only from this machine.
func IsLocal(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// maxSocketPath is the limit of macOS; Linux allows four more bytes.
const maxSocketPath = 103

// On listens on a flag's address: unix:PATH or HOST:PORT. It replaces a socket that a dead process
// left behind, but not one that is being served.
func On(flag, address string) (net.Listener, error) {
	return named(flag, address)(open(address, false, 0))
}

// Private is On for a socket that only processes of this user can open, independent of the umask.
func Private(flag, address string) (net.Listener, error) {
	return named(flag, address)(open(address, false, 0o600))
}

// named adds the flag and the address to an error.
func named(flag, address string) func(net.Listener, error) (net.Listener, error) {
	return func(l net.Listener, err error) (net.Listener, error) {
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
		}
		return l, nil
	}
}

// Over is On for a process that replaces another: it atomically replaces a socket that another
// process serves. Existing connections stay with the other process. Only sockets can be replaced.
func Over(flag, address string) (net.Listener, error) {
	return named(flag, address)(open(address, true, 0))
}

// open listens on an address. A socket gets the mode; 0 leaves it to the umask.
func open(address string, over bool, mode fs.FileMode) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return net.Listen("tcp", address)
	}
	// The socket is created under another name and renamed, so that a client finds either the old
	// or the new one.
	made := filepath.Join(filepath.Dir(path), "."+rand.Text()[:8])
	if n := max(len(path), len(made)); n > maxSocketPath {
		return nil, fmt.Errorf("the path of a Unix socket has at most %d bytes, this one has %d", maxSocketPath, n)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, errors.New("the path is a file, not a socket: remove it or choose another path")
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		if !over {
			return nil, errors.New("another process listens there: stop it or choose another path")
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
	// The file stays when the process ends, since it may be the successor's socket by then.
	if err := os.Rename(made, path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// headerTimeout limits how long a client may take to send a request's headers.
const headerTimeout = 5 * time.Second

// HTTP serves on a listener, which it closes, until ctx ends; then it cuts open requests and
// returns nil.
func HTTP(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
