package engine

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// lines iterates over the lines of a page that may belong to a wanted family. It decides by the
// first bytes of a line, so that most lines cost only the search for their end.
type lines struct {
	rest []byte
	skip []byte // lines that begin with it are not wanted; empty for none
}

// next returns the next line with its newline. It is empty at the end of the page.
func (l *lines) next() (line []byte) {
	for len(l.rest) > 0 {
		end := bytes.IndexByte(l.rest, '\n') + 1
		if end == 0 {
			end = len(l.rest)
		}
		line, l.rest = l.rest[:end], l.rest[end:]
		if maybeWanted(line) && (len(l.skip) == 0 || !bytes.HasPrefix(line, l.skip)) {
			return line
		}
	}
	return nil
}

// unwanted states that the family name of the last line is not wanted. Lines of one family follow
// one another, so the next lines usually have the same name.
func (l *lines) unwanted(line, name []byte) {
	if len(name) > 0 && len(name) < len(line) && bytes.HasPrefix(line, name) {
		l.skip = line[:len(name)+1] // with the byte that ends the name
	}
}

// maybeWanted reports whether nameOf of a line may be a wanted or a quoted name. It decides by the
// first bytes.
func maybeWanted(line []byte) bool {
	if line[0] == '#' {
		if len(line) < len(typeLine) || string(line[:len(typeLine)]) != typeLine {
			// Other blanks may be around TYPE.
			return len(line) < len(helpLine) || string(line[:len(helpLine)]) != helpLine
		}
		line = line[len(typeLine):]
	}
	if len(line) == 0 {
		return false
	}
	switch line[0] {
	case ' ', '\t', '{', '"':
		return true
	}
	if len(line) < prefixBytes {
		return false
	}
	bit := prefixBit(line)
	return wantedPrefixes[bit/64]>>(bit%64)&1 != 0
}

const (
	typeLine    = "# TYPE "
	helpLine    = "# HELP "
	prefixBytes = 14 // no wanted name is shorter
)

// prefixBit returns a hash of the first prefixBytes of a name.
func prefixBit(name []byte) uint64 {
	first, last := binary.LittleEndian.Uint64(name), binary.LittleEndian.Uint64(name[prefixBytes-8:prefixBytes])
	return (first*0x9e3779b97f4a7c15 ^ last*0xbf58476d1ce4e5b9) >> (64 - 12)
}

// wantedPrefixes has the bits of all wanted names.
var wantedPrefixes = func() (set [1 << 12 / 64]uint64) {
	for name := range wanted {
		bit := prefixBit([]byte(name))
		set[bit/64] |= 1 << (bit % 64)
	}
	return set
}()

// quotedName stands for a quoted name inside the braces.
const quotedName = "{"

// nameOf returns the family name of a sample or TYPE line, empty for other lines.
func nameOf(line []byte) []byte {
	line = bytes.TrimLeft(line, " \t")
	if rest, ok := bytes.CutPrefix(line, []byte("#")); ok {
		rest = bytes.TrimLeft(rest, " \t")
		rest, ok = bytes.CutPrefix(rest, []byte("TYPE"))
		if !ok {
			return nil
		}
		line = bytes.TrimLeft(rest, " \t")
	}
	if len(line) > 0 && (line[0] == '{' || line[0] == '"') {
		return []byte(quotedName)
	}
	end := 0
	for end < len(line) && inName(line[end]) { // the parser accepts name-3, too
		end++
	}
	return line[:end]
}

// inName reports whether an unquoted metric name may contain a byte.
func inName(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == ':'
}

// isComment reports whether a line is a comment, such as a TYPE line.
func isComment(line []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("#")) }

// headOf returns a sample line up to its value: its name, its labels and the blanks after them. It
// is empty if the value does not end the head clearly, as in name-3. Only the parser determines
// whether a head is valid.
func headOf(line []byte) []byte {
	if len(line) == 0 || line[len(line)-1] != '\n' {
		return nil
	}
	name := skipBlanks(line, 0)
	end := name
	for inName(line[end]) { // the newline ends every loop
		end++
	}
	at := skipBlanks(line, end)
	if line[at] == '{' {
		if at = skipLabels(line, at+1); at < 0 {
			return nil
		}
		at = skipBlanks(line, at)
	} else if at == end {
		return nil
	}
	return line[:at]
}

// skipBlanks returns the index of the first byte from at on that is no space and no tab.
func skipBlanks(line []byte, at int) int {
	for line[at] == ' ' || line[at] == '\t' {
		at++
	}
	return at
}

// skipLabels returns the index after the brace that ends labels, or -1 if none does.
func skipLabels(line []byte, at int) int {
	quoted := false
	for ; at < len(line); at++ {
		switch line[at] {
		case '\\':
			if quoted {
				at++
			}
		case '"':
			quoted = !quoted
		case '}':
			if !quoted {
				return at + 1
			}
		}
	}
	return -1
}

// valueOf parses the rest of a sample line after its head: a value, perhaps a time, and a newline.
// It accepts what the parser accepts.
func valueOf(rest []byte) (value float64, ok bool) {
	if len(rest) == 0 || rest[len(rest)-1] != '\n' {
		return 0, false
	}
	rest = rest[:len(rest)-1]
	var whole uint64
	digits := 0
	for digits < len(rest) && digits < 15 && rest[digits] >= '0' && rest[digits] <= '9' { // exact as a float64
		whole = whole*10 + uint64(rest[digits]-'0')
		digits++
	}
	if end := rest[digits:]; digits > 0 && (len(end) == 0 || string(end) == ".0") {
		return float64(whole), true
	}
	for i, b := range rest {
		switch b {
		case 'p', 'P', '_': // strconv accepts them, but the format does not
			return 0, false
		case ' ', '\t':
			time := bytes.TrimLeft(rest[i:], " \t")
			if _, err := strconv.ParseInt(string(time), 10, 64); err != nil {
				return 0, false
			}
			return valueOf(append(bytes.Clone(rest[:i]), '\n'))
		}
	}
	value, err := strconv.ParseFloat(string(rest), 64)
	return value, err == nil
}

// isWhole reports whether the parser keeps a count as a whole number, which float64 has exactly.
func isWhole(value float64) bool {
	return value >= 0 && value <= 1<<53 && value == math.Trunc(value) && !math.Signbit(value)
}

// inHistogram reports whether lines of a name are counts of a histogram of the page. It may report
// true for other lines.
func (f families) inHistogram(name string) bool {
	for _, end := range []string{"", "_count", "_bucket"} {
		if stem, ok := strings.CutSuffix(name, end); ok {
			switch f[stem].GetType() {
			case dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE_HISTOGRAM:
				return true
			}
		}
	}
	return false
}
