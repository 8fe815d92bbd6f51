package fetch

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/agent/storage"
)

// An empty object may be the mark of a folder, where tools make such marks. Then what is below
// counts, if there is anything.
func TestEmptyObjectsMayMarkFolders(t *testing.T) {
	for _, c := range []struct {
		name  string
		sizes map[string]int64 // by key
		marks bool
		want  []string // keys of the listing
	}{
		{"a mark", map[string]int64{"m": 0, "m/a": 1, "m/b": 0}, true, []string{"m/a", "m/b"}},
		{"no mark, because nothing is below", map[string]int64{"m": 0}, true, []string{"m"}},
		{"no mark, because it has content", map[string]int64{"m": 1, "m/a": 1}, true, []string{"m"}},
		{"storage without marks", map[string]int64{"m": 0, "m/a": 1}, false, []string{"m"}},
	} {
		src := storage.Source{URI: "s3://b/m", Bucket: "b", Path: "m"}
		listing, err := objectStore{
			src: src, marks: c.marks,
			stat: func(_ context.Context, key string) (Object, error) {
				size, is := c.sizes[key]
				if !is {
					return Object{}, failure(src, NotFound, "none")
				}
				return Object{Key: key, Size: size}, nil
			},
			below: func(_ context.Context, prefix string) (all []Object, _ error) {
				for key, size := range c.sizes {
					if strings.HasPrefix(key, prefix) {
						all = append(all, Object{Key: key, Size: size})
					}
				}
				return all, nil
			},
		}.list(t.Context())
		var keys []string
		for _, o := range listing.Objects {
			keys = append(keys, o.Key)
		}
		slices.Sort(keys)
		if err != nil || !slices.Equal(keys, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.name, keys, err, c.want)
		}
	}
}
