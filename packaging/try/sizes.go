package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Limits of the sizes in bytes: a download, and the program that users get.
const (
	maxWheel   = 40e6
	maxProgram = 100e6
)

// checkSizes checks the sizes of all wheels of a release and of the programs in them.
func checkSizes(dist string) error {
	wheels, err := filepath.Glob(filepath.Join(dist, "headgate-*.whl"))
	if err != nil || len(wheels) == 0 {
		return errors.Join(err, fmt.Errorf("%s has no wheel", dist))
	}
	var faults []error
	for _, file := range wheels {
		faults = append(faults, checkWheelSize(file))
	}
	return errors.Join(faults...)
}

func checkWheelSize(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.Size() > maxWheel {
		return fmt.Errorf("%s is %.1f MB large; the limit is %.0f MB", filepath.Base(file), float64(info.Size())/1e6, maxWheel/1e6)
	}
	archive, err := zip.OpenReader(file)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	defer archive.Close()
	for _, f := range archive.File {
		if !strings.HasSuffix(f.Name, ".data/scripts/headgate") {
			continue
		}
		if f.UncompressedSize64 > maxProgram {
			return fmt.Errorf("the program in %s is %.1f MB large; the limit is %.0f MB", filepath.Base(file), float64(f.UncompressedSize64)/1e6, maxProgram/1e6)
		}
		return nil
	}
	return fmt.Errorf("%s has no program headgate", filepath.Base(file))
}
