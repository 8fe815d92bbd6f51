// Package image builds the container images of Headgate's programs for the cluster that bench runs.
package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headgate/headgate/packaging/oci"
)

// Dynamic returns the image of a dynamically linked binary with its loader and shared libraries. at
// is the path of the binary in the image.
func Dynamic(imageName, binary, at string) (oci.Image, error) {
	i := oci.Image{Name: imageName, Entrypoint: []string{at}, Files: map[string]string{at: binary}}
	libraries, err := libraries(binary)
	if err != nil {
		return oci.Image{}, err
	}
	for _, l := range libraries {
		i.Files[l] = l
	}
	return i, nil
}

// libraries returns the files that a binary needs: the loader and all shared libraries, with the
// paths at which the loader looks for them.
func libraries(binary string) ([]string, error) {
	f, err := elf.Open(binary)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", binary, err)
	}
	defer f.Close()
	loader, err := interpreter(f)
	if err != nil || loader == "" { // a static binary has no loader
		return nil, err
	}
	found := []string{loader}
	wanted, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for seen := map[string]bool{filepath.Base(loader): true}; len(wanted) > 0; {
		soname := wanted[0]
		wanted = wanted[1:]
		if seen[soname] {
			continue
		}
		seen[soname] = true
		file, more, err := library(soname, f.Machine)
		if err != nil {
			return nil, fmt.Errorf("%s needs %w", binary, err)
		}
		found, wanted = append(found, file), append(wanted, more...)
	}
	slices.Sort(found)
	return found, nil
}

// interpreter returns the path of a binary's loader, empty if the binary is static.
func interpreter(f *elf.File) (string, error) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text, err := io.ReadAll(p.Open())
			return strings.TrimRight(string(text), "\x00"), err
		}
	}
	return "", nil
}

// library finds a shared library in the default directories of the glibc loader. It returns the
// library's file and the names of the libraries that it needs.
func library(soname string, machine elf.Machine) (file string, needs []string, err error) {
	triplet := map[elf.Machine]string{elf.EM_X86_64: "x86_64-linux-gnu", elf.EM_AARCH64: "aarch64-linux-gnu"}[machine]
	dirs := []string{"/lib/" + triplet, "/usr/lib/" + triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib"}
	for _, dir := range dirs {
		file := filepath.Join(dir, soname)
		f, err := elf.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return "", nil, err
		}
		needs, err := f.ImportedLibraries()
		fits := f.Machine == machine
		if err := errors.Join(err, f.Close()); err != nil {
			return "", nil, err
		}
		if fits {
			return file, needs, nil
		}
	}
	return "", nil, fmt.Errorf("%s, which is in none of %v", soname, dirs)
}
