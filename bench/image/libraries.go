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
)

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
