//go:build !linux

package process

import "syscall"

// processAttributes put a process into a group of its own, so that a Ctrl-C at the terminal reaches the starter alone.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
