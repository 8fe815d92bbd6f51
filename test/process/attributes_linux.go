package process

import "syscall"

// processAttributes put a process into its own process group, so that Ctrl-C at the terminal
// reaches only the starter. The kernel kills the process when its starter dies.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
