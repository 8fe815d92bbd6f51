package cost

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/process"
)

// smgVersion is the release of the PyPI package smg.
const smgVersion = "1.13.0"

// prepare finds or installs the programs, and starts the engines.
func (b *bench) prepare(ctx context.Context, dir string) (*rigs, error) {
	r := &rigs{bench: b, dir: dir, starter: process.NewStarter()}
	err := r.prepare(ctx)
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *rigs) prepare(ctx context.Context) (err error) {
	pid := os.Getpid()
	r.net = fmt.Sprintf("127.%d.%d.", 192+pid/250%60, pid%250) // several runs may share a machine
	if r.envoy, err = find.Envoy(ctx, r.cache, r.progress); err != nil {
		return err
	}
	if r.base != "" {
		if r.old, err = r.build(ctx); err != nil {
			return fmt.Errorf("--base %s: %w", r.base, err)
		}
	}
	if r.has("requests") && slices.Contains(r.variants, "smg") {
		if r.smg, err = installSMG(ctx, r.cache, r.progress); err != nil {
			fmt.Fprintf(r.out, "smg is left out: %v\n", err)
		}
	}
	for i := range numEngines {
		r.engines = append(r.engines, fmt.Sprintf("%s%d:8000", r.net, 11+i))
	}
	r.serving, err = r.startEngines(ctx, "engines", pageLoaded, r.engines, "--small-page")
	return err
}

// installSMG returns the path of smg in the cache. It installs it from PyPI if it is not there.
func installSMG(ctx context.Context, cache string, progress io.Writer) (string, error) {
	dir := filepath.Join(cache, "smg-"+smgVersion)
	program, done := filepath.Join(dir, "bin", "smg"), filepath.Join(dir, "installed")
	unlock, err := process.Lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(done); err == nil {
		return program, nil
	}
	fmt.Fprintf(progress, "installing smg %s into %s (150 MB)\n", smgVersion, dir)
	for _, command := range [][]string{
		{"python3", "-m", "venv", dir},
		{
			filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1",
			"smg==" + smgVersion,
		},
	} {
		if err := output(exec.CommandContext(ctx, command[0], command[1:]...)); err != nil {
			return "", fmt.Errorf("%w (it needs Python 3 with venv, and a package index)", err)
		}
	}
	return program, os.WriteFile(done, nil, 0o644)
}

// output runs a command. The error has the last line of its output.
func output(cmd *exec.Cmd) error {
	text, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[:min(3, len(cmd.Args))], " "), err, lines[len(lines)-1])
}

// build checks out the revision of --base into a temporary folder and builds its headgate there.
func (r *rigs) build(ctx context.Context) (string, error) {
	dir := filepath.Join(r.dir, "base")
	fmt.Fprintf(r.progress, "building headgate of %s\n", r.base)
	parse := exec.CommandContext(ctx, "git", "rev-parse", "--verify", "--quiet", "--end-of-options", r.base+"^{commit}")
	revision, err := parse.Output()
	if err != nil {
		return "", fmt.Errorf("git does not have this revision: %w", err)
	}
	for _, args := range [][]string{
		{"git", "clone", "--quiet", "--shared", "--no-checkout", ".", dir},
		{"git", "-C", dir, "checkout", "--quiet", strings.TrimSpace(string(revision))},
		{"go", "-C", dir, "build", "-o", "headgate.bin", "./headgate"},
	} {
		if err := output(exec.CommandContext(ctx, args[0], args[1:]...)); err != nil {
			return "", err
		}
	}
	return dir, nil
}
