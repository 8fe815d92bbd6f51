package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/test/fakehub"
)

// sentinels are in the credentials of these tests, and in links of the CDN.
var sentinels = []string{"hf_secret", "signed-", "pass-word", "c2VjcmV0"}

// refusal checks an error: its reason, that it is one sentence with the URI and what to do, and
// that it has no secret.
func refusal(t *testing.T, err error, uri string, reason Reason, words string) (pause int) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%v (%T), not an Error with %s", err, err, reason)
	}
	if e.Reason != reason || !strings.Contains(e.Message, words) || !strings.HasPrefix(e.Message, uri+": ") ||
		strings.Contains(e.Message, "\n") || !strings.Contains(e.Message, "; ") {
		t.Errorf("%s %q, not %s with %q", e.Reason, e.Message, reason, words)
	}
	for _, secret := range sentinels {
		if strings.Contains(e.Message, secret) {
			t.Errorf("%q has a secret", e.Message)
		}
	}
	return e.RetryAfter
}

// contents reads all files of a source, which must not be archives.
func contents(t *testing.T, r Remote, err error) map[string]string {
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
		all[o.Name] = readPart(t, r, o, 0, -1)
	}
	return all
}

func readPart(t *testing.T, r Remote, o Object, offset, length int64) string {
	t.Helper()
	body, err := r.Open(t.Context(), o, offset, length)
	if err != nil {
		t.Fatalf("%s: %v", o.Name, err)
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		t.Fatalf("%s: %v", o.Name, err)
	}
	return string(b)
}

// large is a file that is in Git LFS.
var large = strings.Repeat("0123456789abcdef", 1000)

// texts converts files for fakehub.
func texts(files map[string]string) map[string][]byte {
	all := make(map[string][]byte)
	for name, text := range files {
		all[name] = []byte(text)
	}
	return all
}

var loraFiles = map[string]string{
	"adapter_config.json": `{"r": 8}`, "adapter_model.safetensors": large, "README.md": "# it", "a b/c#d?e%41.txt": "odd",
	"tokenizer/vocab.json": strings.Repeat("v", 1023), "empty": "",
}

// startHub starts a Hub with the private repository org/lora, and a CDN. Sources name its host
// hub.test, and the CDN's is below that.
func startHub(t *testing.T) (*fakehub.Hub, storage.Source, Options) {
	t.Helper()
	hub := &fakehub.Hub{PageSize: 2, CDN: "http://cdn.hub.test", Repos: map[string]fakehub.Repo{
		"org/lora": {Token: "hf_secret", Revisions: map[string]map[string][]byte{
			"main": texts(loraFiles), "refs/pr/1": {"one": []byte("1")}, "bare": {},
		}},
		"org/gated": {Token: "hf_secret_of_others", Gated: true, Revisions: map[string]map[string][]byte{"main": {"one": []byte("1")}}},
	}}
	site, cdn := httptest.NewServer(hub), httptest.NewServer(http.HandlerFunc(hub.ServeCDN))
	t.Cleanup(site.Close)
	t.Cleanup(cdn.Close)
	options := Options{
		HubEndpoint: "http://hub.test",
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			to := map[string]*httptest.Server{"hub.test:80": site, "cdn.hub.test:80": cdn}[address]
			if to == nil {
				return nil, &RefusedError{Address: netip.MustParseAddr("169.254.169.254")}
			}
			return new(net.Dialer).DialContext(ctx, network, to.Listener.Addr().String())
		},
	}
	return hub, hubSource("hf://org/lora", "org/lora", ""), options
}

func hubSource(uri, repo, revision string) storage.Source {
	return storage.Source{
		Scheme: storage.Hub, URI: uri, Bucket: repo, Revision: revision, Fields: map[string]string{"token": "hf_secret"},
	}
}

func TestHubServesRepositories(t *testing.T) {
	hub, source, options := startHub(t)
	r, err := openHub(t.Context(), source, options)
	if got := contents(t, r, err); !maps.Equal(got, loraFiles) {
		t.Errorf("%q", slices.Sorted(maps.Keys(got)))
	}
	cdn := 0
	for _, request := range hub.Seen() {
		if request.CDN {
			cdn++
		}
		if (request.Authorization == "Bearer hf_secret") == request.CDN {
			t.Errorf("token %q at %s, CDN %t", request.Authorization, request.Path, request.CDN)
		}
	}
	if cdn != 1 {
		t.Errorf("%d requests to the CDN", cdn)
	}
	source.Revision = "refs/pr/1"
	r, err = openHub(t.Context(), source, options)
	if got := contents(t, r, err); !maps.Equal(got, map[string]string{"one": "1"}) {
		t.Errorf("%q", got)
	}
	source.Revision, source.Fields = fakehub.Commit(texts(loraFiles)), map[string]string{"token": "hf_secret", "include": "*.json, empty"}
	r, err = openHub(t.Context(), source, options)
	if got := contents(t, r, err); len(got) != 3 || got["tokenizer/vocab.json"] != loraFiles["tokenizer/vocab.json"] {
		t.Errorf("include: %q", got)
	}
	source.Path, source.Fields = "tokenizer", map[string]string{"token": "hf_secret"}
	r, err = openHub(t.Context(), source, options)
	if got := contents(t, r, err); len(got) != 1 || got["vocab.json"] != loraFiles["tokenizer/vocab.json"] {
		t.Errorf("a folder: %q", got)
	}
}

func TestHubListsVersionsAndSchema(t *testing.T) {
	_, source, options := startHub(t)
	source.Schema = "tokenizer/vocab.json"
	r, err := openHub(t.Context(), source, options)
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range l.Objects {
		digest := ""
		if o.Name == "adapter_model.safetensors" {
			digest = "sha256:" + o.Version
		}
		if o.Size != int64(len(loraFiles[o.Name])) || len(o.Version) < 40 || o.Digest != digest || o.Archive != nil {
			t.Errorf("%+v", o)
		}
	}
	if l.Schema == nil || l.Schema.Name != "vocab.json" || readPart(t, r, *l.Schema, 0, -1) != loraFiles["tokenizer/vocab.json"] {
		t.Errorf("schema %+v", l.Schema)
	}
	if l.Single || l.Link != "" {
		t.Errorf("%+v", l)
	}
	source.Schema = "none"
	r, _ = openHub(t.Context(), source, options)
	_, err = r.List(t.Context())
	refusal(t, err, source.URI, NotFound, `no file "none"`)
}

func TestHubServesParts(t *testing.T) {
	hub, source, options := startHub(t)
	r, err := openHub(t.Context(), source, options)
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range l.Objects {
		if o.Size < 20 {
			continue
		}
		for _, part := range [][2]int64{{0, 3}, {5, 7}, {o.Size - 4, -1}, {0, -1}} {
			want := loraFiles[o.Name][part[0]:]
			if part[1] >= 0 {
				want = want[:part[1]]
			}
			if got := readPart(t, r, o, part[0], part[1]); got != want {
				t.Errorf("%s %v: %q", o.Name, part, got)
			}
		}
	}
	hub.Intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("Range")
		return false
	}
	for _, o := range l.Objects {
		_, err := r.Open(t.Context(), o, 1, 1)
		refusal(t, err, source.URI, NoRange, "no part")
	}
}

func TestHubRefusals(t *testing.T) {
	_, source, options := startHub(t)
	for _, c := range []struct {
		name   string
		change func(*storage.Source)
		reason Reason
		words  string
	}{
		{"no repository", func(s *storage.Source) { s.Bucket = "org/none" }, NotFound, "check that the token"},
		{"no token", func(s *storage.Source) { s.Fields = nil }, NotFound, "set a token"},
		{"a wrong token", func(s *storage.Source) { s.Fields["token"] = "hf_secret_too" }, NotFound, "is private"},
		{"no revision", func(s *storage.Source) { s.Revision = "v9" }, NotFound, `no revision "v9"`},
		{"no file", func(s *storage.Source) { s.Revision = "bare" }, Empty, "no file"},
		{"no file for include", func(s *storage.Source) { s.Fields["include"] = "*.bin" }, Empty, "include"},
		{"no folder", func(s *storage.Source) { s.Path = "none" }, Empty, "no file"},
		{"no owner", func(s *storage.Source) { s.Bucket = "lora" }, Invalid, "OWNER"},
		{"too many names", func(s *storage.Source) { s.Bucket = "a/b/c" }, Invalid, "OWNER"},
		{"a name that leaves", func(s *storage.Source) { s.Bucket = "../b" }, Invalid, "OWNER"},
		{"no Hub", func(s *storage.Source) { s.Fields["endpoint"] = "hub.test" }, Invalid, "endpoint"},
		{"another Hub", func(s *storage.Source) { s.Fields["endpoint"] = "http://none.test" }, Invalid, "link-local"},
	} {
		s := source
		s.Fields = maps.Clone(source.Fields)
		c.change(&s)
		r, err := openHub(t.Context(), s, options)
		if err == nil {
			_, err = r.List(t.Context())
		}
		t.Run(c.name, func(t *testing.T) { refusal(t, err, source.URI, c.reason, c.words) })
	}
	gated := hubSource("hf://org/gated", "org/gated", "")
	r, err := openHub(t.Context(), gated, options)
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Open(t.Context(), l.Objects[0], 0, -1)
	refusal(t, err, gated.URI, Denied, "accept its conditions")
}

func TestHubStatusCodes(t *testing.T) {
	hub, source, options := startHub(t)
	r, err := openHub(t.Context(), source, options)
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	big := l.Objects[slices.IndexFunc(l.Objects, func(o Object) bool { return o.Digest != "" })]
	for _, c := range []struct {
		status int
		cdn    bool
		header [2]string
		reason Reason
		after  int
	}{
		{status: 401, reason: Denied},
		{status: 403, reason: Denied},
		{status: 404, reason: NotFound},
		{status: 400, reason: Invalid},
		{status: 416, reason: Changed},
		{status: 429, reason: Busy, header: [2]string{"Retry-After", "7"}, after: 7},
		{status: 429, reason: Busy, header: [2]string{"RateLimit", `"api";r=0;t=55`}, after: 55},
		{status: 429, reason: Busy, header: [2]string{"Retry-After", "-3"}},
		{status: 500, reason: Busy},
		{status: 503, reason: Busy},
		{status: 504, reason: Busy},
		{cdn: true, status: 403, reason: Busy}, // the link has expired
		{cdn: true, status: 404, reason: Busy},
		{cdn: true, status: 503, reason: Busy},
	} {
		hub.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if c.cdn != (r.Host == "cdn.hub.test") {
				return false
			}
			if c.header[0] != "" {
				w.Header().Set(c.header[0], c.header[1])
			}
			http.Error(w, "hf_secret "+r.Header.Get("Authorization")+r.URL.RawQuery, c.status)
			return true
		}
		t.Run(fmt.Sprintf("%d at the CDN: %t", c.status, c.cdn), func(t *testing.T) {
			if !c.cdn {
				_, err := r.List(t.Context())
				if pause := refusal(t, err, source.URI, c.reason, ""); pause != c.after {
					t.Errorf("again after %d s", pause)
				}
			}
			_, err := r.Open(t.Context(), big, 0, -1)
			refusal(t, err, source.URI, c.reason, "")
		})
	}
	hub.Intercept = nil
	if got := readPart(t, r, big, 0, -1); got != large {
		t.Error("nothing is read after failures")
	}
}

// TestHubOddAnswers has answers that no Hub should give.
func TestHubOddAnswers(t *testing.T) {
	hub, source, options := startHub(t)
	r, err := openHub(t.Context(), source, options)
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	big := l.Objects[slices.IndexFunc(l.Objects, func(o Object) bool { return o.Digest != "" })]
	page := func(text, link string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/tree/") {
				w.Header().Set("Link", link)
				fmt.Fprint(w, text)
				return true
			}
			return false
		}
	}
	list := func() error {
		_, err := r.List(t.Context())
		return err
	}
	hub.Intercept = page(`<html>`, "")
	refusal(t, list(), source.URI, Busy, "no answer of a Hub")
	hub.Intercept = page(`[]`, `</api/models/org/lora/tree/x>; rel="next"`)
	refusal(t, list(), source.URI, Busy, "no end")
	hub.Intercept = page(`[]`, `<http://elsewhere.test/hf_secret>; rel="next"`)
	refusal(t, list(), source.URI, Invalid, "link-local")
	hub.Intercept = page(`[{"type":"file","path":"a"}]`, `<::>; rel="next", </x>; rel="prev"`)
	if l, err := r.List(t.Context()); err != nil || len(l.Objects) != 1 || l.Objects[0].Size != -1 || l.Objects[0].Version == "" {
		t.Errorf("%+v, %v", l, err)
	}
	hub.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/resolve/") {
			w.Header().Set("X-Repo-Commit", "c")
			w.Header().Set("Etag", `"`+strings.Repeat("0", 64)+`"`)
			fmt.Fprint(w, "other")
			return true
		}
		return false
	}
	_, err = r.Open(t.Context(), big, 0, -1)
	refusal(t, err, source.URI, Changed, "has changed")
	for _, name := range []string{"../a", "/a", "a/../../b", ".."} {
		_, err = r.Open(t.Context(), Object{Key: name}, 0, -1)
		refusal(t, err, source.URI, Unsafe, "leaves the repository")
	}
	hub.Intercept = func(w http.ResponseWriter, r *http.Request) bool { // a connection that is cut in half
		if r.Host != "cdn.hub.test" {
			return false
		}
		w.Header().Set("Content-Length", "16000")
		_, _ = io.WriteString(w, large[:8000])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	body, err := r.Open(t.Context(), big, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	half, err := io.ReadAll(body)
	refusal(t, err, source.URI, Busy, "connection broke")
	if !bytes.Equal(half, []byte(large[:8000])) {
		t.Errorf("%d bytes before the end", len(half))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestHubKeepsTheAgentsToken tests that a source which names another Hub does not get the token of
// the agent.
func TestHubKeepsTheAgentsToken(t *testing.T) {
	hub, source, options := startHub(t)
	options.HubToken = "hf_secret"
	for _, c := range []struct {
		fields map[string]string
		token  string
	}{
		{nil, "Bearer hf_secret"},
		{map[string]string{"endpoint": "http://hub.test"}, "Bearer hf_secret"},
		{map[string]string{"endpoint": "http://cdn.hub.test"}, ""},
		{map[string]string{"endpoint": "http://cdn.hub.test", "token": "own"}, "Bearer own"},
	} {
		source.Fields = c.fields
		r, err := openHub(t.Context(), source, options)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = r.List(t.Context())
		if seen := hub.Seen(); len(seen) == 0 || seen[0].Authorization != c.token {
			t.Errorf("%v: %+v", c.fields, seen)
		}
	}
}

func TestNextPage(t *testing.T) {
	at, _ := url.Parse("http://hub.test/api/x")
	for header, want := range map[string]string{
		`<http://hub.test/api/x?cursor=1>; rel="next"`: "http://hub.test/api/x?cursor=1",
		`</y>; rel="prev", </z>; rel=next`:             "http://hub.test/z",
		`</y>; title="a"; rel="next"`:                  "http://hub.test/y",
		`</y>`:                                         "",
		`/y; rel="next"`:                               "",
		``:                                             "",
	} {
		r := &http.Response{Header: http.Header{"Link": {header}}, Request: &http.Request{URL: at}}
		got := ""
		if u := nextPage(r); u != nil {
			got = u.String()
		}
		if got != want {
			t.Errorf("%s: %q", header, got)
		}
	}
}
