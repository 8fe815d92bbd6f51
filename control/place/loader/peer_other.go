//go:build !linux

package loader

import "net"

// peerProcess cannot tell: only Linux says what process a socket leads to.
func peerProcess(net.Conn) string { return "" }
