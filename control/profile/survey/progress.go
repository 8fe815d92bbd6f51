package survey

import (
	"fmt"
	"strings"
	"time"
)

// bar is how many characters a bar has.
const bar = 10

// Progress is how far a survey is.
type Progress struct {
	Done, Points int
	At           Point
	Summary      Summary // of the point so far
	Left         float64 // seconds; 0 where nobody can tell
}

// Line says it for people, as one line of a terminal.
func (p Progress) Line() string {
	full := 0
	if p.Points > 0 {
		full = bar * p.Done / p.Points
	}
	text := fmt.Sprintf("[%s%s] %d/%d  %s", strings.Repeat("#", full), strings.Repeat(".", bar-full), p.Done, p.Points, p.Said())
	if p.Left > 0 {
		text += fmt.Sprintf(", %v left", time.Duration(p.Left*float64(time.Second)).Round(time.Second))
	}
	return text
}

// Said is what the point has come to.
func (p Progress) Said() string {
	s := p.Summary
	if s.N == 0 {
		return p.At.String()
	}
	text := fmt.Sprintf("%s, %d times: %s", p.At, s.N, time.Duration(s.Mean*float64(time.Second)).Round(10*time.Microsecond))
	if s.N >= leastValues {
		text += " " + s.Within()
	}
	return text
}
