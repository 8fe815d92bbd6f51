package fetch

import (
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzArchiveEntry checks that no entry of an archive leaves the model's folder.
func FuzzArchiveEntry(f *testing.F) {
	for _, name := range []string{
		"models/a", "./models/../a", "/models/a", "models/.wh.a", "models/.wh...", ".wh..wh..opq", "models//", "..", ".wh.", "models/.wh..wh.x",
	} {
		f.Add(name, "models/", true)
		f.Add(name, "", false)
	}
	f.Fuzz(func(t *testing.T, name, prefix string, layer bool) {
		prefix = strings.Trim(prefix, "/.")
		p, action := Archive{Prefix: prefix, Layer: layer}.Entry(name)
		if action == Skip || action == Refuse {
			if p != "" {
				t.Errorf("%q has the path %q", name, p)
			}
			return
		}
		if path.IsAbs(p) || hasParent(p) || p == "" || path.Clean(p) != p {
			t.Errorf("%q in %q has the path %q", name, prefix, p)
		}
		if action == Remove && p == "." || !layer && action != Store {
			t.Errorf("%q in %q: %d of %q", name, prefix, action, p)
		}
	})
}

// FuzzGlob checks that every pattern is one, and that a pattern without special characters matches
// itself.
func FuzzGlob(f *testing.F) {
	for _, pattern := range []string{"*.json", "[!a-z]?", "[", "[]", "[!]", "[]-a]", `a\b`, "[\\d]", "[[:alpha:]]", "[a&&b]", "[--/]"} {
		f.Add(pattern, "a.json")
	}
	special := regexp.MustCompile(`[\[\]*?!\\]`)
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g := newGlob(pattern)
		g.match(name)
		if !special.MatchString(pattern) && !strings.HasSuffix(pattern, "/") && utf8.ValidString(pattern) && !g.match(pattern) {
			t.Errorf("%q does not match itself", pattern)
		}
	})
}
