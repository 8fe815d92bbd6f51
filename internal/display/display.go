// Package display formats counts, names and messages for people.
package display

import (
	"strconv"
	"strings"
	"unicode"
)

// Count returns a number with its noun, such as "1 endpoint" or "2 endpoints".
func Count(n int, noun string) string { return strconv.Itoa(n) + " " + Choose(n, noun, noun+"s") }

// Choose returns one if n is 1, and many otherwise.
func Choose(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Some returns the first three of many names, and the number of the others.
func Some(names []string) string {
	const most = 3
	if n := len(names) - most; n > 0 {
		return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(n) + " more"
	}
	return strings.Join(names, ", ")
}

// Name quotes a name that is empty, or has characters that could be misread or control a terminal.
func Name(text string) string {
	odd := func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || strings.ContainsRune(`",()`, r)
	}
	if text == "" || strings.ContainsFunc(text, odd) {
		return strconv.Quote(text)
	}
	return text
}

// Line returns a text on one line, without control characters and without repeated spaces.
func Line(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return ' '
		}
		return r
	}, text)), " ")
}

// Cut returns the first n characters of a text, and an ellipsis if there are more.
func Cut(text string, n int) string {
	if all := []rune(text); len(all) > n {
		return string(all[:n]) + "…"
	}
	return text
}
