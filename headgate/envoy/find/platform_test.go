package find

import (
	"strings"
	"testing"
)

func TestPlatformsWithoutAWheelAreReported(t *testing.T) {
	for want, p := range map[string]platform{
		"":                                  {os: "linux", arch: "amd64", glibc: true},
		"needs glibc":                       {os: "linux", arch: "arm64"},
		"has no Envoy for linux/riscv64":    {os: "linux", arch: "riscv64", glibc: true},
		"has no Envoy for darwin/amd64":     {os: "darwin", arch: "amd64", release: 15},
		"needs macOS 15, and this is macOS": {os: "darwin", arch: "arm64", release: 14},
	} {
		got := p.unsupported()
		if (got == "") != (want == "") || !strings.Contains(got, want) || want != "" && !strings.Contains(got, "install Envoy") {
			t.Errorf("%+v: %q, want %q and what to do", p, got, want)
		}
	}
	if why := (platform{os: "darwin", arch: "arm64"}).unsupported(); why != "" {
		t.Errorf("a macOS of unknown version: %s", why)
	}
}
