package fetch

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awscredentials "github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/test/stores"
)

// uploader puts objects into buckets of a server.
type uploader struct {
	t      *testing.T
	client *s3.Client
}

func newUploader(t *testing.T, server stores.S3) uploader {
	t.Helper()
	return uploader{t, s3.New(s3.Options{
		BaseEndpoint: &server.URL, UsePathStyle: true, Region: defaultRegion,
		Credentials: awscredentials.NewStaticCredentialsProvider(server.Access, server.Secret, ""),
	})}
}

func (u uploader) bucket(name string) {
	u.t.Helper()
	if _, err := u.client.CreateBucket(u.t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		u.t.Fatal(err)
	}
}

func (u uploader) put(bucket string, files map[string]string) {
	u.t.Helper()
	for key, text := range files {
		in := &s3.PutObjectInput{Bucket: &bucket, Key: &key}
		if text != "" {
			in.Body = strings.NewReader(text)
		}
		if _, err := u.client.PutObject(u.t.Context(), in); err != nil {
			u.t.Fatal(key, err)
		}
	}
}

// entriesFor returns entries for a server: store with its credentials, and mistakes.
func entriesFor(server stores.S3) storage.Entries {
	entry := func(access, secret, url string) map[string]string {
		return map[string]string{"type": "s3", "access_key_id": access, "secret_access_key": secret, "endpoint_url": url, "region": "us-east-1"}
	}
	return storage.Entries{
		"store":   entry(server.Access, server.Secret, server.URL),
		"wrong":   entry(server.Access, "another-SECRET", server.URL),
		"unknown": entry("nobody", "another-SECRET", server.URL),
		"half":    entry(server.Access, "", server.URL),
		"nobody":  {"type": "s3", "endpoint_url": server.URL, "anonymous": "true"},
		"nowhere": entry(server.Access, server.Secret, "http://127.0.0.1:1"),
		"noURL":   entry(server.Access, server.Secret, "127.0.0.1:1?SECRET"),
		"link":    entry(server.Access, server.Secret, "http://169.254.169.254"),
	}
}

func TestS3(t *testing.T) {
	server := stores.RunS3(t)
	up := newUploader(t, server)
	up.bucket("models")
	up.put("models", map[string]string{
		"single.onnx": content, "m/config.json": "{}", "m/1/model.onnx": content, "m/1/empty": "", "m2/other": "x", "archive.tgz": "x",
		"one/only.zip": "x", "schemas/m.json": "schema", "odd/a b+c%20&d.bin": content,
	})
	up.put("models", map[string]string{"marked/": "", "marked/x": "x", "empty/": ""})
	many := filepath.Join(server.Dir, "models", "many")
	if err := os.MkdirAll(many, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 1100 { // a page has 1000
		if err := os.WriteFile(filepath.Join(many, strconv.Itoa(i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	entries := entriesFor(server)
	at := func(path, key string) Remote { return open(t, resolve(t, path, key, entries), Options{}) }
	const store = `{"storage_key":"store"}`

	t.Run("trees", func(t *testing.T) {
		for _, c := range []struct {
			path, key string
			want      map[string]string
			single    bool
		}{
			{"s3://models/single.onnx", store, map[string]string{"single.onnx": content}, true},
			{"s3://models/m", store, map[string]string{"config.json": "{}", "1/model.onnx": content, "1/empty": ""}, false},
			{"s3://models/m/", store, map[string]string{"config.json": "{}", "1/model.onnx": content, "1/empty": ""}, false},
			{"s3://models/marked", store, map[string]string{"x": "x"}, false},
			{"s3://models/odd", store, map[string]string{"a b+c%20&d.bin": content}, false},
			{"m/1", `{"storage_key":"store","bucket":"models"}`, map[string]string{"model.onnx": content, "empty": ""}, false},
			{"m/1/empty", `{"storage_key":"store","bucket":"models"}`, map[string]string{"empty": ""}, true},
		} {
			remote := at(c.path, c.key)
			listing := list(t, remote)
			if got := tree(t, remote, listing); fmt.Sprint(got) != fmt.Sprint(c.want) || listing.Single != c.single {
				t.Errorf("%s: %v, single %v; want %v", c.path, got, listing.Single, c.want)
			}
		}
		if n := len(list(t, at("s3://models/many", store)).Objects); n != 1100 {
			t.Errorf("a folder of 1100 files has %d", n)
		}
		for path, want := range map[string]string{"s3://models/archive.tgz": "gzip", "s3://models/one": ""} {
			listing := list(t, at(path, store))
			if a := listing.Objects[0].Archive; a == nil || a.Compression != want || listing.Single {
				t.Errorf("%s is no archive: %+v", path, listing)
			}
		}
	})

	t.Run("parts", func(t *testing.T) {
		remote := at("s3://models/single.onnx", store)
		o := list(t, remote).Objects[0]
		if !strings.HasPrefix(o.Version, `"`) {
			t.Errorf("the version is %s", o.Version)
		}
		for _, c := range []struct {
			offset, length int64
			want           string
		}{{0, 4, "0123"}, {12, 4, "cdef"}, {10, -1, "abcdef"}} {
			if got, err := read(remote, o, c.offset, c.length); err != nil || got != c.want {
				t.Errorf("%d bytes from %d are %q (%v), want %q", c.length, c.offset, got, err, c.want)
			}
		}
	})

	t.Run("schema", func(t *testing.T) {
		remote := at("s3://models/m", `{"storage_key":"store","schema_path":"schemas/m.json"}`)
		if text, err := read(remote, *list(t, remote).Schema, 0, -1); err != nil || text != "schema" {
			t.Errorf("schema: %q, %v", text, err)
		}
		_, err := at("s3://models/m", `{"storage_key":"store","schema_path":"schemas/none"}`).List(t.Context())
		fails(t, err, NotFound, `there is no schema "schemas/none"; correct schemaPath`)
	})

	t.Run("mistakes", func(t *testing.T) {
		for _, c := range []struct {
			path, entry string
			reason      Reason
			words       string
		}{
			{"s3://missing/m", "store", NotFound, `there is no bucket "missing"`},
			{"s3://models/none", "store", Empty, "there is no file"},
			{"s3://models/empty", "store", Empty, "there is no file"},
			{"s3://models/m", "wrong", Denied, `the server denies access with the storage-config entry "wrong" (403 SignatureDoesNotMatch)`},
			{"s3://models/single.onnx", "wrong", Denied, "403"},
			{"s3://models/m", "unknown", Denied, "(403 XAdminUserNotFound)"},
			{"s3://models/m", "nobody", Denied, "403 AccessDenied"},
			{"s3://models/m", "half", Denied, "has only one of access_key_id and secret_access_key"},
			{"s3://models/m", "nowhere", Busy, "cannot connect to 127.0.0.1:1 (connection refused)"},
			{"s3://models/m", "noURL", Invalid, "endpoint_url is no URL"},
			{"s3://models/m", "link", Invalid, "which is link-local"},
		} {
			remote, err := Open(t.Context(), resolve(t, c.path, fmt.Sprintf(`{"storage_key":%q}`, c.entry), entries), Options{})
			if err == nil {
				_, err = remote.List(t.Context())
			}
			fails(t, err, c.reason, c.words)
		}
	})

	t.Run("changed", func(t *testing.T) {
		up.put("models", map[string]string{"changing": content})
		remote := at("s3://models/changing", store)
		o := list(t, remote).Objects[0]
		if _, err := read(remote, o, 0, 8); err != nil {
			t.Fatal(err)
		}
		up.put("models", map[string]string{"changing": strings.ToUpper(content)})
		_, err := read(remote, o, 8, 8)
		fails(t, err, Changed, "changed since it was listed")
		if _, err := up.client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String("models"), Key: &o.Key}); err != nil {
			t.Fatal(err)
		}
		_, err = read(remote, o, 8, 8)
		fails(t, err, NotFound, "404 NoSuchKey")
	})

	t.Run("failing servers", func(t *testing.T) { testFailingS3(t, server) })
}

// testFailingS3 puts a proxy before a server.
func testFailingS3(t *testing.T, server stores.S3) {
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // it is signed
	}}
	var fault atomic.Pointer[http.HandlerFunc]
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := fault.Load(); f != nil {
			(*f)(w, r)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	set := func(f http.HandlerFunc) { fault.Store(&f) }
	server.URL = proxy.URL
	remote := open(t, resolve(t, "s3://models/single.onnx", `{"storage_key":"store"}`, entriesFor(server)), Options{})
	o := list(t, remote).Objects[0]

	for _, c := range []struct {
		status int
		code   string
		reason Reason
	}{
		{429, "TooManyRequests", Busy},
		{503, "SlowDown", Busy},
		{500, "InternalError", Busy},
		{400, "RequestTimeout", Busy},
		{400, "ExpiredToken", Denied},
		{403, "AccessDenied", Denied},
		{404, "NoSuchKey", NotFound},
		{412, "PreconditionFailed", Changed},
		{501, "the SECRET", Busy},
		{307, "TemporaryRedirect", Invalid},
	} {
		set(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3")
			w.Header().Set("Location", "http://169.254.169.254/SECRET")
			w.WriteHeader(c.status)
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>SECRET</Message></Error>", c.code)
		})
		_, err := read(remote, o, 0, 4)
		if pause := fails(t, err, c.reason, "("); c.reason == Busy && pause != 3 {
			t.Errorf("%d: the pause is %d", c.status, pause)
		}
	}
	fault.Store(nil)
	if got, err := read(remote, o, 0, 4); err != nil || got != "0123" {
		t.Errorf("after the faults: %q, %v", got, err)
	}
	set(func(w http.ResponseWriter, _ *http.Request) { // cut in half
		w.Header().Set("ETag", o.Version)
		w.Header().Set("Content-Range", "bytes 0-7/16")
		w.Header().Set("Content-Length", "8")
		w.WriteHeader(http.StatusPartialContent)
		fmt.Fprint(w, content[:3])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	got, err := read(remote, o, 0, 8)
	if got != content[:3] {
		t.Errorf("read %q before the cut", got)
	}
	fails(t, err, Busy, "the load is tried again")
	set(func(w http.ResponseWriter, _ *http.Request) { // no ranges
		w.Header().Set("ETag", o.Version)
		fmt.Fprint(w, content)
	})
	_, err = read(remote, o, 4, 4)
	fails(t, err, NoRange, "no part")

	// Amazon names the region of a bucket that is elsewhere.
	var regions []string
	remote.(*s3Bucket).moves = true
	set(func(w http.ResponseWriter, r *http.Request) {
		regions = append(regions, strings.Split(r.Header.Get("Authorization"), "/")[2])
		w.Header().Set("X-Amz-Bucket-Region", "eu-south-2")
		w.WriteHeader(http.StatusMovedPermanently)
	})
	_, err = read(remote, o, 0, 4)
	fails(t, err, Invalid, "301")
	if want := []string{"us-east-1", "eu-south-2"}; !slices.Equal(regions, want) {
		t.Errorf("the regions are %v, want %v", regions, want)
	}
}
