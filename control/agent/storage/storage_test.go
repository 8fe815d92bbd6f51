package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/test/golden"
)

// readTestEntries reads testdata/entries.json, whose secrets contain the word SECRET.
func readTestEntries(t *testing.T) Entries {
	t.Helper()
	text, err := os.ReadFile("testdata/entries.json")
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"..data": []byte("no JSON")}
	for name, entry := range raw {
		files[name] = entry
	}
	entries, failed := ReadEntries(files)
	if len(failed) > 0 {
		t.Fatal(failed)
	}
	return entries
}

// TestScenarios runs testdata/*.txt.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		entries := readTestEntries(t)
		return func(input string) string {
			path, key, _ := strings.Cut(strings.TrimSpace(input), "\n")
			if quoted, err := strconv.Unquote(path); err == nil {
				path = quoted
			}
			s, ok, err := Resolve(Request{ID: "id", Path: path, Key: key}, entries)
			switch {
			case err != nil:
				text := err.Error()
				if strings.Contains(text, "SECRET") || strings.Contains(text, "\n") || !strings.Contains(text, "; ") {
					t.Errorf("%q: the message has a secret or a line break, or does not say what to do: %s", path, text)
				}
				var mistake *Error
				if ok || !errors.As(err, &mistake) {
					t.Errorf("%q: %v, %T", path, ok, err)
				}
				return "error: " + text + "\n"
			case !ok:
				return "the engine's own\n"
			}
			if place := s.URI + s.Path + s.Schema + s.Bucket; strings.Contains(place, "SECRET") {
				t.Errorf("%q: a secret is in the place %s", path, place)
			}
			return describe(s)
		}
	})
}

// describe returns a source as text, with its secrets.
func describe(s Source) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n  bucket %q, path %q", s.Scheme, s.URI, s.Bucket, s.Path)
	for _, part := range []struct{ name, value string }{{"revision", s.Revision}, {"schema", s.Schema}, {"entry", s.Entry}} {
		if part.value != "" {
			fmt.Fprintf(&b, ", %s %q", part.name, part.value)
		}
	}
	if s.Unpack {
		b.WriteString(", unpack")
	}
	if s.CustomServer {
		b.WriteString(", custom server")
	}
	if s.HasSecrets() {
		b.WriteString(", with secrets")
	}
	b.WriteString("\n")
	for _, name := range slices.Sorted(maps.Keys(s.Fields)) {
		fmt.Fprintf(&b, "  %s = %s\n", name, s.Fields[name])
	}
	return b.String()
}

func TestPathsOfTheEnginePass(t *testing.T) {
	entries := readTestEntries(t)
	for _, c := range []struct{ path, key string }{
		{"", ""},
		{"/mnt/models/a", ""},
		{"org/lora", ""},
		{"my_model", ""},
		{"/mnt/models/a", `{"model_type":{"name":"x"}}`},
		{"my_model", "an opaque key"},
		{"a", "[1]"},
	} {
		if s, ok, err := Resolve(Request{Path: c.path, Key: c.key}, entries); ok || err != nil {
			t.Errorf("%q %q: %v, %v, %v", c.path, c.key, s, ok, err)
		}
	}
	if s, ok, err := Resolve(Request{Path: "m", Key: `{"model_type":{"name":"x"}}`}, nil); ok || err != nil {
		t.Errorf("a relative path without a default entry: %v, %v, %v", s, ok, err)
	}
}

func TestReadEntriesNamesTheKeyAndNoValue(t *testing.T) {
	entries, failed := ReadEntries(map[string][]byte{
		"good": []byte(`{"type":"http","headers":{"A":"1","B":["2","3"]},"n":1e3,"b":true,"nothing":null}`),
		"text": []byte("SECRET"), "list": []byte(`["SECRET"]`), "cut": []byte(`{"a":"SECRET`), "null": []byte("null"), "..data": nil,
	})
	want := map[string]string{"type": "http", "headers.A": "1", "headers.B.0": "2", "headers.B.1": "3", "n": "1e3", "b": "true"}
	if len(entries) != 1 || !maps.Equal(entries["good"], want) {
		t.Errorf("entries: %v, want %v", entries, want)
	}
	var names []string
	for _, err := range failed {
		if strings.Contains(err.Error(), "SECRET") {
			t.Errorf("a secret is in the message: %v", err)
		}
		names = append(names, strings.Split(err.Error(), `"`)[1])
	}
	if want := []string{"cut", "list", "null", "text"}; !slices.Equal(names, want) {
		t.Errorf("errors about %v, want %v", names, want)
	}
}

func TestKeyNamesPlaceAndCredentials(t *testing.T) {
	entries := readTestEntries(t)
	key := func(path, modelKey string) string {
		t.Helper()
		s, ok, err := Resolve(Request{Path: path, Key: modelKey}, entries)
		if err != nil || !ok {
			t.Fatal(path, modelKey, ok, err)
		}
		return s.Key()
	}
	a, b := key("m", `{"storage_key":"store"}`), key("m", `{"storage_key":"store","bucket":"first","model_type":{"name":"x"}}`)
	if a != b {
		t.Errorf("one source has two keys: %s and %s", a, b)
	}
	seen := map[string]string{}
	for _, c := range []struct{ path, key string }{
		{"s3://first/m", `{"storage_key":"store"}`},
		{"s3://first/m", ""},
		{"s3://first/n", ""},
		{"s3://second/m", ""},
		{"m", `{"storage_key":"store"}`},
		{"s3://first/m", `{"storage_params":{"region":"x"}}`},
		{"gs://first/m", ""},
		{"s3://first/m", `{"schema_path":"s"}`},
		{"hf://o/r", ""},
		{"hf://o/r", `{"storage_key":"hub"}`},
		{"hf://o/r:v", ""},
		{"hf://o/r", `{"storage_params":{"include":"*.json"}}`},
		{"https://h/x", ""},
		{"https://h/x?sig=1", ""},
		{"https://u@h/x", ""},
	} {
		got := key(c.path, c.key)
		if other, ok := seen[got]; ok {
			t.Errorf("%v has the key of %v", c, other)
		}
		seen[got] = c.path + c.key
		if got != key(c.path, c.key) || len(got) != 32 || strings.Trim(got, "0123456789abcdef") != "" {
			t.Errorf("%v: the key %q is not stable, or no file name", c, got)
		}
	}
}

// TestNextHop has the example of ModelMesh's document about custom runtimes.
func TestNextHop(t *testing.T) {
	for _, c := range []struct{ path, key, local, schema, want string }{
		{
			"my_models/mnist-model", `{"bucket":"my_bucket","model_type":{"name":"my_model_type","version":"1"},"storage_key":"my_storage"}`,
			"/models/my-mnist-predictor-x/", "",
			`{"bucket":"my_bucket","disk_size_bytes":2415,"model_type":{"name":"my_model_type","version":"1"},"storage_key":"my_storage"}`,
		},
		{
			"m", `{"storage_params":{"bucket":"inner","secret_access_key":"SECRET"},"bucket":"top","schema_path":"s/x","model_type":"t"}`,
			"/models/a/m", "/models/a/schema.json",
			`{"bucket":"inner","disk_size_bytes":2415,"model_type":"t","schema_path":"/models/a/schema.json"}`,
		},
		{"s3://real/m", `{"storage_key":"k"}`, "/models/a/m", "", `{"bucket":"real","disk_size_bytes":2415,"storage_key":"k"}`},
		{"hf://o/r", "", "/models/a/", "", `{"disk_size_bytes":2415}`},
		{"/local", "opaque", "/local", "", "opaque"},
	} {
		path, key := NextHop(Request{ID: "a", Path: c.path, Key: c.key}, c.local, c.schema, 2415)
		if path != c.local || key != c.want {
			t.Errorf("%s %s:\n got %s %s\nwant %s %s", c.path, c.key, path, key, c.local, c.want)
		}
	}
}

func TestAllowed(t *testing.T) {
	for _, c := range []struct {
		uri, prefix string
		want        bool
	}{
		{"s3://b/a", "", false},
		{"s3://b/a", "s3://b", true},
		{"s3://b/a", "s3://b/", true},
		{"s3://b/a", "s3://b/a", true},
		{"s3://b/ab", "s3://b/a", false},
		{"s3://bb/a", "s3://b", false},
		{"hf://org/r:v", "hf://org/", true},
		{"hf://org/r:v", "hf://org/r", true},
		{"hf://org/r:v", "hf://org/r:v", true},
		{"hf://org/rr", "hf://org/r", false},
		{"oci://h:444/x", "oci://h", false},
		{"oci://h/x@sha256:1", "oci://h/x", true},
		{"https://h:444/x", "https://h", false},
		{"https://h/x:y", "https://h/x", false},
		{"https://h/x", "https://", true},
		{"https://h/x", "http://", false},
	} {
		err := Allowed(Source{URI: c.uri}, []string{"none://", c.prefix})
		if (err == nil) != c.want {
			t.Errorf("%s below %s: %v", c.uri, c.prefix, err)
		}
	}
	if err := Allowed(Source{URI: "s3://b/a"}, nil); err != nil {
		t.Errorf("without prefixes: %v", err)
	}
	if err := Allowed(Source{URI: "s3://b/a", CustomServer: true}, []string{"s3://b/"}); err == nil {
		t.Error("a server that parameters name is below a prefix")
	}
}

// Parameters that change how a server proves its identity get no secret of an entry, whatever the
// scheme.
func TestParametersThatChangeTrust(t *testing.T) {
	for scheme, uri := range map[string]string{
		"s3": "s3://b/m", "gs": "gs://b/m", "azure": "https://acc.blob.core.windows.net/c/m", "http": "https://h/m", "hf": "hf://o/r",
		"oci": "oci://r.example/m",
	} {
		entry := map[string]string{
			"type": scheme, "access_key_id": "SECRET", "secret_access_key": "SECRET", "private_key": "SECRET", "client_secret": "SECRET",
			"headers.Authorization": "SECRET", "token": "SECRET", "registry": "r.example", "url": "https://h",
		}
		for _, parameter := range []string{"verify_ssl", "certificate"} {
			r := Request{ID: "m", Path: uri, Key: `{"storage_params":{"` + parameter + `":"0"}}`}
			s, ok, err := Resolve(r, Entries{"default_" + scheme: entry})
			if err != nil || !ok || s.HasSecrets() || !s.CustomServer {
				t.Errorf("%s with %s: secrets %t, custom server %t, %v", uri, parameter, s.HasSecrets(), s.CustomServer, err)
			}
		}
	}
}

func TestRedact(t *testing.T) {
	for uri, want := range map[string]string{
		"https://u:p@h/x?sig=1#f": "https://h/x", "https://h/a@b": "https://h/a@b",
		"oci://r/x@sha256:1": "oci://r/x@sha256:1",
		"s3://u@v@b/x":       "s3://b/x", "plain": "plain", "plain?x": "plain", "https://u@h": "https://h", "": "",
	} {
		if got := Redact(uri); got != want {
			t.Errorf("%s: %s, want %s", uri, got, want)
		}
	}
}
