package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Version is the Kubernetes that tools/kubernetes/go.mod asks for.
const Version = "1.36.3"

// programs are the import paths of what Kubernetes consists of; their versions are in tools/kubernetes/go.mod.
var programs = map[string]string{
	"etcd":                    "go.etcd.io/etcd/server/v3",
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-proxy":              "k8s.io/kubernetes/cmd/kube-proxy",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
	"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
}

// Build makes programs of Kubernetes, by the names of their binaries, and returns the folder of the binaries, below
// .cache of the repository at root. What an earlier call built is used again; where several processes want the same, one
// builds and the others wait. Progress is told what takes time.
func Build(ctx context.Context, root string, progress io.Writer, names ...string) (string, error) {
	tools := filepath.Join(root, "tools", "kubernetes")
	for _, name := range names {
		if programs[name] == "" {
			return "", fmt.Errorf("%s is no program that %s builds", name, tools)
		}
	}
	dir, err := filepath.Abs(filepath.Join(root, ".cache", "kubernetes-"+Version))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	stamp, err := inputs(tools)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if err := build(ctx, tools, filepath.Join(dir, name), stamp, progress); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// build makes one binary, unless it is there and was made of the same inputs. It appears whole or not at all.
func build(ctx context.Context, tools, path, stamp string, progress io.Writer) error {
	name := filepath.Base(path)
	if made, err := os.ReadFile(path + ".inputs"); err == nil && string(made) == stamp {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	fmt.Fprintf(progress, "building %s from its Go module; this takes minutes once\n", name)
	begun := time.Now()
	command := exec.CommandContext(ctx, "go", "-C", tools, "build", "-trimpath", "-ldflags", "-s -w", "-o", path+".part", programs[name])
	command.Env = append(os.Environ(), "GOWORK=off")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s (this needs Go and, the first time, the Go module proxy; try: go -C %s build %s): %w\n%s",
			name, tools, programs[name], err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(path+".part", path); err != nil {
		return err
	}
	fmt.Fprintf(progress, "built %s in %v\n", name, time.Since(begun).Round(time.Second))
	return os.WriteFile(path+".inputs", []byte(stamp), 0o644)
}

// inputs is what a binary depends on: the versions of all modules, and the Go that compiles them.
func inputs(tools string) (string, error) {
	modules, err := os.ReadFile(filepath.Join(tools, "go.mod"))
	if err != nil {
		return "", err
	}
	version, err := exec.Command("go", "-C", tools, "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("Kubernetes is built from its Go modules, and go does not run: %w", err) //nolint:staticcheck // a name begins it
	}
	return string(version) + string(modules), nil
}

// Root finds the folder of the repository from a folder in it.
func Root(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "tools", "kubernetes", "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not in a copy of Headgate's repository: run this from one, since Kubernetes is built from tools/kubernetes there", dir)
		}
	}
}

// lock holds a file until the returned function is called.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // closing unlocks
}
