//go:build !linux

package envoy

import "syscall"

// attributes put an Envoy into its own process group, so that Ctrl-C at the terminal reaches only
// the supervisor.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
