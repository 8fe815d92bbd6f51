//go:build !linux

package rig

import "syscall"

// processAttributes put a process into a group of its own, so that a Ctrl-C at the terminal reaches the rig alone.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
