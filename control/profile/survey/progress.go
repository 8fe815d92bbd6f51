package survey

import (
	"fmt"
	"strings"
	"time"
)

// bar is the width of the progress bar in characters.
const bar = 10

// Progress describes how far a survey is.
type Progress struct {
	Done, Points int
	At           Point
	Summary      Summary // measurements of the current point
	Left         float64 // estimated seconds until the end; 0 if unknown
}

// Line formats the progress as one line.
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

// Said formats the result of the current point.
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
