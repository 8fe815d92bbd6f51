package loader

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// peerProcess identifies the process that listens at the other end of a Unix socket, by its id and
// its start time, since ids are reused. It is empty for other connections, and for a process that
// is not visible to this one.
func peerProcess(conn net.Conn) string {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return ""
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return ""
	}
	var credentials *syscall.Ucred
	var failure error
	if err := raw.Control(func(fd uintptr) {
		credentials, failure = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || failure != nil || credentials.Pid <= 0 { // 0: a process of another pid namespace
		return ""
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", credentials.Pid))
	if err != nil {
		return ""
	}
	// The second field is the program's name in parentheses, which may contain anything; the 22nd
	// is the start time, in clock ticks since boot (proc_pid_stat(5)).
	const start = 22 - 3
	_, rest, ok := cutLast(string(text), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) <= start {
		return ""
	}
	return "pid " + strconv.Itoa(int(credentials.Pid)) + " started " + fields[start]
}

// cutLast is strings.Cut at the last separator.
func cutLast(text, separator string) (before, after string, ok bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}
