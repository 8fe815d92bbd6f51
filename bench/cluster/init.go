//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// cgroupVariable is the environment variable with the name of the cgroup that the first process
// joins.
const cgroupVariable = "HEADGATE_CLUSTER_CGROUP"

// initProcess is the first process of the namespaces. It joins cgroups, starts the node in a cgroup
// namespace, forwards signals, and reaps orphans such as containerd's shims. It ends when the node
// ends, and then the kernel ends every other process in the namespaces.
func initProcess() error {
	if os.Getpid() != 1 {
		return errors.New("this command is for bench cluster up to start")
	}
	if err := joinCgroups(os.Getenv(cgroupVariable)); err != nil { //nolint:forbidigo // set by the parent process
		return err
	}
	inheritNothing()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	// os/exec is not used, because it would wait for the child: the loop below waits for all
	// children.
	node, err := os.StartProcess(program, []string{program, "cluster", nodeCommand}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, os.NewFile(lockFD, "lock"), os.NewFile(apiFD, "api")},
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWCGROUP},
	})
	if err != nil {
		return err
	}
	_ = os.Stdout.Close() // the node closes this output when progress ends
	go func() {
		for s := range signals {
			_ = node.Signal(s)
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case pid == node.Pid && status.ExitStatus() != 0:
			return fmt.Errorf("the node ended with status %d", status.ExitStatus())
		case pid == node.Pid:
			return nil
		}
	}
}

// inheritNothing sets close-on-exec on all inherited descriptors.
func inheritNothing() {
	syscall.CloseOnExec(lockFD)
	syscall.CloseOnExec(apiFD)
}

// hierarchies returns the cgroup mounts of this machine: one for each controller in cgroup v1, a
// single one in cgroup v2.
func hierarchies() ([]mount, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	var found []mount
	for _, m := range all {
		if m.kind == "cgroup" || m.kind == "cgroup2" {
			found = append(found, m)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("this machine mounts no cgroups, which containers need")
	}
	return found, nil
}

// joinCgroups creates a cgroup in each hierarchy and moves this process there.
func joinCgroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(h.at, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // in cgroup v1 these files start empty, and then no process may join
			text, err := os.ReadFile(filepath.Join(h.at, file))
			if errors.Is(err, fs.ErrNotExist) || h.kind == "cgroup2" {
				continue
			} else if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, file), text, 0); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes the cgroups of a cluster that has ended.
func removeCgroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(h.at, name), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, dir := range slices.Backward(dirs) { // innermost directory first
			// The kernel needs a moment to remove ended processes from the cgroup.
			within(patience, func() bool { err = syscall.Rmdir(dir); return !errors.Is(err, syscall.EBUSY) })
			if err != nil {
				return fmt.Errorf("remove the cgroup %s: %w", dir, err)
			}
		}
	}
	return nil
}

// mount is one line of /proc/self/mounts.
type mount struct{ source, at, kind, options string }

func mounts() ([]mount, error) {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var all []mount
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 4 {
			all = append(all, mount{f[0], f[1], f[2], f[3]})
		}
	}
	return all, nil
}
