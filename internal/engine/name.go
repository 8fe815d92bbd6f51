package engine

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameLen is the maximum length of a model's name in bytes. Hub ids have fewer than 100; a
// longer name is a mistake or an attack.
const MaxNameLen = 512

// CheckName refuses what [CheckText] refuses, and names that an engine might treat as a path. It is
// for names that an engine loads on request, or may load because it does not know them.
//
// vLLM's filesystem resolver joins an unknown model's name to its folder unchecked, so that "../x"
// and "/x" load from anywhere (seen with vLLM 0.32.0). Names with single slashes inside, as in hub
// ids, are allowed.
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

// CheckText refuses invalid names. A name that an engine lists may be a path: by default vLLM and
// llama.cpp use the path of the weights as the model's name.
func CheckText(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > MaxNameLen:
		return errors.New("it is too long")
	case !utf8.ValidString(name), strings.ContainsRune(name, utf8.RuneError): // from half a surrogate pair
		return errors.New("it is not valid UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("it holds control characters")
	}
	return nil
}
