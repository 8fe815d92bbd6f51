package manage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// unixScheme is the prefix of the address of a Unix socket.
const unixScheme = "unix:"

// dialTimeout limits one attempt to connect to the engine, which runs on the same machine.
const dialTimeout = 500 * time.Millisecond

// place is the address of the engine: HOST:PORT, or unix:PATH.
type place string

// network returns the arguments for a dialer.
func (p place) network() (network, address string) {
	if path, ok := strings.CutPrefix(string(p), unixScheme); ok {
		return "unix", path
	}
	return "tcp", string(p)
}

func (p place) dial(ctx context.Context) (net.Conn, error) {
	network, address := p.network()
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
}

// look returns the marks of the process that listens at p: its listening sockets, which end with
// the process. The marks are empty if the system does not show them. The error is [ErrEnded] if no
// process listens.
func (p place) look(ctx context.Context) (marks []string, err error) {
	network, address := p.network()
	if network == "unix" {
		marks = socketMarks(address)
	} else if found, known := portMarks(address); known {
		if len(found) == 0 {
			return nil, ErrEnded
		}
		return found, nil
	}
	conn, err := p.dial(ctx)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return nil, ErrEnded
	case errors.Is(err, syscall.EAGAIN): // the backlog of the socket is full
		return marks, nil
	case err != nil:
		return nil, err
	}
	return marks, conn.Close()
}

// socketMarks returns the mark of the file of a Unix socket: each process makes a new file.
func socketMarks(path string) []string {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return []string{fmt.Sprintf("socket %d of %d", inode(info), info.ModTime().UnixNano())}
}

// portMarks returns the marks of the sockets that listen at a port of this machine. known is false
// for other machines, and on systems other than Linux.
func portMarks(address string) (marks []string, known bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	ip := net.ParseIP(host)
	if host == "localhost" {
		ip = nil
	} else if ip == nil || !isLocal(ip) {
		return nil, false
	}
	if err != nil {
		return nil, false
	}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(file)
		if err != nil && file == "/proc/net/tcp" {
			return nil, false
		}
		for _, l := range listeners(string(text), uint16(number)) {
			if l.ip.IsUnspecified() || l.ip.Equal(ip) || ip == nil && l.ip.IsLoopback() {
				if l.inode == "0" {
					return nil, false // a sandbox in which all sockets have the same inode
				}
				marks = append(marks, "listener "+l.inode)
			}
		}
	}
	return marks, true
}

// isLocal reports whether an address is one of this machine's.
func isLocal(ip net.IP) bool {
	if ip.IsLoopback() {
		return true
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range all {
		if own, ok := a.(*net.IPNet); ok && own.IP.Equal(ip) {
			return true
		}
	}
	return false
}

// listening is a socket in the state LISTEN.
type listening struct {
	ip    net.IP
	inode string
}

// listeners returns the sockets that listen at a port, from the text of /proc/net/tcp or
// /proc/net/tcp6 (proc_pid_net(5)).
func listeners(text string, port uint16) (all []listening) {
	const (
		local, state, inodeField = 1, 3, 9
		listen                   = "0A"
	)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) <= inodeField || fields[state] != listen {
			continue
		}
		address, at, _ := strings.Cut(fields[local], ":")
		number, err := strconv.ParseUint(at, 16, 16)
		if ip := parseIP(address); err == nil && uint16(number) == port && ip != nil {
			all = append(all, listening{ip, fields[inodeField]})
		}
	}
	return all
}

// parseIP parses an address of /proc/net/tcp: 32-bit words in hexadecimal, each in the byte order
// of the machine. All machines that Headgate supports are little-endian.
func parseIP(text string) net.IP {
	if len(text) != 2*net.IPv4len && len(text) != 2*net.IPv6len {
		return nil
	}
	var ip net.IP
	for ; text != ""; text = text[8:] {
		word, err := strconv.ParseUint(text[:8], 16, 32)
		if err != nil {
			return nil
		}
		ip = append(ip, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	return ip
}
