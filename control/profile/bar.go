package profile

import (
	"fmt"
	"io"
	"os"

	"github.com/headgate/headgate/control/profile/survey"
)

// bar shows progress. On a terminal it overwrites one line; elsewhere it prints one line per
// finished point.
type bar struct {
	out      io.Writer
	terminal bool
	shown    bool // the line on the terminal still lacks a newline
}

// width limits the length of the progress line, because a terminal cannot overwrite a wrapped line.
const width = 79

func newBar(out io.Writer) *bar {
	b := &bar{out: out}
	if file, ok := out.(*os.File); ok {
		if is, err := file.Stat(); err == nil {
			b.terminal = is.Mode()&os.ModeCharDevice != 0
		}
	}
	return b
}

func (b *bar) tell(p survey.Progress, ended bool) {
	switch {
	case b.terminal:
		line := []rune(p.Line())
		fmt.Fprint(b.out, "\r\x1b[K"+string(line[:min(len(line), width)]))
		b.shown = true
	case ended:
		fmt.Fprintln(b.out, p.Line())
	}
}

// end ends the line that the terminal shows.
func (b *bar) end() {
	if b.shown {
		fmt.Fprintln(b.out)
	}
}
