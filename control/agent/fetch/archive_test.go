package fetch

import "testing"

func TestEntriesOfArchives(t *testing.T) {
	layer, plain, all := Archive{Prefix: "models/", Layer: true}, Archive{Prefix: "models/"}, Archive{}
	for _, c := range []struct {
		archive Archive
		name    string
		path    string
		action  Action
	}{
		{layer, "models/", ".", Store},
		{layer, "./models/", ".", Store},
		{layer, "models/a/b.bin", "a/b.bin", Store},
		{layer, "./models/a/", "a", Store},
		{layer, "modelsx/a", "", Skip},
		{layer, "etc/models/a", "", Skip},
		{layer, "etc/passwd", "", Skip},
		{layer, "models/.wh.a", "a", Remove},
		{layer, "models/a/.wh.b", "a/b", Remove},
		{layer, "models/a/.wh..wh..opq", "a", Clear},
		{layer, "models/.wh..wh..opq", ".", Clear},
		{layer, ".wh..wh..opq", ".", Clear},
		{layer, ".wh.models", ".", Clear},
		{layer, "./.wh.models", ".", Clear},
		{layer, ".wh.modelsx", "", Skip},
		{layer, ".wh.etc", "", Skip},
		{layer, "models/.wh..wh.aufs", "", Skip},
		{layer, "models/.wh...", "", Refuse},
		{layer, "models/.wh..", "", Refuse},
		{layer, "models/.wh.", "", Refuse},
		{layer, "../models/a", "", Refuse},
		{layer, "models/../../a", "", Refuse},
		{layer, "/models/a", "", Refuse},
		{layer, "models/..a", "..a", Store},
		{plain, "models/.wh.a", ".wh.a", Store},
		{plain, ".wh.models", "", Skip},
		{all, "a/b", "a/b", Store},
		{all, "./", ".", Store},
		{all, "a/../b", "", Refuse},
		{all, "/a", "", Refuse},
		{Archive{Prefix: "a/b/", Layer: true}, ".wh.a", ".", Clear},
		{Archive{Prefix: "a/b/", Layer: true}, "a/.wh..wh..opq", ".", Clear},
		{Archive{Prefix: "a/b/", Layer: true}, "a/.wh.b", ".", Clear},
		{Archive{Prefix: "a/b/", Layer: true}, "a/c", "", Skip},
	} {
		if p, action := c.archive.Entry(c.name); p != c.path || action != c.action {
			t.Errorf("%+v %q: %q, %d, not %q, %d", c.archive, c.name, p, action, c.path, c.action)
		}
	}
}
