// Package listen is how programs listen: on sockets and ports, with certificates that may be replaced.
package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
		}
		return l, nil
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("--%s %s: the path of a Unix socket has at most %d bytes, this one has %d", flag, address, maxSocketPath, len(path))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return nil, fmt.Errorf("--%s %s: another process serves there", flag, address)
	case errors.Is(err, syscall.ECONNREFUSED): // a socket without a process, or a file
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("--%s %s: there is a file that is no socket", flag, address)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
	}
	return l, nil
}
