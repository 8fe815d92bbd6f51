//go:build !linux

package loader

import "net"

// peerProcess returns nothing: only Linux reports the process at the other end of a socket.
func peerProcess(net.Conn) string { return "" }
