package fetch

import (
	"regexp"
	"strings"
)

// glob matches paths as fnmatch.fnmatchcase of Python does, with which huggingface_hub filters
// files: * and ? match slashes, too, and [!…] negates a set.
type glob struct{ expression *regexp.Regexp }

// newGlob returns the glob of a pattern. A pattern that ends with a slash matches all files below
// the folder.
func newGlob(pattern string) *glob {
	pattern = strings.ReplaceAll(pattern, `\`, "/")
	if strings.HasSuffix(pattern, "/") {
		pattern += "*"
	}
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; c {
		case '*':
			b.WriteString(".*")
		case '?':
			b.WriteByte('.')
		case '[':
			set, length := globSet(pattern[i:])
			b.WriteString(set)
			i += length - 1
		default:
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	b.WriteString(`\z`)
	expression, err := regexp.Compile(b.String())
	if err != nil { // such as a range whose end is before its start, which matches nothing
		expression = regexp.MustCompile(`\b\B`)
	}
	return &glob{expression}
}

// globSet returns the expression of a set at the start of a pattern, and the set's length. A
// bracket that is not closed stands for itself.
func globSet(pattern string) (string, int) {
	negated := strings.HasPrefix(pattern, "[!")
	start := 1
	if negated {
		start = 2
	}
	end := start
	if end < len(pattern) && pattern[end] == ']' { // the first one is a member
		end++
	}
	length := strings.IndexByte(pattern[min(end, len(pattern)):], ']')
	if length < 0 {
		return `\[`, 1
	}
	members := pattern[start : end+length]
	escaped := strings.NewReplacer(`[`, `\[`, `]`, `\]`, `^`, `\^`, `&`, `\&`, `~`, `\~`, `|`, `\|`).Replace(members)
	if negated {
		escaped = "^" + escaped
	}
	return "[" + escaped + "]", end + length + 1
}

func (g *glob) match(name string) bool { return g.expression.MatchString(name) }
