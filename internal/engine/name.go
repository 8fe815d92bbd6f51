package engine

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameLen bounds a model's name, in bytes. Hub ids stay below 100; a longer name is a mistake or an attack.
const MaxNameLen = 512

// CheckName refuses the names that no model can have and that an engine might take for a path.
//
// vLLM's filesystem resolver joins the name of an unknown model to its folder unchecked, so that "../x" and "/x" load
// from anywhere (seen on vLLM 0.32.0). Names with single slashes inside, as hubs have them, are fine.
func CheckName(name string) error {
	if err := checkText(name); err != nil {
		return err
	}
	switch {
	case strings.ContainsRune(name, '\\'):
		return errors.New("it holds a backslash")
	case name[0] == '/' || name[0] == '~':
		return errors.New("it is a path")
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "." || segment == ".." || segment == "" {
			return errors.New("it is a path")
		}
	}
	return nil
}

// checkText refuses what is no name at all.
func checkText(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > MaxNameLen:
		return errors.New("it is too long")
	case !utf8.ValidString(name), strings.ContainsRune(name, utf8.RuneError): // what half a surrogate pair becomes
		return errors.New("it is not valid UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("it holds control characters")
	}
	return nil
}
