package wire_test

import (
	"testing"

	"github.com/headgate/headgate/api/wire"
)

// Path and ParseRewrite give the path that engines see.
func TestRewrittenPaths(t *testing.T) {
	for _, c := range []struct {
		wire.Rewrite
		path, want string
	}{
		{wire.Rewrite{Prefix: "/a", With: "/b"}, "/a/x", "/b/x"},
		{wire.Rewrite{Prefix: "/a", With: "/b"}, "/a", "/b"},
		{wire.Rewrite{Prefix: "/a", With: "/b/"}, "/a/x?q=/a", "/b/x?q=/a"},
		{wire.Rewrite{Prefix: "/a/", With: "/b"}, "/a/x", "/b/x"},
		{wire.Rewrite{Prefix: "/a", With: "/"}, "/a/x", "/x"},
		{wire.Rewrite{Prefix: "/a", With: ""}, "/a//x", "/x"},
		{wire.Rewrite{Prefix: "/a", With: "/"}, "/a?q", "/?q"},
		{wire.Rewrite{Prefix: "/", With: "/b"}, "/x", "/b/x"},
		{wire.Rewrite{Prefix: "/", With: "/"}, "/x", "/x"},
		{wire.Rewrite{With: "/b"}, "/a/x?q", "/b?q"},
	} {
		if got := wire.ParseRewrite(c.String()).Path(c.path); got != c.want {
			t.Errorf("%q makes %s of %s, want %s", c.String(), got, c.path, c.want)
		}
	}
}
