// Package fakehub serves the HTTP calls of a Hugging Face Hub that clients need to download model
// repositories. The client huggingface_hub accepts it.
package fakehub

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Repo is a model repository. Its files must not change while it is served.
type Repo struct {
	// Revisions has the names of branches and tags, with slashes or without, and the files of each
	// by their paths.
	Revisions map[string]map[string][]byte
	// Token is the token that may read the repository; empty if it is public. Requests without the
	// token get the answer for a missing repository.
	Token string
	// Gated means that anyone can list the files, but only a request with Token can read them.
	Gated bool
}

// Hub serves repositories. Files of LargeFrom bytes and more are in Git LFS: the Hub redirects to a
// CDN, whose links have a signature.
type Hub struct {
	// Repos has the repositories by OWNER/NAME.
	Repos map[string]Repo
	// CDN is the URL of a server of [Hub.ServeCDN]. If it is empty the Hub serves large files.
	CDN string
	// LargeFrom is the size from which files are in Git LFS; 0 means 1024 bytes.
	LargeFrom int
	// PageSize is the number of files of a page; 0 means 1000.
	PageSize int
	// Intercept answers a request in place of the Hub or the CDN if it returns true.
	Intercept func(w http.ResponseWriter, r *http.Request) bool

	mu   sync.Mutex
	seen []Request
}

// Request is a request that was served.
type Request struct {
	Path, Range, Authorization string
	CDN                        bool
}

// Seen returns the requests since the last call, in order.
func (h *Hub) Seen() []Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	h.seen = nil
	return seen
}

func (h *Hub) record(r *http.Request, cdn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, Request{r.URL.EscapedPath(), r.Header.Get("Range"), r.Header.Get("Authorization"), cdn})
}

// Commit returns the id of the commit that a revision's files have.
func Commit(files map[string][]byte) string {
	sum := sha1.New() //nolint:gosec // git's
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(sum, "%s %s\n", blobID(files[name]), name)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// blobID is the id of a git blob.
func blobID(content []byte) string {
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content)) //nolint:gosec // git's
	return hex.EncodeToString(sum[:])
}

// pointer is what git stores of a file in LFS.
func pointer(content []byte) []byte {
	return fmt.Appendf(nil, "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", sha(content), len(content))
}

func sha(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func (h *Hub) large(content []byte) bool {
	if h.LargeFrom == 0 {
		return len(content) >= 1024
	}
	return len(content) >= h.LargeFrom
}

// refuse answers with an error as the Hub does.
func refuse(w http.ResponseWriter, status int, code, message string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	w.Header().Set("X-Error-Message", message)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": message})
}

// ServeHTTP serves the Hub.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.record(r, false)
	if h.Intercept != nil && h.Intercept(w, r) {
		return
	}
	path := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	for i, element := range path {
		decoded, err := url.PathUnescape(element)
		if err != nil {
			http.Error(w, "bad path", http.StatusBadRequest)
			return
		}
		path[i] = decoded
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "read only", http.StatusMethodNotAllowed)
		return
	}
	api := len(path) >= 4 && path[0] == "api" && path[1] == "models"
	if api {
		path = path[2:]
	}
	if len(path) < 2 {
		http.NotFound(w, r)
		return
	}
	id := path[0] + "/" + path[1]
	repo, ok := h.Repos[id]
	if !ok || repo.Token != "" && r.Header.Get("Authorization") != "Bearer "+repo.Token && !repo.Gated {
		message := "Repository not found"
		if r.Header.Get("Authorization") == "" {
			refuse(w, http.StatusUnauthorized, "RepoNotFound", message)
		} else {
			refuse(w, http.StatusNotFound, "RepoNotFound", message)
		}
		return
	}
	call, rest := "", []string{}
	if len(path) > 2 {
		call, rest = path[2], path[3:]
	}
	revision := "main"
	if len(rest) > 0 {
		revision = rest[0]
	}
	files, ok := repo.files(revision)
	if !ok {
		refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+revision)
		return
	}
	switch {
	case api && (call == "" || call == "revision"):
		h.info(w, id, files)
	case api && call == "tree":
		h.tree(w, r, files)
	case !api && call == "resolve" && len(rest) > 1:
		if repo.Gated && r.Header.Get("Authorization") != "Bearer "+repo.Token {
			refuse(w, http.StatusForbidden, "GatedRepo", "Access to model "+id+" is restricted")
			return
		}
		h.file(w, r, files, strings.Join(rest[1:], "/"))
	default:
		http.NotFound(w, r)
	}
}

// files returns those of a branch, a tag or a commit.
func (r Repo) files(revision string) (map[string][]byte, bool) {
	if files, ok := r.Revisions[revision]; ok {
		return files, true
	}
	for _, files := range r.Revisions {
		if Commit(files) == revision {
			return files, true
		}
	}
	return nil, false
}

func (h *Hub) info(w http.ResponseWriter, id string, files map[string][]byte) {
	type sibling struct {
		Name string `json:"rfilename"`
	}
	siblings := []sibling{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		siblings = append(siblings, sibling{name})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"_id": "0", "id": id, "modelId": id, "sha": Commit(files), "private": false, "siblings": siblings, "tags": []string{},
	})
}

// tree lists files and folders, a page at a time.
func (h *Hub) tree(w http.ResponseWriter, r *http.Request, files map[string][]byte) {
	type lfs struct {
		OID         string `json:"oid"`
		Size        int    `json:"size"`
		PointerSize int    `json:"pointerSize"`
	}
	type entry struct {
		Type string `json:"type"`
		OID  string `json:"oid"`
		Size int    `json:"size"`
		Path string `json:"path"`
		LFS  *lfs   `json:"lfs,omitempty"`
	}
	entries := []entry{}
	folders := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for i, c := range name {
			if c == '/' && !folders[name[:i]] {
				folders[name[:i]] = true
				entries = append(entries, entry{Type: "directory", OID: blobID(nil), Path: name[:i]})
			}
		}
		content := files[name]
		e := entry{Type: "file", OID: blobID(content), Size: len(content), Path: name}
		if h.large(content) {
			p := pointer(content)
			e.OID, e.LFS = blobID(p), &lfs{sha(content), len(content), len(p)}
		}
		entries = append(entries, e)
	}
	size := h.PageSize
	if size == 0 {
		size = 1000
	}
	start, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	start = min(max(start, 0), len(entries))
	end := min(start+size, len(entries))
	if end < len(entries) {
		query := r.URL.Query()
		query.Set("cursor", strconv.Itoa(end))
		w.Header().Set("Link", fmt.Sprintf("<http://%s%s?%s>; rel=\"next\"", r.Host, r.URL.EscapedPath(), query.Encode()))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(entries[start:end])
}

// file serves a file, or redirects to the CDN.
func (h *Hub) file(w http.ResponseWriter, r *http.Request, files map[string][]byte, name string) {
	content, ok := files[name]
	if !ok {
		refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	w.Header().Set("X-Repo-Commit", Commit(files))
	if !h.large(content) {
		w.Header().Set("Etag", `"`+blobID(content)+`"`)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
		return
	}
	w.Header().Set("X-Linked-Etag", `"`+sha(content)+`"`)
	w.Header().Set("X-Linked-Size", strconv.Itoa(len(content)))
	if h.CDN == "" {
		w.Header().Set("Etag", `"`+sha(content)+`"`)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
		return
	}
	w.Header().Set("Location", h.CDN+"/"+sha(content)+"?Signature="+signature(content))
	w.WriteHeader(http.StatusFound)
}

// signature is the secret of a link to the CDN.
func signature(content []byte) string { return "signed-" + sha([]byte(sha(content)))[:16] }

// ServeCDN serves the files in LFS. A CDN refuses requests with a token for the Hub, as S3 does.
func (h *Hub) ServeCDN(w http.ResponseWriter, r *http.Request) {
	h.record(r, true)
	if h.Intercept != nil && h.Intercept(w, r) {
		return
	}
	if r.Header.Get("Authorization") != "" {
		http.Error(w, "Only one auth mechanism allowed", http.StatusBadRequest)
		return
	}
	for _, repo := range h.Repos {
		for _, files := range repo.Revisions {
			for _, content := range files {
				if r.URL.Path == "/"+sha(content) && r.URL.Query().Get("Signature") == signature(content) {
					w.Header().Set("Etag", `"of-the-cdn"`)
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
					return
				}
			}
		}
	}
	http.Error(w, "AccessDenied", http.StatusForbidden)
}
