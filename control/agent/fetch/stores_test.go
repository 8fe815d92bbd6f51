//go:build stores

package fetch

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/test/stores"
)

// A bucket is a server with some models.
type bucket struct {
	put func(key, text string)
	at  func(path, key string) storage.Source // path in the container models
	own string                                // the modelKey that names the entry
}

// testCloud checks what all object stores have in common.
func testCloud(t *testing.T, c bucket) {
	for key, text := range map[string]string{
		"single.onnx": content, "m/config.json": "{}", "m/1/model.onnx": content, "m2/x": "x", "archive.tgz": "x", "schemas/m.json": "schema",
		"odd/a b+c%20&d.bin": content, "dir/": "", "dir/x": "x", "changing": content,
	} {
		c.put(key, text)
	}
	for _, test := range []struct {
		path   string
		want   map[string]string
		single bool
	}{
		{"single.onnx", map[string]string{"single.onnx": content}, true},
		{"m", map[string]string{"config.json": "{}", "1/model.onnx": content}, false},
		{"m/", map[string]string{"config.json": "{}", "1/model.onnx": content}, false},
		{"odd", map[string]string{"a b+c%20&d.bin": content}, false},
		{"dir", map[string]string{"x": "x"}, false},
	} {
		remote := open(t, c.at(test.path, c.own), Options{})
		listing := list(t, remote)
		if got := tree(t, remote, listing); fmt.Sprint(got) != fmt.Sprint(test.want) || listing.Single != test.single {
			t.Errorf("%s: %v, single %v; want %v", test.path, got, listing.Single, test.want)
		}
	}
	if a := list(t, open(t, c.at("archive.tgz", c.own), Options{})).Objects[0].Archive; a == nil || a.Compression != "gzip" {
		t.Errorf("archive: %+v", a)
	}
	remote := open(t, c.at("m", strings.TrimSuffix(c.own, "}")+`,"schema_path":"schemas/m.json"}`), Options{})
	if text, err := read(remote, *list(t, remote).Schema, 0, -1); err != nil || text != "schema" {
		t.Errorf("schema: %q, %v", text, err)
	}
	remote = open(t, c.at("changing", c.own), Options{})
	o := list(t, remote).Objects[0]
	for _, part := range []struct {
		offset, length int64
		want           string
	}{{0, 4, "0123"}, {12, 4, "cdef"}, {10, -1, "abcdef"}, {0, -1, content}} {
		if got, err := read(remote, o, part.offset, part.length); err != nil || got != part.want {
			t.Errorf("%d bytes from %d are %q (%v), want %q", part.length, part.offset, got, err, part.want)
		}
	}
	c.put("changing", strings.ToUpper(content))
	_, err := read(remote, o, 8, 8)
	fails(t, err, Changed, "changed since it was listed")
	for path, want := range map[string]Reason{"none": Empty, "none/": Empty} {
		_, err := open(t, c.at(path, c.own), Options{}).List(t.Context())
		fails(t, err, want, "there is no file")
	}
}

func TestGCS(t *testing.T) {
	server := stores.RunGCS(t)
	post := func(address, kind, text string) {
		t.Helper()
		client := http.Client{}
		defer client.CloseIdleConnections()
		answer, err := client.Post(address, kind, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if reply, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
			t.Fatal(answer.Status, string(reply))
		}
	}
	post(server+"/storage/v1/b?project=p", "application/json", `{"name":"models"}`)
	entries := storage.Entries{"store": {"type": "gcs", "endpoint_url": server, "anonymous": "true"}}
	testCloud(t, bucket{
		own: `{"storage_key":"store"}`,
		put: func(key, text string) {
			post(server+"/upload/storage/v1/b/models/o?uploadType=media&name="+url.QueryEscape(key), "application/octet-stream", text)
		},
		at: func(path, key string) storage.Source { return resolve(t, "gs://models/"+path, key, entries) },
	})
	_, err := open(t, resolve(t, "gs://missing/m", `{"storage_key":"store"}`, entries), Options{}).List(t.Context())
	fails(t, err, NotFound, `there is no bucket "missing"`)
}

func TestAzure(t *testing.T) {
	server := stores.RunAzure(t)
	client, err := container.NewClientFromConnectionString(server.Connection(), "models", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	entries := storage.Entries{
		"store": {"type": "azure", "connection_string": server.Connection()},
		"wrong": {"type": "azure", "connection_string": strings.Replace(server.Connection(), server.Key, "U0VDUkVU", 1)},
	}
	testCloud(t, bucket{
		own: `{"storage_key":"store"}`,
		put: func(key, text string) {
			t.Helper()
			body := struct {
				*bytes.Reader
				io.Closer
			}{bytes.NewReader([]byte(text)), http.NoBody}
			if _, err := client.NewBlockBlobClient(key).Upload(t.Context(), body, nil); err != nil {
				t.Fatal(err)
			}
		},
		at: func(path, key string) storage.Source {
			return resolve(t, "https://"+server.Account+".blob.core.windows.net/models/"+path, key, entries)
		},
	})
	for _, c := range []struct {
		container, entry string
		reason           Reason
		words            string
	}{
		{"missing", "store", NotFound, `there is no container "missing"`},
		{"models", "wrong", Denied, `with the storage-config entry "wrong" (403 AuthorizationFailure)`},
	} {
		src := resolve(t, "https://"+server.Account+".blob.core.windows.net/"+c.container+"/m", fmt.Sprintf(`{"storage_key":%q}`, c.entry), entries)
		_, err := open(t, src, Options{}).List(t.Context())
		fails(t, err, c.reason, c.words)
	}
}
