package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// released is the variable that names the version in the program.
const released = "github.com/headgate/headgate/internal/version.released"

// compile builds a package's program for a platform: static, without paths of this machine. The
// environment's GOFLAGS do not count, and the version does not depend on Git's tags.
func compile(ctx context.Context, t tree, v version, platform, pkg, binary string) error {
	goos, goarch, _ := strings.Cut(platform, "/")
	command := exec.CommandContext(ctx, "go", "-C", t.root, "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X "+released+"="+v.String(), "-o", binary, pkg)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0",
		"GOOS="+goos, "GOARCH="+goarch)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s: %w\n%s", pkg, platform, err, strings.TrimSpace(string(out)))
	}
	return nil
}
