//go:build linux

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// prepareMounts gives the node its own /proc, /sys, cgroups, /run and /var. Kernel settings of the
// whole machine are read-only.
func prepareMounts(dir string) error {
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	v := filepath.Join(dir, "var")
	for _, sub := range []string{"lib", "log", "tmp"} {
		if err := os.MkdirAll(filepath.Join(v, sub), 0o755); err != nil {
			return err
		}
	}
	resolv := filepath.Join(dir, "resolv.conf")
	names := "nameserver " + dnsAddress + "\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
	if err := os.WriteFile(resolv, []byte(names), 0o644); err != nil {
		return err
	}
	const bind, nothing = syscall.MS_BIND, 0
	steps := []struct {
		source, at, kind string
		flags            uintptr
		data             string
	}{
		// No mount propagates out of the namespace, but mounts may propagate between pods.
		{"none", "/", "", syscall.MS_REC | syscall.MS_PRIVATE, ""},
		{"none", "/", "", syscall.MS_REC | syscall.MS_SHARED, ""},
		{"proc", "/proc", "proc", nothing, ""},
		{"/proc/sys", "/proc/sys", "", bind, ""},
		{"none", "/proc/sys", "", bind | syscall.MS_REMOUNT | syscall.MS_RDONLY, ""},
		{"/proc/sys/net", "/proc/sys/net", "", bind, ""}, // network settings belong to this namespace, so they stay writable
		{"none", "/proc/sys/net", "", bind | syscall.MS_REMOUNT, ""},
		{"sysfs", "/sys", "sysfs", nothing, ""},
		{"tmpfs", "/run", "tmpfs", nothing, "mode=755"},
		{v, "/var", "", bind, ""},
		{resolv, "/etc/resolv.conf", "", bind, ""},
	}
	for _, s := range steps {
		if err := syscall.Mount(s.source, s.at, s.kind, s.flags, s.data); err != nil {
			return fmt.Errorf("mount %s at %s: %w", s.source, s.at, err)
		}
	}
	if err := coverSettings(); err != nil {
		return err
	}
	return mountCgroups(cgroups)
}

// kubeletSettings are the global kernel settings that the kubelet sets at its start, with the
// values that it sets (setupKernelTunables in pkg/kubelet/cm). The node gets files with these
// values, so that the kubelet changes nothing.
var kubeletSettings = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

func coverSettings() error {
	for name, value := range kubeletSettings {
		file := filepath.Join("/run/settings", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, filepath.Join("/proc/sys", name), "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover the setting %s: %w", name, err)
		}
	}
	return nil
}

// mountCgroups mounts the cgroup hierarchies again at the same paths, so that the cgroup of the
// cluster appears as their root.
func mountCgroups(all []mount) error {
	if err := syscall.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /sys/fs/cgroup: %w", err)
	}
	controllers, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		return err
	}
	known := make(map[string]bool)
	for line := range strings.Lines(string(controllers)) {
		known[strings.SplitN(line, "\t", 2)[0]] = true
	}
	for _, h := range all {
		var data []string
		for option := range strings.SplitSeq(h.options, ",") {
			if known[option] || strings.HasPrefix(option, "name=") {
				data = append(data, option)
			}
		}
		if err := os.MkdirAll(h.at, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount("cgroup", h.at, h.kind, 0, strings.Join(data, ",")); err != nil {
			return fmt.Errorf("mount cgroups at %s: %w", h.at, err)
		}
	}
	return nil
}

// prepareNetwork gives the node an address on an interface without a connection to other machines.
// Pods have their own links to the node.
func prepareNetwork() error {
	for _, args := range []string{
		"link set lo up",
		"link add node0 type bridge",
		"address add " + nodeAddress + "/32 dev node0",
		"link set node0 up",
		"route add default dev node0 src " + nodeAddress, // packets to Service addresses need a route before iptables redirects them
	} {
		if err := must("ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return syscall.Sethostname([]byte(nodeName))
}

// must runs a program. If the program fails, the error contains its output.
func must(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
