package fetch

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/headgate/headgate/control/agent/storage"
)

// startRegistry starts a registry in memory, behind a handler of the test if there is one.
func startRegistry(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		handler = wrap(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func imageSource(repository, revision string, fields map[string]string) storage.Source {
	separator := ":"
	if strings.Contains(revision, ":") {
		separator = "@"
	}
	return storage.Source{
		Scheme: storage.OCI, URI: "oci://" + repository + separator + revision, Bucket: repository, Revision: revision, Fields: fields,
	}
}

var dialing = Options{Dial: new(net.Dialer).DialContext}

// tarOf returns a tar of NAME=CONTENT entries; a name that ends with a slash is a folder.
func tarOf(t *testing.T, entries ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, entry := range entries {
		file, text, _ := strings.Cut(entry, "=")
		h := &tar.Header{Name: file, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(file, "/") {
			h.Mode, h.Typeflag = 0o755, tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// layer compresses a tar as a media type says.
func layer(t *testing.T, media types.MediaType, entries ...string) v1.Layer {
	t.Helper()
	plain := tarOf(t, entries...)
	compression, _ := archiveType(media)
	var b bytes.Buffer
	var w io.WriteCloser
	switch compression {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		w, _ = zstd.NewWriter(&b)
	default:
		return static.NewLayer(plain, media)
	}
	_, _ = w.Write(plain)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return static.NewLayer(b.Bytes(), media)
}

// imageOf returns an image for a platform.
func imageOf(t *testing.T, platform string, layers ...v1.Layer) v1.Image {
	t.Helper()
	bare := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	i, err := mutate.AppendLayers(bare, layers...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := i.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, _ = strings.Cut(platform, "/")
	if i, err = mutate.ConfigFile(i, config); err != nil {
		t.Fatal(err)
	}
	return i
}

func push(t *testing.T, repository, tag string, taggable remote.Taggable, options ...remote.Option) {
	t.Helper()
	reference, err := name.NewTag(repository + ":" + tag)
	if err != nil {
		t.Fatal(err)
	}
	switch v := taggable.(type) {
	case v1.Image:
		err = remote.Write(reference, v, options...)
	case v1.ImageIndex:
		err = remote.WriteIndex(reference, v, options...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// unpacked returns the files of a source, archives unpacked as Entry says.
func unpacked(t *testing.T, r Remote, err error) map[string]string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	l, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, o := range l.Objects {
		b := readPart(t, r, o, 0, -1)
		if o.Size != int64(len(b)) || o.Digest == "" || o.Version != o.Digest {
			t.Errorf("%+v has %d bytes", o, len(b))
		}
		if o.Archive == nil {
			all[o.Name] = b
			continue
		}
		var plain io.Reader = strings.NewReader(b)
		switch o.Archive.Compression {
		case "gzip":
			plain, err = gzip.NewReader(plain)
		case "zstd":
			plain, err = zstd.NewReader(plain)
		}
		if err != nil {
			t.Fatal(err)
		}
		here := make(map[string]string)
		for files := tar.NewReader(plain); ; {
			h, err := files.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			where, action := o.Archive.Entry(h.Name)
			switch action {
			case Store:
				if h.Typeflag == tar.TypeReg {
					text, _ := io.ReadAll(files)
					here[where] = string(text)
				}
			case Remove:
				maps.DeleteFunc(all, func(k, _ string) bool { return k == where || strings.HasPrefix(k, where+"/") })
			case Clear:
				maps.DeleteFunc(all, func(k, _ string) bool { return where == "." || strings.HasPrefix(k, where+"/") })
			case Refuse:
				t.Fatalf("%s is refused", h.Name)
			}
		}
		maps.Copy(all, here)
	}
	return all
}

func TestImagesServeTheirFolder(t *testing.T) {
	host := startRegistry(t, nil)
	for _, c := range []struct {
		name   string
		layers []v1.Layer
		want   map[string]string
	}{
		{"one layer", []v1.Layer{
			layer(t, types.OCILayer, "models/", "models/a=1", "models/b/c=2", "etc/passwd=x"),
		}, map[string]string{"a": "1", "b/c": "2"}},
		{"zstd and plain", []v1.Layer{
			layer(t, types.OCILayerZStd, "models/a=1"), layer(t, types.OCIUncompressedLayer, "models/b=2"), layer(t, types.DockerLayer, "./models/c=3"),
		}, map[string]string{"a": "1", "b": "2", "c": "3"}},
		{"later layers", []v1.Layer{
			layer(t, types.OCILayer, "bin/sh=x", "models/a=1", "models/b=1", "models/c/d=1", "models/e/f=1", "models/e/g=1"),
			layer(t, types.OCILayer, "models/a=2", "models/.wh.b=", "models/.wh.c=", "models/e/f=2", "models/e/.wh..wh..opq="),
			layer(t, types.OCILayer, "models/b=3", "models/.wh.none="),
		}, map[string]string{"a": "2", "b": "3", "e/f": "2"}},
		{"a removed folder", []v1.Layer{
			layer(t, types.OCILayer, "models/a=1"), layer(t, types.OCILayer, ".wh.models=", "models/b=2"),
		}, map[string]string{"b": "2"}},
		{"the same layer again", []v1.Layer{
			layer(t, types.OCILayer, "models/a=1"), layer(t, types.OCILayer, "models/.wh.a="), layer(t, types.OCILayer, "models/a=1"),
		}, map[string]string{"a": "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			repository := host + "/models/" + strings.ReplaceAll(c.name, " ", "-")
			i := imageOf(t, "linux/amd64", c.layers...)
			push(t, repository, "v1", i)
			r, err := openImage(t.Context(), imageSource(repository, "v1", nil), dialing)
			if got := unpacked(t, r, err); !maps.Equal(got, c.want) {
				t.Errorf("%v", got)
			}
			digest, err := i.Digest()
			if err != nil {
				t.Fatal(err)
			}
			r, err = openImage(t.Context(), imageSource(repository, digest.String(), nil), dialing)
			if got := unpacked(t, r, err); !maps.Equal(got, c.want) {
				t.Errorf("by digest: %v", got)
			}
		})
	}
}

func TestImagesOfIndexes(t *testing.T) {
	host := startRegistry(t, nil)
	add := func(platform, text string) mutate.IndexAddendum {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			t.Fatal(err)
		}
		return mutate.IndexAddendum{
			Add: imageOf(t, platform, layer(t, types.OCILayer, "models/a="+text)), Descriptor: v1.Descriptor{Platform: p},
		}
	}
	here := "linux/" + runtime.GOARCH
	for _, c := range []struct {
		images []mutate.IndexAddendum
		want   string
	}{
		{[]mutate.IndexAddendum{add("linux/s390x", "no"), add(here, "yes"), add("unknown/unknown", "no")}, "yes"},
		{[]mutate.IndexAddendum{add("linux/s390x", "sole"), add("unknown/unknown", "no")}, "sole"},
		{[]mutate.IndexAddendum{add("linux/s390x", "no"), add("windows/"+runtime.GOARCH, "no")}, ""},
	} {
		repository := host + "/index"
		push(t, repository, "v1", mutate.AppendManifests(empty.Index, c.images...))
		source := imageSource(repository, "v1", nil)
		r, err := openImage(t.Context(), source, dialing)
		if c.want != "" {
			if got := unpacked(t, r, err); got["a"] != c.want {
				t.Errorf("%v, not %s", got, c.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.List(t.Context())
		refusal(t, err, source.URI, NotFound, here+", but for linux/s390x, windows/"+runtime.GOARCH)
	}
}

func TestArtifacts(t *testing.T) {
	host := startRegistry(t, nil)
	titled := func(media types.MediaType, title string, content []byte, annotations ...string) mutate.Addendum {
		a := mutate.Addendum{Layer: static.NewLayer(content, media), MediaType: media}
		a.Annotations = map[string]string{titleAnnotation: title}
		for _, key := range annotations {
			a.Annotations[key] = "true"
		}
		return a
	}
	var folder bytes.Buffer
	w := gzip.NewWriter(&folder)
	_, _ = w.Write(tarOf(t, "sub/", "sub/.wh.a=1"))
	_ = w.Close()
	i, err := mutate.Append(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIEmptyJSON), types.OCIManifestSchema1),
		titled(types.OCIUncompressedLayer, "config.json", []byte("{}")),
		titled("application/octet-stream", "sub2/model.bin", []byte(large)),
		titled(types.OCILayer, "sub", folder.Bytes(), unpackAnnotation),
		mutate.Addendum{Layer: static.NewLayer([]byte("card"), "text/markdown"), MediaType: "text/markdown"})
	if err != nil {
		t.Fatal(err)
	}
	push(t, host+"/artifact", "v1", i)
	r, err := openImage(t.Context(), imageSource(host+"/artifact", "v1", nil), dialing)
	want := map[string]string{"config.json": "{}", "sub2/model.bin": large, "sub/.wh.a": "1"}
	if got := unpacked(t, r, err); !maps.Equal(got, want) {
		t.Errorf("%q", slices.Sorted(maps.Keys(got)))
	}
}
