package decide_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/place/decide"
)

// unshown are entries of dueAfter that can be removed without failing a scenario. Random histories
// need some of them; the others may be superfluous.
var unshown = map[string]bool{
	"copySized toRank": true, "roomChanged toHelp": true,
	"valueFell toHelp": true,
}

// TestEachDueDecisionMatters removes one entry of dueAfter at a time, and expects that at least one
// scenario fails without it.
func TestEachDueDecisionMatters(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	scenarios := make([]string, len(files)) // in sorted order: if an entry is missing, a later scenario may never end
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		scenarios[i] = string(text)
		if !passes(scenarios[i]) {
			t.Fatalf("%s fails with the whole table", file)
		}
	}
	for name, without := range decide.DueDecisions() {
		t.Run(name, func(t *testing.T) {
			defer without()()
			for _, text := range scenarios {
				if !passes(text) {
					if unshown[name] {
						t.Error("a scenario fails without it: take it from the list of those that none needs")
					}
					return
				}
			}
			if !unshown[name] {
				t.Error("no scenario fails without it")
			}
		})
	}
}

// passes reports whether a scenario has the expected results. It returns false if the scenario
// panics.
func passes(text string) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	r := newRunner(nil)
	for block := range strings.SplitSeq(text, "\n\n") {
		var lines []string
		for line := range strings.Lines(block) {
			if !strings.HasPrefix(line, "#") && line != "\n" {
				lines = append(lines, line)
			}
		}
		input, want, is := strings.Cut(strings.Join(lines, ""), "----")
		if is && strings.TrimSpace(r.block(strings.TrimSpace(input))) != strings.TrimSpace(want) {
			return false
		}
	}
	return true
}
