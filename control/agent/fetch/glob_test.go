package fetch

import "testing"

// TestGlobs has what fnmatch.fnmatchcase of Python 3.11 returns.
func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*.json", "config.json", true},
		{"*.json", "a/config.json", true},
		{"*.json", "config.jsonl", false},
		{"data/*.json", "data/a/b.json", true},
		{"data/", "data/a/b", true},
		{"data/", "data", false},
		{"data", "data/a", false},
		{"a?c", "a/c", true},
		{"a?c", "ac", false},
		{"A*", "abc", false},
		{"[ab].bin", "a.bin", true},
		{"[ab].bin", "c.bin", false},
		{"[!ab].bin", "c.bin", true},
		{"[!ab].bin", "a.bin", false},
		{"model-0000[1-3]-of-*", "model-00002-of-00007.safetensors", true},
		{"model-0000[1-3]-of-*", "model-00004-of-00007.safetensors", false},
		{"[]x].b", "].b", true},
		{"[!]x].b", "y.b", true},
		{"[!]x].b", "].b", false},
		{"[a.b", "[a.b", true},
		{"[", "[", true},
		{"[!", "[!", true},
		{"[]", "[]", true},
		{"[^a]", "^", true},
		{"[^a]", "a", true},
		{"[^a]", "b", false},
		{"[z-a]", "z", false},
		{"a.b", "axb", false},
		{"(a|b)+", "(a|b)+", true},
		{"é*", "école", true},
		{`dir\*`, "dir/a", true},
		{"*", "", true},
	} {
		if got := newGlob(c.pattern).match(c.name); got != c.want {
			t.Errorf("%q matches %q: %t", c.pattern, c.name, got)
		}
	}
}
