package openai

import (
	"encoding/binary"
	"math/bits"
)

// The functions in this file validate JSON and find the end of a value in the same pass. They
// accept what encoding/json accepts, so also invalid UTF-8 and lone surrogates in strings. Each
// takes the index at which something must begin, and returns the index after it, or 0 if it is
// invalid.

// validValue returns the end of the value at body[i], which is within depth objects and lists.
func validValue(body []byte, i, depth int) int {
	switch at(body, i) {
	case '"':
		return validString(body, i)
	case '{':
		return validObject(body, i, depth+1)
	case '[':
		return validList(body, i, depth+1)
	case 't':
		return validWord(body, i, "true")
	case 'f':
		return validWord(body, i, "false")
	case 'n':
		return validWord(body, i, "null")
	}
	return validNumber(body, i)
}

// validObject returns the end of the object at body[i].
func validObject(body []byte, i, depth int) int {
	if depth > maxDepth {
		return 0
	}
	i = skipSpace(body, i+1)
	for more := at(body, i) != '}'; more; {
		value := validColon(body, validString(body, i))
		if value == 0 {
			return 0
		}
		if i, more = validComma(body, validValue(body, value, depth), '}'); i == 0 {
			return 0
		}
	}
	return i + 1
}

// validList returns the end of the list at body[i].
func validList(body []byte, i, depth int) int {
	if depth > maxDepth {
		return 0
	}
	i = skipSpace(body, i+1)
	for more := at(body, i) != ']'; more; {
		if i, more = validComma(body, validValue(body, i, depth), ']'); i == 0 {
			return 0
		}
	}
	return i + 1
}

// validColon returns the index of the value after the colon that follows a key, which ends at i. It
// returns 0 if the key is invalid.
func validColon(body []byte, i int) int {
	if i == 0 {
		return 0
	}
	if i = skipSpace(body, i); at(body, i) != ':' {
		return 0
	}
	return skipSpace(body, i+1)
}

// validComma returns the index of the next item of an object or a list after the comma that follows
// a value, which ends at i. If no comma but the closing bracket follows, it returns the bracket's
// index, and false. It returns 0 if the value is invalid.
func validComma(body []byte, i int, closing byte) (next int, more bool) {
	if i == 0 {
		return 0, false
	}
	i = skipSpace(body, i)
	switch at(body, i) {
	case ',':
		return skipSpace(body, i+1), true
	case closing:
		return i, false
	}
	return 0, false
}

// validString returns the end of the string at body[i].
func validString(body []byte, i int) int {
	if at(body, i) != '"' {
		return 0
	}
	i++
	for {
		i = endOfPlain(body, i)
		if at(body, i) == '"' {
			return i + 1
		}
		if at(body, i) != '\\' { // a control character, or the end of the body
			return 0
		}
		for at(body, i) == '\\' { // escapes often follow each other
			if i = validEscape(body, i); i == 0 {
				return 0
			}
		}
	}
}

// validEscape returns the end of the escape at body[i].
func validEscape(body []byte, i int) int {
	end := i + escapes[at(body, i+1)]
	switch end - i {
	case 2:
		return end
	case 6:
		if end <= len(body) && hex[body[i+2]] && hex[body[i+3]] && hex[body[i+4]] && hex[body[i+5]] {
			return end
		}
	}
	return 0
}

// escapes is the length of an escape by its second byte; 0 if no escape has that byte.
var escapes = [256]int{'"': 2, '\\': 2, '/': 2, 'b': 2, 'f': 2, 'n': 2, 'r': 2, 't': 2, 'u': 6}

// hex are the hexadecimal digits.
var hex = [256]bool{
	'0': true, '1': true, '2': true, '3': true, '4': true, '5': true, '6': true, '7': true, '8': true, '9': true,
	'A': true, 'B': true, 'C': true, 'D': true, 'E': true, 'F': true,
	'a': true, 'b': true, 'c': true, 'd': true, 'e': true, 'f': true,
}

// endOfPlain returns the index of the first byte from i on that is not plain text in a string: a
// quote, a backslash or a control character. It returns the length of the body if there is none. It
// compares eight bytes at a time.
func endOfPlain(body []byte, i int) int {
	const ones, highest = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(body); i += 8 {
		eight := binary.LittleEndian.Uint64(body[i:])
		// A subtraction sets the highest bit of the first byte that is too small for it. With 2
		// flipped, a quote is 32 and all control characters remain below 32. Bytes from 128 on have
		// that bit anyway, and are plain. Bytes after the first that is too small may be wrong.
		control := (eight ^ 2*ones) - 33*ones
		backslash := (eight ^ '\\'*ones) - ones
		if found := (control | backslash) &^ eight & highest; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(body); i++ {
		if c := body[i]; c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return i
}

// validNumber returns the end of the number at body[i].
func validNumber(body []byte, i int) int {
	if at(body, i) == '-' {
		i++
	}
	if at(body, i) == '0' {
		i++
	} else if i = validDigits(body, i); i == 0 {
		return 0
	}
	if at(body, i) == '.' {
		if i = validDigits(body, i+1); i == 0 {
			return 0
		}
	}
	if c := at(body, i); c == 'e' || c == 'E' {
		i++
		if c := at(body, i); c == '+' || c == '-' {
			i++
		}
		return validDigits(body, i)
	}
	return i
}

// validDigits returns the end of the digits at body[i]; there must be one or more.
func validDigits(body []byte, i int) int {
	begin := i
	for c := at(body, i); c >= '0' && c <= '9'; c = at(body, i) {
		i++
	}
	if i == begin {
		return 0
	}
	return i
}

// validWord returns the end of the word at body[i].
func validWord(body []byte, i int, word string) int {
	if len(body)-i < len(word) || string(body[i:i+len(word)]) != word {
		return 0
	}
	return i + len(word)
}

// at returns body[i], and 0, which is valid nowhere in JSON, if the body ends before i.
func at(body []byte, i int) byte {
	if i < len(body) {
		return body[i]
	}
	return 0
}
