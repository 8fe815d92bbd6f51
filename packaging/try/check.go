package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// check checks the files of a release. Then it installs the wheel, runs Headgate, sends a request,
// and asks Headgate about it.
func check(ctx context.Context, dist, dir string, out io.Writer) error {
	if err := checkSums(ctx, dist); err != nil {
		return err
	}
	if err := checkSizes(dist); err != nil {
		return err
	}
	bin, environment, err := install(ctx, dist, dir, out)
	if err != nil {
		return err
	}
	program := filepath.Join(bin, "headgate")
	headgate := func(args ...string) (string, error) {
		command := exec.CommandContext(ctx, program, args...)
		command.Env, command.Dir = environment, dir
		said, err := command.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("headgate %s: %w\n%s", strings.Join(args, " "), err, said)
		}
		return string(said), err
	}
	if err := checkVersion(dist, headgate); err != nil {
		return err
	}
	g, err := start(program, dir, environment)
	if err != nil {
		return err
	}
	defer g.stop()
	after, id, err := g.answered(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "headgate run answered a request after %.2f s\n", after.Seconds())
	return ask(headgate, g, id, out)
}

// checkSums checks SHA256SUMS with the tool that users have.
func checkSums(ctx context.Context, dist string) error {
	sums := exec.CommandContext(ctx, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	sums.Dir = dist
	if said, err := sums.CombinedOutput(); err != nil {
		return fmt.Errorf("sha256sum: %w\n%s", err, said)
	}
	return nil
}

// checkVersion checks that the program prints the version in the names of the tarballs.
func checkVersion(dist string, headgate func(...string) (string, error)) error {
	said, err := headgate("--version")
	if err != nil {
		return err
	}
	words := strings.Fields(said)
	if len(words) < 2 {
		return fmt.Errorf("headgate --version printed %q", said)
	}
	name := "headgate_" + strings.TrimPrefix(words[1], "v") + "_*.tar.gz"
	if found, err := filepath.Glob(filepath.Join(dist, name)); err != nil || len(found) == 0 {
		return fmt.Errorf("headgate --version printed %q, and %s has no %s", said, dist, name)
	}
	return nil
}

// ask asks Headgate about itself, and why a request went where it did.
func ask(headgate func(...string) (string, error), g *gateway, id string, out io.Writer) error {
	urls := []string{"--control-url", "http://" + g.control, "--extproc-url", "http://" + g.metrics}
	for _, c := range [][]string{
		append([]string{"status"}, urls...),
		append([]string{"explain", id}, urls...),
		append([]string{"doctor", "--listen", g.listen, "--envoy-admin", g.admin}, urls...),
	} {
		said, err := headgate(c...)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n$ headgate %s\n%s", strings.Join(c, " "), said)
		if c[0] == "explain" && !strings.Contains(said, id) {
			return fmt.Errorf("headgate explain does not name the request %s", id)
		}
	}
	return nil
}

// root is the tree whose release is tried: the folder in which this program runs.
func root() (string, error) { return os.Getwd() }
