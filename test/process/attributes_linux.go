package process

import "syscall"

// processAttributes put a process into a group of its own, so that a Ctrl-C at the terminal reaches the starter alone, and
// make it die with the starter, however that ends.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
