package envoy

import "syscall"

// attributes put an Envoy into its own process group, so that Ctrl-C at the terminal reaches only
// the supervisor. The kernel ends the Envoy when the supervisor dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
