package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/headgate/headgate/internal/process"
)

// qemu is the emulator, of Debian's package qemu-user-static.
const qemu = "qemu-aarch64-static"

// emulate runs the program for linux/arm64 in the emulator: its help, a simulated engine, and
// extproc for that engine, until both answer.
func emulate(ctx context.Context, dist, dir string, out io.Writer) error {
	if _, err := exec.LookPath(qemu); err != nil {
		return errors.New(qemu + " is not on PATH: apt-get install qemu-user-static")
	}
	found, err := filepath.Glob(filepath.Join(dist, "headgate_*_linux_arm64.tar.gz"))
	if err != nil || len(found) != 1 {
		return errors.Join(err, fmt.Errorf("%s has %d tarballs for linux/arm64: make release VERSION=v0.1.0", dist, len(found)))
	}
	if said, err := exec.CommandContext(ctx, "tar", "-xzf", found[0], "--strip-components=1", "-C", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w\n%s", err, said)
	}
	for _, args := range [][]string{{"headgate", "--version"}, {"headgate", "extproc", "--help"}, {"extproc", "--version"}, {"control", "--version"}} {
		command := exec.CommandContext(ctx, qemu, append([]string{"-0", args[0], filepath.Join(dir, args[0])}, args[1:]...)...)
		said, err := command.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%v: %w\n%s", args, err, said)
		}
		if args[len(args)-1] == "--version" {
			fmt.Fprintf(out, "%s: %s", args[0], said)
		}
	}
	return emulatePicker(ctx, dir, out)
}

// emulatePicker runs a simulated engine and extproc, and waits until extproc has endpoints.
func emulatePicker(ctx context.Context, dir string, out io.Writer) error {
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	starter := process.NewStarter()
	defer close(starter)
	_, port, err := net.SplitHostPort(ports[0])
	if err != nil {
		return err
	}
	engine, err := starter.Start("engine", dir, exec.Command(qemu, filepath.Join(dir, "headgate"), "engine", "--port", port))
	if err != nil {
		return err
	}
	defer engine.Stop(patience)
	host, port, err := net.SplitHostPort(ports[1])
	if err != nil {
		return err
	}
	picker, err := starter.Start("extproc", dir, exec.Command(qemu, filepath.Join(dir, "headgate"), "extproc",
		"--listen", "unix:"+filepath.Join(dir, "extproc.sock"), "--metrics-host", host, "--metrics-port", port, "--endpoints", ports[0]))
	if err != nil {
		return err
	}
	defer picker.Stop(patience)
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	began := time.Now()
	if err := engine.AwaitOK(ctx, "http://"+ports[0]+"/health"); err != nil {
		return err
	}
	if err := picker.AwaitOK(ctx, "http://"+ports[1]+"/readyz"); err != nil {
		return err
	}
	fmt.Fprintf(out, "a simulated engine, and extproc for it, became ready after %.1f s under emulation\n", time.Since(began).Seconds())
	return nil
}
