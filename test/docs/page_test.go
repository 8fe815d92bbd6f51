package docs

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// block is a block of shell commands on a page.
type block struct {
	line     int    // line number of the first command
	commands string // commands of the block, for bash
	notRun   string // why the block cannot run in CI; empty if it can
	endless  bool   // the commands run until they are interrupted
	prints   string // expected output: the text block that follows; empty if there is none
}

var (
	notRun  = regexp.MustCompile(`^<!-- not run: (.+) -->$`)
	endless = regexp.MustCompile(`^<!-- until Ctrl-C -->$`)
)

// blocks returns the sh blocks of a Markdown page, in order. A mark before a block is <!-- not run:
// REASON --> or <!-- until Ctrl-C -->. A text block after it is its expected output, unless a
// heading or another sh block comes between.
func blocks(page string) (all []block, err error) {
	mark := block{}
	var fence, language string
	var text []string
	follows := false // the next text block is the output of the last sh block
	for i, line := range strings.Split(page, "\n") {
		switch {
		case fence != "" && strings.TrimSpace(line) == fence:
			body := strings.Join(text, "\n")
			switch {
			case language == "sh":
				mark.commands, mark.line = body, i-len(text)+1
				all, mark, follows = append(all, mark), block{}, true
			case language == "text" && follows:
				all[len(all)-1].prints, follows = body, false
			}
			fence, text = "", nil
		case fence != "":
			text = append(text, line)
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			trimmed := strings.TrimSpace(line)
			language = strings.TrimLeft(trimmed, "`")
			fence = strings.TrimSuffix(trimmed, language)
			if language != "sh" && (mark.notRun != "" || mark.endless) {
				return nil, fmt.Errorf("line %d: a mark for commands stands before a block of %q", i+1, language)
			}
		case strings.HasPrefix(line, "#"):
			follows = false
		case notRun.MatchString(line):
			mark.notRun = notRun.FindStringSubmatch(line)[1]
		case endless.MatchString(line):
			mark.endless = true
		case strings.HasPrefix(line, "<!-- not run") || strings.HasPrefix(line, "<!-- until"):
			return nil, fmt.Errorf("line %d: want <!-- not run: REASON --> or <!-- until Ctrl-C -->", i+1)
		case strings.TrimSpace(line) != "" && (mark.notRun != "" || mark.endless):
			return nil, fmt.Errorf("line %d: a mark for commands stands before other text", i+1)
		}
	}
	if fence != "" {
		return nil, errors.New("a block does not end")
	}
	return all, nil
}

// figure matches a number, a time, or dots that stand for slots.
var figure = regexp.MustCompile(`[0-9]+(?:[.,:][0-9]+)*|[●○]+|[+-]Inf|∞`)

// pattern returns a regular expression for a line of expected output. In the line, a figure stands
// for any figure, a space for any number of spaces, and … for any text.
func pattern(line string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`^\s*`)
	for i, word := range strings.Fields(line) {
		if i > 0 {
			b.WriteString(`\s+`)
		}
		for j, part := range strings.Split(word, "…") {
			if j > 0 {
				b.WriteString(`.*`)
			}
			last := 0
			for _, at := range figure.FindAllStringIndex(part, -1) {
				b.WriteString(regexp.QuoteMeta(part[last:at[0]]) + "(?:" + figure.String() + ")")
				last = at[1]
			}
			b.WriteString(regexp.QuoteMeta(part[last:]))
		}
	}
	b.WriteString(`\s*$`)
	return regexp.MustCompile(b.String())
}

// missing returns the first line of the expected output prints that is not in output, in order. It
// returns an empty string if all are.
func missing(prints, output string) string {
	lines := strings.Split(output, "\n")
	for want := range strings.SplitSeq(prints, "\n") {
		if strings.TrimSpace(want) == "" || strings.TrimSpace(want) == "…" {
			continue
		}
		is := pattern(want)
		found := false
		for i, line := range lines {
			if is.MatchString(line) {
				lines, found = lines[i+1:], true
				break
			}
		}
		if !found {
			return want
		}
	}
	return ""
}
