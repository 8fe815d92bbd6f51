package fetch

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/control/agent/storage"
)

const (
	// publicHub is where repositories are if neither the flags nor the source name another Hub.
	publicHub = "https://huggingface.co"
	// maxHubFiles limits the files of a repository, so that a listing without end does not fill
	// memory.
	maxHubFiles = 100_000
	// maxHubPage limits one page of a listing, in bytes.
	maxHubPage = 64 << 20
)

// hub reads a model repository of a Hugging Face Hub, with the HTTP calls of huggingface_hub's
// snapshot_download: the revision is resolved to a commit, and all files are those of that commit.
type hub struct {
	src       storage.Source
	endpoint  *url.URL
	transport *http.Transport
	client    *http.Client // sends the token to the endpoint's server, and to no other
	token     bool         // whether there is one
	include   []*glob

	mu     sync.Mutex
	commit string // of the last listing; empty before it
}

// openHub opens hf://OWNER/REPO[:REVISION]. The source's fields are token, endpoint, and include,
// which has globs as huggingface_hub's allow_patterns, separated by commas. The agent's own token
// is for the agent's own Hub.
func openHub(_ context.Context, src storage.Source, opts Options) (Remote, error) {
	own, token := strings.TrimSuffix(src.Fields["endpoint"], "/"), src.Fields["token"]
	theirs := strings.TrimSuffix(cmp.Or(opts.HubEndpoint, publicHub), "/")
	if token == "" && !src.CustomServer && (own == "" || own == theirs) {
		token = opts.HubToken
	}
	endpoint, err := url.Parse(cmp.Or(own, theirs))
	if err != nil || endpoint.Host == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https" {
		return nil, failure(src, Invalid, "the Hub's endpoint is no URL; write https://HOST")
	}
	owner, repo, ok := strings.Cut(src.Bucket, "/")
	if !ok || owner == "" || repo == "" || strings.Contains(repo, "/") || hasParent(src.Bucket) {
		return nil, failure(src, Invalid, "the URI names no repository; write hf://OWNER/REPO or hf://OWNER/REPO:REVISION")
	}
	h := &hub{src: src, endpoint: endpoint, token: token != ""}
	for pattern := range strings.SplitSeq(src.Fields["include"], ",") {
		if pattern = strings.TrimSpace(pattern); pattern != "" {
			h.include = append(h.include, newGlob(pattern))
		}
	}
	if h.transport, err = newTransport(src, opts); err != nil {
		return nil, err
	}
	h.client = &http.Client{Transport: &hostToken{checked{h.transport}, endpoint, token}}
	return h, nil
}

// hostToken adds a bearer token to requests to one server. http.Client would send a header to
// subdomains of the server's host, too, when it follows redirects.
type hostToken struct {
	next   http.RoundTripper
	server *url.URL
	token  string
}

func (t *hostToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.token != "" && sameServer(r.URL, t.server) {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+t.token)
	}
	return t.next.RoundTrip(r)
}

func (h *hub) Close() error {
	h.transport.CloseIdleConnections()
	return nil
}

// hubFile is an entry of a repository's tree.
type hubFile struct {
	Type string
	Path string
	Size *int64
	OID  string
	LFS  *struct {
		OID  string
		Size *int64
	}
}

func (h *hub) List(ctx context.Context) (Listing, error) {
	commit, err := h.resolve(ctx)
	if err != nil {
		return Listing{}, err
	}
	files, err := h.tree(ctx, commit)
	if err != nil {
		return Listing{}, err
	}
	var l Listing
	for _, f := range files {
		if f.Type != "file" {
			continue
		}
		if h.src.Schema != "" && f.Path == path.Clean(h.src.Schema) {
			l.Schema = new(f.object(path.Base(f.Path), commit))
		}
		name, ok := below(f.Path, h.src.Path)
		if ok && (h.include == nil || slices.ContainsFunc(h.include, func(g *glob) bool { return g.match(f.Path) })) {
			l.Objects = append(l.Objects, f.object(name, commit))
		}
	}
	switch {
	case len(l.Objects) == 0 && len(files) > 0 && h.include != nil:
		return Listing{}, failure(h.src, Empty, "no file of the repository matches include; check its patterns")
	case len(l.Objects) == 0:
		return Listing{}, failure(h.src, Empty, "there is no file; check the path and the revision")
	case h.src.Schema != "" && l.Schema == nil:
		return Listing{}, failure(h.src, NotFound, "the repository has no file %q; check the path of the schema", h.src.Schema)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commit = commit
	return l, nil
}

// object returns a file of a tree. Its version is the id of its content, which is also its ETag:
// for files of Git LFS, their SHA-256.
func (f hubFile) object(name, commit string) Object {
	o := Object{Name: name, Key: f.Path, Size: -1, Version: f.OID}
	if f.Size != nil {
		o.Size = *f.Size
	}
	if f.LFS != nil {
		sum := strings.TrimPrefix(f.LFS.OID, "sha256:")
		o.Version = sum
		if len(sum) == 64 {
			o.Digest = "sha256:" + sum
		}
		if f.LFS.Size != nil {
			o.Size = *f.LFS.Size
		}
	}
	if o.Version == "" {
		o.Version = commit + ":" + f.Path
	}
	return o
}

// below returns a path relative to a folder, where "" is the root.
func below(name, folder string) (string, bool) {
	if folder = strings.Trim(folder, "/"); folder == "" {
		return name, true
	}
	return strings.CutPrefix(name, folder+"/")
}

// resolve returns the commit of the source's revision.
func (h *hub) resolve(ctx context.Context) (string, error) {
	r, err := h.get(ctx, h.url("api/models/"+h.src.Bucket+"/revision/"+url.PathEscape(h.revision()), ""), nil)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	var info struct{ SHA string }
	if err := h.decode(ctx, r, &info); err != nil {
		return "", err
	}
	if info.SHA == "" {
		return "", failure(h.src, Busy, "the Hub names no commit for the revision; check the Hub's endpoint")
	}
	return info.SHA, nil
}

func (h *hub) revision() string { return cmp.Or(h.src.Revision, "main") }

// tree returns all entries of a commit, from all pages.
func (h *hub) tree(ctx context.Context, commit string) ([]hubFile, error) {
	next := h.url("api/models/"+h.src.Bucket+"/tree/"+url.PathEscape(commit), "recursive=true&expand=false")
	var files []hubFile
	for seen := make(map[string]bool); next != nil; {
		seen[next.String()] = true
		r, err := h.get(ctx, next, nil)
		if err != nil {
			return nil, err
		}
		var page []hubFile
		err = h.decode(ctx, r, &page)
		r.Body.Close()
		if err != nil {
			return nil, err
		}
		if files = append(files, page...); len(files) > maxHubFiles {
			return nil, failure(h.src, Invalid, "the repository has more than %d files; split it", maxHubFiles)
		}
		if next = nextPage(r); next != nil && seen[next.String()] {
			return nil, failure(h.src, Busy, "the Hub's list of files has no end; check the Hub's endpoint")
		}
	}
	return files, nil
}

// nextPage returns the URL with rel="next" of a Link header (RFC 8288); nil if there is none.
func nextPage(r *http.Response) *url.URL {
	for _, line := range r.Header.Values("Link") {
		for link := range strings.SplitSeq(line, ",") {
			target, params, ok := strings.Cut(strings.TrimSpace(link), ">")
			rel := strings.ReplaceAll(strings.ReplaceAll(params, `"`, ""), " ", "")
			if !ok || !strings.HasPrefix(target, "<") || !slices.Contains(strings.Split(rel, ";"), "rel=next") {
				continue
			}
			if u, err := r.Request.URL.Parse(target[1:]); err == nil {
				return u
			}
		}
	}
	return nil
}

func (h *hub) Open(ctx context.Context, o Object, offset, length int64) (io.ReadCloser, error) {
	if hasParent(o.Key) || strings.HasPrefix(o.Key, "/") {
		return nil, failure(h.src, Unsafe, "the name %q leaves the repository; rename the file", o.Name)
	}
	if length == 0 {
		return http.NoBody, nil
	}
	h.mu.Lock()
	commit := h.commit
	h.mu.Unlock()
	if commit == "" { // an object of another Remote's listing
		var err error
		if commit, err = h.resolve(ctx); err != nil {
			return nil, err
		}
	}
	elements := strings.Split(o.Key, "/")
	for i, e := range elements {
		elements[i] = url.PathEscape(e)
	}
	header := http.Header{"Accept-Encoding": {"identity"}}
	part := setRange(header, o, offset, length)
	target := h.url(h.src.Bucket+"/resolve/"+url.PathEscape(commit)+"/"+strings.Join(elements, "/"), "")
	request, cancel := context.WithCancelCause(ctx)
	r, err := h.get(request, target, header)
	if err == nil {
		if tag := contentID(r); len(tag) == len(o.Version) && tag != o.Version {
			err = failure(h.src, Changed, "the file %q has changed since it was listed; the load starts anew", o.Name)
		} else if part {
			err = checkRange(h.src, r, offset)
		}
		if err != nil {
			r.Body.Close()
		}
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return body(ctx, cancel, h.src, r.Body, expected(o, offset, length)), nil
}

// setRange requests a part of an object, and reports whether that is not the whole. If the size is
// known the range has an end, which some servers require.
func setRange(header http.Header, o Object, offset, length int64) bool {
	if offset == 0 && length < 0 {
		return false
	}
	header.Set("Range", rangeHeader(offset, expected(o, offset, length)))
	return true
}

// checkRange returns an error unless an answer is a part from offset.
func checkRange(src storage.Source, r *http.Response, offset int64) error {
	first, _, ok := contentRange(r.Header.Get("Content-Range"))
	switch {
	case r.StatusCode == http.StatusOK:
		return failure(src, NoRange, "the server serves no part of an object; the load reads it whole")
	case !ok || first != offset:
		return failure(src, Invalid, "the server answers with another part than requested; use another server")
	}
	return nil
}

// contentID returns the id of a file's content from the headers of the Hub's response; redirects to
// a CDN have it too. It is empty if there is none.
func contentID(r *http.Response) string {
	for ; r != nil; r = r.Request.Response {
		if tag := cmp.Or(r.Header.Get("X-Linked-Etag"), r.Header.Get("Etag")); r.Header.Get("X-Repo-Commit") != "" && tag != "" {
			return strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)
		}
	}
	return ""
}

// url returns the URL of an escaped path at the Hub.
func (h *hub) url(escaped, query string) *url.URL {
	u := h.endpoint.JoinPath(escaped)
	u.RawQuery = query
	return u
}

// get requests a URL. Its errors are *[Error], or that of the context.
func (h *hub) get(ctx context.Context, u *url.URL, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, failure(h.src, Invalid, "the Hub's endpoint is no URL; write https://HOST")
	}
	maps.Copy(request.Header, header)
	r, err := h.client.Do(request)
	if err != nil {
		return nil, ofTransport(ctx, h.src, err)
	}
	if r.StatusCode == http.StatusOK || r.StatusCode == http.StatusPartialContent {
		return r, nil
	}
	defer r.Body.Close()
	return nil, h.refused(r)
}

func (h *hub) decode(ctx context.Context, r *http.Response, to any) error {
	text, err := io.ReadAll(io.LimitReader(r.Body, maxHubPage))
	if err != nil {
		return ofTransport(ctx, h.src, err)
	}
	if json.Unmarshal(text, to) != nil {
		return failure(h.src, Busy, "the server's answer is no answer of a Hub; check the Hub's endpoint")
	}
	return nil
}

// refused returns why a request was refused. The Hub answers 401 for repositories that do not
// exist, too, unless there is a token that may read them.
func (h *hub) refused(r *http.Response) error {
	advice := "set a token that may read it"
	if h.token {
		advice = "check that the token is valid and may read it"
	}
	status := r.StatusCode
	switch r.Header.Get("X-Error-Code") {
	case "GatedRepo":
		return failure(h.src, Denied, "the repository is gated; accept its conditions on its page with the account of the token")
	case "RevisionNotFound":
		return failure(h.src, NotFound, "the repository has no revision %q; correct the branch, tag or commit", h.revision())
	case "EntryNotFound":
		return failure(h.src, Changed, "the repository no longer has a file that was listed; the load starts anew")
	case "RepoNotFound":
		return failure(h.src, NotFound, "the repository does not exist or is private; correct its name, or %s", advice)
	}
	pause := hubPause(r.Header)
	switch fromHub := sameServer(r.Request.URL, h.endpoint); {
	case status == http.StatusRequestedRangeNotSatisfiable:
		return failure(h.src, Changed, "a file has changed its size since it was listed; the load starts anew")
	case fromHub && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		return failure(h.src, Denied, "the Hub refuses access to the repository (%d); %s", status, advice)
	case !fromHub && status < 500: // a link to the CDN has expired; the next attempt gets a new one
		e := failure(h.src, Busy, "the Hub's CDN refuses the request (%d); the load is tried again", status)
		e.RetryAfter = pause
		return e
	}
	return ofStatus(h.src, status, "", pause)
}

// hubPause returns the pause in seconds before a retry, from Retry-After or from t in
// RateLimit: "api";r=0;t=55.
func hubPause(header http.Header) int {
	if n := seconds(header.Get("Retry-After"), time.Now()); n > 0 {
		return n
	}
	for part := range strings.SplitSeq(header.Get("RateLimit"), ";") {
		if t, ok := strings.CutPrefix(strings.TrimSpace(part), "t="); ok {
			return seconds(t, time.Now())
		}
	}
	return 0
}
