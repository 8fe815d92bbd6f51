package display_test

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/display"
)

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		display.Count(0, "extproc"):               "0 extprocs",
		display.Count(1, "extproc"):               "1 extproc",
		display.Choose(1, "has", "have"):          "has",
		display.Choose(2, "has", "have"):          "have",
		display.Name("meta-llama/Llama-2-70b"):    "meta-llama/Llama-2-70b",
		display.Name("größe"):                     "größe",
		display.Some([]string{"a", "b", "c"}):     "a, b, c",
		display.Some(strings.Fields("a b c d e")): "a, b, c and 2 more",
		display.Name(""):                          `""`,
		display.Name("a b"):                       `"a b"`,
		display.Name("\x1b]0;x\a"):                `"\x1b]0;x\a"`,
		display.Line(" a\n\tb\x1b[2J\u202e  c\n"): "a b [2J c",
		display.Cut("größer", 4):                  "größ…",
		display.Cut("größ", 4):                    "größ",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
