//go:build !linux

package load

import "net"

// peerProcess cannot tell: only Linux says what process a socket leads to.
func peerProcess(net.Conn) string { return "" }
