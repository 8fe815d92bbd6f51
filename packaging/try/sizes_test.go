package main

import (
	"archive/zip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeWheel writes a wheel of at least size bytes. The archive claims another size for the program
// in it.
func writeWheel(t *testing.T, file, program string, claimed uint64, size int64) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if size > 0 { // zeros in front of an archive do not matter
		if _, err := f.Seek(size, 0); err != nil {
			t.Fatal(err)
		}
	}
	w := zip.NewWriter(f)
	w.SetOffset(size)
	_, err = w.CreateRaw(&zip.FileHeader{Name: program, UncompressedSize64: claimed})
	if err := errors.Join(err, w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestSizes(t *testing.T) {
	const program = "headgate-0.1.0.data/scripts/headgate"
	for _, c := range []struct {
		program string
		claimed uint64
		size    int64
		want    string
	}{
		{program, 99_999_999, 39_000_000, ""},
		{program, 100_000_001, 0, "the program in headgate-0.1.0-py3-none-any.whl is 100.0 MB large; the limit is 100 MB"},
		{program, 1, 40_000_001, "headgate-0.1.0-py3-none-any.whl is 40.0 MB large; the limit is 40 MB"},
		{"headgate-0.1.0.data/scripts/other", 1, 0, "headgate-0.1.0-py3-none-any.whl has no program headgate"},
	} {
		dist := t.TempDir()
		writeWheel(t, filepath.Join(dist, "headgate-0.1.0-py3-none-any.whl"), c.program, c.claimed, c.size)
		err := checkSizes(dist)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := checkSizes(t.TempDir()); err == nil {
		t.Error("a release without a wheel is no error")
	}
}
