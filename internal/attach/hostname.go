package attach

import "strings"

// Intersect returns the hostnames that two patterns have in common, as a pattern; false if there
// are none. A pattern is a hostname, a hostname after "*.", which stands for one or more labels, or
// empty for every hostname (Gateway API, Listener.hostname).
func Intersect(a, b string) (string, bool) {
	switch {
	case a == "" || a == b:
		return b, true
	case b == "":
		return a, true
	case covers(a, b):
		return b, true
	case covers(b, a):
		return a, true
	}
	return "", false
}

// covers reports whether pattern a, which is not empty, matches every hostname of pattern b.
func covers(a, b string) bool {
	suffix, wild := strings.CutPrefix(a, "*")
	if !wild {
		return a == b
	}
	return strings.HasSuffix(strings.TrimPrefix(b, "*"), suffix) && (strings.HasPrefix(b, "*") || len(b) > len(suffix))
}

// MoreSpecific reports whether a request that matches both patterns belongs to a: exact hostnames
// precede wildcards, and wildcards with more labels precede others.
func MoreSpecific(a, b string) bool {
	wildA, wildB := strings.HasPrefix(a, "*"), strings.HasPrefix(b, "*")
	switch {
	case a == b || a == "":
		return false
	case b == "":
		return true
	case wildA != wildB:
		return wildB
	}
	return strings.Count(a, ".") > strings.Count(b, ".")
}
