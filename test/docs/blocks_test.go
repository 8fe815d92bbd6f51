package docs

import (
	"slices"
	"strings"
	"testing"
)

// page replaces three single quotes by three backquotes, which Go's raw strings cannot contain.
func page(text string) string { return strings.ReplaceAll(text, "'''", "```") }

func TestBlocksOfAPage(t *testing.T) {
	all, err := blocks(page(`# A page

'''sh
echo one
echo two
'''

It prints:

'''text
one
two
'''

<!-- not run: it takes an hour -->
'''sh
sleep 1h
'''

<!-- until Ctrl-C -->

'''sh
yes
'''

'''yaml
kind: Model
'''

'''text
y
'''

'''sh
true
'''

## Another heading

'''text
of nothing
'''
`))
	want := []block{
		{line: 4, commands: "echo one\necho two", prints: "one\ntwo"},
		{line: 17, commands: "sleep 1h", notRun: "it takes an hour"},
		{line: 23, commands: "yes", endless: true, prints: "y"},
		{line: 35, commands: "true"},
	}
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("the blocks are\n%+v, %v; want\n%+v", all, err, want)
	}
	for text, want := range map[string]string{
		"<!-- not run -->\n'''sh\ntrue\n'''\n":            "line 1: want",
		"<!-- not run: why -->\n'''text\n'''\n":           "line 2: a mark",
		"<!-- until Ctrl-C -->\nwords\n'''sh\nyes\n'''\n": "line 2: a mark",
		"'''sh\ntrue\n": "does not end",
	} {
		if _, err := blocks(page(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestMissingPrograms(t *testing.T) {
	const output = "ready after 0.3 s\n\n12:00:01   16 req/s |  8 held | e-1 6+0 ●●●○ | e-2 8+0\n  lru  15.92 %   1.62×  +Inf s\n"
	for prints, want := range map[string]string{
		"ready after 12.5 s":    "",
		"ready after 1,000 s\n": "",
		"ready after some s":    "ready after some s",
		"ready after 0.3 ms":    "ready after 0.3 ms",
		"11:29:13 7 req/s | 0 held | e-1 1+1 ○○○○ | …": "",
		"…\n11:29:13 7 req/s | 0 held | e-1 …":         "",
		"11:29:13 7 req/s":                  "11:29:13 7 req/s",
		"lru 1.0 % 2× 3.0 s":                "",
		"ready after 1 s\nlru 1.0 % 2× ∞ s": "",
		"lru 1.0 % 2× ∞ s\nready after 1 s": "ready after 1 s",
	} {
		if got := missing(prints, output); got != want {
			t.Errorf("of %q, %q is missing, want %q", prints, got, want)
		}
	}
}
