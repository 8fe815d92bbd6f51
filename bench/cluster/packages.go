//go:build linux

package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const packagesText = "containerd, runc, containernetworking-plugins, iptables, iproute2"

// plugins is the directory of Debian's CNI plugins.
const plugins = "/usr/lib/cni"

// needs are the programs that a cluster requires from Debian packages, with the package of each.
var needs = []struct{ program, debian string }{
	{"containerd", "containerd"},
	{"ctr", "containerd"},
	{"runc", "runc"},
	{plugins + "/ptp", "containernetworking-plugins"},
	{"iptables", "iptables"},
	{"ip", "iproute2"},
	{"nsenter", "util-linux"},
}

// missing returns the Debian packages whose program is not installed.
func missing() []string {
	var names []string
	for _, n := range needs {
		if _, err := exec.LookPath(n.program); err != nil && !slices.Contains(names, n.debian) {
			names = append(names, n.debian)
		}
	}
	return names
}

// install installs the missing Debian packages.
func install(ctx context.Context, w io.Writer) error {
	names := missing()
	if len(names) == 0 {
		return nil
	}
	args := append([]string{"install", "--yes", "--no-install-recommends"}, names...)
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("these are missing, by the names of Debian's packages: %s; install them with what this system has",
			strings.Join(names, ", "))
	}
	fmt.Fprintf(w, "apt-get %s\n", strings.Join(args, " "))
	for _, args := range [][]string{{"update"}, args} {
		command := exec.CommandContext(ctx, "apt-get", args...)
		command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	if names := missing(); len(names) > 0 {
		return fmt.Errorf("still missing after the installation: %s", strings.Join(names, ", "))
	}
	return nil
}
