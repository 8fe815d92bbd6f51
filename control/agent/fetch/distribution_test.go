//go:build stores

package fetch

import (
	"maps"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/headgate/headgate/test/stores"
)

func TestImagesOfDistribution(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	host := stores.RunRegistry(t)
	user := remote.WithAuth(&authn.Basic{Username: "u", Password: "pass-word"})
	push(t, host+"/models/lora", "v1", imageOf(t, "linux/amd64",
		layer(t, types.OCILayer, "models/a="+large, "models/b=1"), layer(t, types.OCILayerZStd, "models/.wh.b=", "models/c/d=2")), user)
	fields := map[string]string{"username": "u", "password": "pass-word", "registry": host}
	source := imageSource(host+"/models/lora", "v1", fields)
	r, err := openImage(t.Context(), source, dialing)
	if got, want := unpacked(t, r, err), map[string]string{"a": large, "c/d": "2"}; !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	l, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := l.Objects[0]
	whole := readPart(t, r, o, 0, -1)
	for _, part := range [][2]int64{{0, 3}, {5, 7}, {o.Size - 4, -1}, {3, o.Size - 3}} {
		want := whole[part[0]:]
		if part[1] >= 0 {
			want = want[:part[1]]
		}
		if got := readPart(t, r, o, part[0], part[1]); got != want {
			t.Errorf("%v: %d bytes instead of %d", part, len(got), len(want))
		}
	}
	for _, c := range []struct {
		repository, revision string
		fields               map[string]string
		reason               Reason
	}{
		{"/models/lora", "v1", nil, Denied},
		{"/models/lora", "v1", map[string]string{"username": "u", "password": "pass-word2", "registry": host}, Denied},
		{"/models/lora", "v2", fields, NotFound},
		{"/models/none", "v1", fields, NotFound},
		{"/models/lora", "sha256:0000000000000000000000000000000000000000000000000000000000000000", fields, NotFound},
	} {
		source := imageSource(host+c.repository, c.revision, c.fields)
		r, err := openImage(t.Context(), source, dialing)
		if err == nil {
			_, err = r.List(t.Context())
		}
		refusal(t, err, source.URI, c.reason, "")
	}
}
