//go:build !linux

package process

import "syscall"

// processAttributes put a process into its own process group, so that Ctrl-C at the terminal
// reaches only the starter.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
