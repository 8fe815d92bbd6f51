package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/headgate/headgate/internal/atomicfile"
)

// sumsFile is the file with the checksum of each other file.
const sumsFile = "SHA256SUMS"

// writeSums writes the checksums of all files in a folder, in the format of sha256sum.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range entries {
		sum, err := sumOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sum, e.Name())
	}
	return atomicfile.Write(filepath.Join(dir, sumsFile), []byte(lines.String()), 0o644)
}

func sumOf(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}

// printSizes prints a table of the files in a folder.
func printSizes(dir string, out io.Writer) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nFILE\tMB\n")
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%.1f\n", e.Name(), float64(info.Size())/1e6)
	}
	return w.Flush()
}
