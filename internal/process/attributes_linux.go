package process

import "syscall"

// processAttributes puts a process into its own process group, so that Ctrl-C at the terminal
// reaches only the process that started it. The kernel kills the process when its starter dies.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
