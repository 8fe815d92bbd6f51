package agent

import (
	"io"
	"strings"
	"testing"
)

func TestFigures(t *testing.T) {
	for want, f := range map[string]figures{
		"nothing measured": nil, "2.0 (1.0 to 9.0)": {9, 1, 2}, "2.5 (1.0 to 4.0)": {4, 2, 3, 1}, "7.0 (7.0 to 7.0)": {7},
	} {
		if got := f.describe("%.1f"); got != want {
			t.Errorf("%v: %s, want %s", f, got, want)
		}
	}
}

func TestWrongFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"--rounds=0":         "--rounds and --calls must be at least 1",
		"--part=lunch":       "--part lunch: there is no such part; want relay",
		"--program=/nowhere": "run make build first",
		"more":               "unexpected argument",
	} {
		if err := Command(t.Context(), []string{flags}, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}
