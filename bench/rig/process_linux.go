package rig

import "syscall"

// processAttributes put a process into a group of its own, so that a Ctrl-C at the terminal reaches the rig alone, and
// make it die with the rig, however that ends.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
