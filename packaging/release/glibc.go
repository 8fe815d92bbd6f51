package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// glibc is the C library that Envoy needs in its image. It comes from Debian's packages for cross
// compilation: these have the libraries of any architecture on any machine, and need no root.
type glibc struct {
	name    string            // the package with its version: libc6-arm64-cross=2.36-8cross1
	files   map[string]string // paths in the image to files here
	licence string
}

// triplets are Debian's names of architectures, in paths of libraries.
var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// loaders are the paths at which programs expect the loader of glibc.
var loaders = map[string]string{"amd64": "/lib64/ld-linux-x86-64.so.2", "arm64": "/lib/ld-linux-aarch64.so.1"}

// libraries are those that Envoy is linked with.
var libraries = []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}

// fetchGlibc unpacks the C library of an architecture in a cache, after downloading it if it is not
// there.
func fetchGlibc(ctx context.Context, arch, cache string) (glibc, error) {
	pkg := "libc6-" + arch + "-cross"
	number, err := candidate(ctx, pkg)
	if err != nil {
		return glibc{}, err
	}
	dir, err := filepath.Abs(filepath.Join(cache, "glibc", pkg+"_"+number))
	if err != nil {
		return glibc{}, err
	}
	if _, err := os.Stat(dir); err != nil {
		if err := unpackPackage(ctx, pkg+"="+number, dir); err != nil {
			return glibc{}, err
		}
	}
	from := filepath.Join(dir, "usr", triplets[arch], "lib")
	g := glibc{
		name:    pkg + "=" + number,
		files:   map[string]string{loaders[arch]: filepath.Join(from, filepath.Base(loaders[arch]))},
		licence: filepath.Join(dir, "usr/share/doc", pkg, "copyright"),
	}
	for _, l := range libraries {
		g.files["/lib/"+triplets[arch]+"/"+l] = filepath.Join(from, l)
	}
	return g, nil
}

// candidate returns the version of a package that apt-get would install.
func candidate(ctx context.Context, pkg string) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "policy", pkg).Output()
	if err != nil {
		return "", fmt.Errorf("the image of Envoy needs glibc from Debian's packages, and apt-cache fails (%w): make the release on Debian, such as in a container", err)
	}
	for line := range strings.Lines(string(out)) {
		if number, found := strings.CutPrefix(strings.TrimSpace(line), "Candidate: "); found && number != "(none)" {
			return number, nil
		}
	}
	return "", fmt.Errorf("apt has no package %s: run apt-get update as root, and try again", pkg)
}

// unpackPackage downloads a package and unpacks it into dir, which appears when it is complete.
func unpackPackage(ctx context.Context, pkg, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), ".glibc-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	download := exec.CommandContext(ctx, "apt-get", "download", "-qq", pkg)
	download.Dir = part
	if out, err := download.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download %s: %w: %s", pkg, err, strings.TrimSpace(string(out)))
	}
	found, err := filepath.Glob(filepath.Join(part, "*.deb"))
	if err != nil || len(found) != 1 {
		return errors.Join(err, fmt.Errorf("apt-get download %s left %d packages", pkg, len(found)))
	}
	to := filepath.Join(part, "files")
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", found[0], to).CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-deb -x %s: %w: %s", filepath.Base(found[0]), err, strings.TrimSpace(string(out)))
	}
	return os.Rename(to, dir)
}
