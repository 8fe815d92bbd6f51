package engine_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/engine"
)

// The text of a runtime's methods does not depend on their order, and parsing it gives the same
// methods and no others.
func TestMethodsAreKeptAsText(t *testing.T) {
	said := map[string][]uint32{"b.S/Two": {1, 20, 536870911}, "a.S/One": {1}, "a.S/Header": nil}
	m, err := engine.MethodsOf(said, false)
	if want := "a.S/Header\na.S/One 1\nb.S/Two 1.20.536870911"; err != nil || string(m) != want {
		t.Fatalf("%q, %v; want %q", m, err, want)
	}
	if again := engine.MethodsOfLines(m.Lines()); again != m {
		t.Errorf("by lines: %q", again)
	}
	for method, want := range said {
		if path, ok := m.Takes(method); !ok || !slices.Equal(path, want) {
			t.Errorf("%s: %v %v, want %v", method, path, ok, want)
		}
	}
	for _, method := range []string{"a.S/On", "a.S/One 1", "One", "a.S", "", "b.S/Two 1.20"} {
		if _, ok := m.Takes(method); ok {
			t.Errorf("%q passes", method)
		}
	}
	more, err := engine.MethodsOf(said, true)
	if path, ok := more.Takes("c.S/Other"); err != nil || !ok || path != nil {
		t.Errorf("any other: %v %v %v", path, ok, err)
	}
	if path, ok := more.Takes("a.S/One"); !ok || !slices.Equal(path, []uint32{1}) {
		t.Errorf("beside others: %v %v", path, ok)
	}
	for _, others := range []bool{false, true} {
		none, err := engine.MethodsOf(nil, others)
		if path, ok := none.Takes("a.S/One"); none != "" || err != nil || !ok || path != nil || none.Lines() != nil {
			t.Errorf("a runtime that says nothing: %q %v %v %v", none, err, path, ok)
		}
	}
}

func TestInvalidMethodsAreRejected(t *testing.T) {
	many := make(map[string][]uint32)
	for i := range 1025 {
		many["a.S/"+strings.Repeat("x", i+1)] = nil
	}
	for _, said := range []map[string][]uint32{{"": nil}, {"a b": nil}, {"a\nb": nil}, {"*": nil}, many, {"a.S/One": make([]uint32, 17)}} {
		if m, err := engine.MethodsOf(said, false); err == nil {
			t.Errorf("%d methods: %.40q", len(said), m)
		}
	}
	for _, text := range []engine.Methods{"a.S/One 0", "a.S/One x", "a.S/One 1.", "a.S/One 536870912", "a.S/One 99999999999", "a.S/One 1" +
		engine.Methods(strings.Repeat(".1", 16))} {
		if path, ok := text.Takes("a.S/One"); ok {
			t.Errorf("%q: %v", text, path)
		}
	}
}
