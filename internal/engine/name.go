package engine

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameLen bounds a model's name, in bytes. Hub ids stay below 100; a longer name is a mistake or an attack.
const MaxNameLen = 512

// CheckName refuses what [CheckText] refuses, and the names that an engine might take for a path. It is for names that an
// engine is told to load, or that it may load because it does not know them.
//
// vLLM's filesystem resolver joins the name of an unknown model to its folder unchecked, so that "../x" and "/x" load
// from anywhere (seen on vLLM 0.32.0). Names with single slashes inside, as hubs have them, are fine.
func CheckName(name string) error {
	if err := CheckText(name); err != nil {
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

// CheckText refuses what is no name at all. A name that an engine lists may be a path: vLLM and llama.cpp name a model by
// the path of its weights where nobody names it.
func CheckText(name string) error {
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
