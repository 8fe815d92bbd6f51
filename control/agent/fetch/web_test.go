package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/control/agent/storage"
)

// content is what the test servers serve.
const content = "0123456789abcdef"

// serve starts a web server that ends with the test.
func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// serveFile answers with ranges and conditions, like most web servers.
func serveFile(w http.ResponseWriter, r *http.Request, tag, text string) {
	if tag != "" {
		w.Header().Set("ETag", tag)
	}
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
}

func TestWebServesParts(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { serveFile(w, r, `"v1"`, content) })
	remote := open(t, resolve(t, s.URL+"/models/a%20b.onnx", "", nil), Options{})
	listing := list(t, remote)
	o := listing.Objects[0]
	if !listing.Single || o.Name != "a b.onnx" || o.Size != 16 || o.Version != `"v1"` || o.Archive != nil {
		t.Errorf("listing: %+v", listing)
	}
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, -1, content}, {0, 4, "0123"}, {4, 4, "4567"}, {12, -1, "cdef"}, {3, 0, ""}} {
		if got, err := read(remote, o, c.offset, c.length); err != nil || got != c.want {
			t.Errorf("%d bytes from %d are %q (%v), want %q", c.length, c.offset, got, err, c.want)
		}
	}
}

func TestWebWithoutRange(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, content) })
	remote := open(t, resolve(t, s.URL+"/m", "", nil), Options{})
	o := list(t, remote).Objects[0]
	if o.Size != 16 || o.Version != "" {
		t.Errorf("object: %+v", o)
	}
	if got, err := read(remote, o, 0, -1); err != nil || got != content {
		t.Errorf("all bytes are %q, %v", got, err)
	}
	_, err := read(remote, o, 4, 4)
	fails(t, err, NoRange, "the load reads it whole")
}

func TestWebObjectThatChanges(t *testing.T) {
	for name, strict := range map[string]bool{"with If-Match": true, "without conditions": false} {
		t.Run(name, func(t *testing.T) {
			var version atomic.Int32
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if !strict {
					r.Header.Del("If-Match")
				}
				serveFile(w, r, fmt.Sprintf(`"v%d"`, version.Load()), content)
			})
			remote := open(t, resolve(t, s.URL+"/m", "", nil), Options{})
			o := list(t, remote).Objects[0]
			if _, err := read(remote, o, 0, 8); err != nil {
				t.Fatal(err)
			}
			version.Add(1)
			for _, length := range []int64{8, -1} {
				_, err := read(remote, o, 8, length)
				fails(t, err, Changed, "changed since it was listed")
			}
		})
	}
}

// TestWebTimeOfModification has servers without ETags. A file that was modified just before it was
// listed may change again within the same second.
func TestWebTimeOfModification(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	for age, want := range map[time.Duration]bool{time.Second: false, time.Hour: true} {
		var touched atomic.Int64
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", now.Add(-age).Add(time.Duration(touched.Load())), strings.NewReader(content))
		})
		remote := open(t, resolve(t, s.URL+"/m", "", nil), Options{})
		o := list(t, remote).Objects[0]
		if (o.Version != "") != want {
			t.Errorf("the version of a file of age %v is %q", age, o.Version)
		}
		touched.Store(int64(time.Minute))
		if _, err := read(remote, o, 2, 2); want {
			fails(t, err, Changed, "changed since it was listed")
		}
	}
}

func TestWebStatuses(t *testing.T) {
	for status, want := range map[int]Reason{
		400: Invalid, 401: Denied, 403: Denied, 404: NotFound, 408: Busy, 410: NotFound, 418: Invalid, 429: Busy, 500: Busy, 503: Busy,
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			fmt.Fprint(w, "SECRET of the server")
		})
		remote := open(t, resolve(t, s.URL+"/m?sig=SECRET", "", nil), Options{})
		_, err := remote.List(t.Context())
		pause := fails(t, err, want, strconv.Itoa(status))
		if want == Busy && pause != 7 || want != Busy && pause != 0 {
			t.Errorf("%d: the pause is %d s", status, pause)
		}
		_, err = read(remote, Object{Name: "m", Key: s.URL + "/m", Size: 16}, 0, 4)
		fails(t, err, want, strconv.Itoa(status))
	}
}

func TestWebConnectionCutInHalf(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == "bytes=0-0" {
			serveFile(w, r, `"v"`, content)
			return
		}
		w.Header().Set("ETag", `"v"`)
		w.Header().Set("Content-Length", "16")
		fmt.Fprint(w, content[:8])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	remote := open(t, resolve(t, s.URL+"/m?sig=SECRET", "", nil), Options{})
	got, err := read(remote, list(t, remote).Objects[0], 0, -1)
	if got != content[:8] {
		t.Errorf("read %q", got)
	}
	fails(t, err, Busy, "the load is tried again")

	s.Close()
	_, err = remote.List(t.Context())
	fails(t, err, Busy, "cannot connect to 127.0.0.1:")
}

func TestWebCredentialsStayAtTheirServer(t *testing.T) {
	var seen atomic.Pointer[http.Request]
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r)
		serveFile(w, r, `"v"`, content)
	})
	own := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer SECRET" || r.Header.Get("X-Key") != "SECRET" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL+"/m", http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/m", http.StatusFound)
		default:
			serveFile(w, r, `"v"`, content)
		}
	})
	entries, failed := storage.ReadEntries(map[string][]byte{
		"web": fmt.Appendf(nil, `{"type":"http","url":%q,"headers":{"Authorization":"Bearer SECRET","X-Key":["SECRET"]}}`, own.URL),
	})
	if failed != nil {
		t.Fatal(failed)
	}
	for path, elsewhere := range map[string]bool{"/m": false, "/here": false, "/away": true} {
		seen.Store(nil)
		remote := open(t, resolve(t, own.URL+path, `{"storage_key":"web"}`, entries), Options{})
		list(t, remote)
		r := seen.Load()
		if (r != nil) != elsewhere {
			t.Fatalf("%s: the other server has got a request: %v", path, r != nil)
		}
		if r != nil && (r.Header.Get("Authorization") != "" || r.Header.Get("X-Key") != "" || r.Header.Get("Referer") != "") {
			t.Errorf("the other server got the headers %v", r.Header)
		}
	}
	at := strings.Replace(own.URL, "http://", "http://user:SECRET@", 1)
	remote := open(t, resolve(t, at+"/m", "", nil), Options{})
	_, err := remote.List(t.Context())
	fails(t, err, Denied, "401")
}

func TestWebRefusesLinkLocalAddresses(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/SECRET?sig=1", http.StatusFound)
	})
	for _, at := range []string{
		"http://169.254.169.254/latest/meta-data", "http://[fe80::1]/m", "http://[::ffff:169.254.169.254]/m", "http://[::ffff:a9fe:a9fe]/m",
		"http://2852039166/m", s.URL + "/m",
	} {
		remote := open(t, resolve(t, at, "", nil), Options{})
		_, err := remote.List(t.Context())
		if strings.Contains(at, "2852039166") {
			fails(t, err, Invalid, "unusual form of an address")
			continue
		}
		fails(t, err, Invalid, "which is link-local")
	}
}

func TestAddresses(t *testing.T) {
	for address, allowed := range map[string]bool{
		"127.0.0.1": true, "10.1.2.3": true, "192.168.0.1": true, "::1": true, "fd00::1": true, "8.8.8.8": true, "0.0.0.0": true,
		"169.254.169.254": false, "169.254.0.1": false, "fe80::1": false, "fe80::1%eth0": false, "febf::1": false,
		"::ffff:169.254.1.1": false, "::169.254.1.1": false, "64:ff9b::169.254.169.254": false, "2002:a9fe:a9fe::1": false,
		"224.0.0.1": false, "ff02::1": false, "168.63.129.16": false, "::ffff:168.63.129.16": false,
		"fd00:ec2::254": false, "100.100.100.200": false,
	} {
		if err := checkAddress(netip.MustParseAddr(address)); (err == nil) != allowed {
			t.Errorf("%s: %v", address, err)
		}
	}
	_, err := Dial(t.Context(), "tcp", "169.254.169.254:80")
	if err == nil || !strings.Contains(err.Error(), "link-local") {
		t.Errorf("dial: %v", err)
	}
}

func TestWebRedirects(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path+"x", http.StatusFound) })
	remote := open(t, resolve(t, s.URL+"/m", "", nil), Options{})
	_, err := remote.List(t.Context())
	fails(t, err, Invalid, "redirects more than 10 times")
	w := &web{src: storage.Source{URI: "https://h/m"}}
	at := func(text string) *http.Request {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return &http.Request{URL: u, Header: http.Header{}}
	}
	fails(t, w.checkRedirect(at("http://h/m"), []*http.Request{at("https://h/m")}), Invalid, "from https to http")
	fails(t, w.checkRedirect(at("file:///etc/passwd"), []*http.Request{at("http://h/m")}), Invalid, "to file")
}

func TestWebNames(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { serveFile(w, r, `"v"`, content) })
	for path, want := range map[string]string{
		"/m.zip": "zip", "/m.tar": "tar", "/m.tar.gz": "tar gzip", "/m.TGZ": "tar gzip", "/m.tar.bz2": "tar bzip2", "/m.tar.zst": "tar zstd",
		"/get?file=m.tgz": "tar gzip", "/m.onnx?x=y.zip": "none", "/m.gz": "none", "/m.mar": "none",
	} {
		remote := open(t, resolve(t, s.URL+path, "", nil), Options{})
		listing := list(t, remote)
		got := "none"
		if a := listing.Objects[0].Archive; a != nil {
			got = strings.TrimSpace(a.Format + " " + a.Compression)
		}
		if got != want || listing.Single != (want == "none") {
			t.Errorf("%s: %s, single %v; want %s", path, got, listing.Single, want)
		}
	}
	for path, words := range map[string]string{"/m/": "names no file", "": "names no file", "/m.tar.xz": "archives with xz"} {
		remote := open(t, resolve(t, s.URL+path, "", nil), Options{})
		_, err := remote.List(t.Context())
		fails(t, err, Invalid, words)
	}
	// ModelMesh stores archives as they are.
	remote := open(t, resolve(t, "m.zip", fmt.Sprintf(`{"storage_params":{"type":"http","url":%q}}`, s.URL), nil), Options{})
	if listing := list(t, remote); !listing.Single || listing.Objects[0].Archive != nil {
		t.Errorf("listing: %+v", listing)
	}
}

func TestWebSchema(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/none" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		serveFile(w, r, `"v"`, r.URL.Path)
	})
	remote := open(t, resolve(t, s.URL+"/m", `{"schema_path":"s/schema.json"}`, nil), Options{})
	schema := list(t, remote).Schema
	if text, err := read(remote, *schema, 0, -1); err != nil || text != "/s/schema.json" || schema.Name != "schema.json" {
		t.Errorf("schema %+v: %q, %v", schema, text, err)
	}
}

func TestWebCertificate(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serveFile(w, r, `"v"`, content) }))
	t.Cleanup(s.Close)
	remote := open(t, resolve(t, s.URL+"/m", "", nil), Options{})
	_, err := remote.List(t.Context())
	fails(t, err, Invalid, "signed by an unknown authority; set certificate")

	entries := storage.Entries{"default_http": {"type": "http", "certificate": pemOf(s)}}
	list(t, open(t, resolve(t, s.URL+"/m", "", entries), Options{}))

	entries["default_http"]["certificate"] = "SECRET"
	_, err = Open(t.Context(), resolve(t, s.URL+"/m", "", entries), Options{})
	fails(t, err, Invalid, "holds no PEM certificate")
	entries["default_http"] = map[string]string{"type": "http", "url": s.URL, "client_certificate": "SECRET", "client_key": "SECRET"}
	_, err = Open(t.Context(), resolve(t, s.URL+"/m", "", entries), Options{})
	fails(t, err, Invalid, "are no pair")
}

func TestAllowedSources(t *testing.T) {
	_, err := Open(t.Context(), resolve(t, "https://evil.example/m?sig=SECRET", "", nil), Options{Allow: []string{"https://good.example/"}})
	fails(t, err, Invalid, "is below no prefix of --allow")
	_, err = Open(t.Context(), storage.Source{Scheme: "hdfs", URI: "hdfs://x"}, Options{})
	fails(t, err, Invalid, "fetches nothing from storage of this kind")
}

func TestServerThatStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		stop := make(chan struct{})
		src := storage.Source{URI: "s3://b/m"}
		rc := body(t.Context(), func(error) { close(stop) }, src, readerFunc(func([]byte) (int, error) {
			<-stop
			return 0, errors.New("cancelled, with a SECRET")
		}), 16)
		_, err := rc.Read(make([]byte, 4))
		fails(t, err, Busy, "has sent no byte for 1m0s")
		if waited := time.Since(started); waited != stallTimeout {
			t.Errorf("it stalled for %v", waited)
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
func (readerFunc) Close() error                 { return nil }

// TestUnknownErrors has what a library may say about a request.
func TestUnknownErrors(t *testing.T) {
	src := storage.Source{URI: "https://h/m"}
	for _, err := range []error{
		errors.New("bad header SECRET"), &url.Error{Op: "Get", URL: "https://h/m?sig=SECRET", Err: errors.New("SECRET")},
		fmt.Errorf("SECRET: %w", &url.Error{Op: "Get", URL: "https://h/m?sig=SECRET", Err: context.DeadlineExceeded}),
	} {
		fails(t, ofTransport(t.Context(), src, err), Busy, "the load is tried again")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ofTransport(ended, src, errors.New("SECRET")); !errors.Is(err, context.Canceled) {
		t.Errorf("the error of a cancelled call is %v", err)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for header, want := range map[string]int{
		"": 0, "7": 7, "-1": 0, "soon": 0, "99999": 3600, now.Add(90 * time.Second).Format(http.TimeFormat): 90,
		now.Add(-time.Hour).Format(http.TimeFormat): 0,
	} {
		if got := seconds(header, now); got != want {
			t.Errorf("%q: %d, want %d", header, got, want)
		}
	}
}
