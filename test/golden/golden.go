// Package golden runs scenario files: inputs and expected outputs as text that people review.
//
// A scenario file consists of blocks. A block is input lines, a line "----", and the expected
// output up to an empty line. Lines before a block that begin with "#" are comments. A test with
// the flag -update writes the actual outputs into the files. Review the diff before you commit it:
// it shows how behaviour has changed.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what came out into the scenario files")

// Run runs every file that matches a pattern as a subtest. It calls start once for each file. start
// returns a function that maps the input of a block to its output.
func Run(t *testing.T, pattern string, start func(t *testing.T) func(input string) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenario matches %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, string(text), start(t))
			switch {
			case got == string(text):
			case *update:
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s: run with -update and read the difference", file)
			}
		})
	}
}

// run executes the blocks of a text. It returns the text with the actual outputs.
func run(t *testing.T, text string, exec func(input string) string) string {
	t.Helper()
	var got strings.Builder
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if line := lines[i]; line == "" || strings.HasPrefix(line, "#") {
			got.WriteString(line + "\n")
			i++
			continue
		}
		first := i
		for i < len(lines) && lines[i] != "----" {
			i++
		}
		if i == len(lines) {
			t.Fatalf("line %d: the block has no line ----", first+1)
		}
		input := strings.Join(lines[first:i], "\n")
		start := i + 1
		for i = start; i < len(lines) && lines[i] != ""; i++ { // the output ends at an empty line
		}
		want := strings.Join(lines[start:i], "\n")
		output := strings.TrimRight(exec(input), "\n")
		if output != want {
			t.Logf("line %d:\n%s\n---- want\n%s\n---- got\n%s", first+1, input, want, output)
		}
		got.WriteString(input + "\n----\n")
		if output != "" {
			got.WriteString(output + "\n")
		}
	}
	return got.String()
}
