package relay

import "syscall"

// filesPerConnection is the maximum number of file descriptors of a connection: two sockets, and a
// pipe for each direction in which bytes move (splice).
const filesPerConnection = 6

// reservedFiles is the number of file descriptors for everything else, such as downloads.
const reservedFiles = 256

// maxConnections returns the maximum number of connections for a limit of open files.
func maxConnections(files uint64) int {
	const most = 1 << 20
	if files <= reservedFiles+filesPerConnection {
		return 1
	}
	return int(min(most, (files-reservedFiles)/filesPerConnection))
}

// openFiles returns the limit of open files, which Go raises to the hard limit when the process
// starts.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return limit.Cur
}
