package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/control/agent/storage"
)

// web is a file of a web server.
type web struct {
	src       storage.Source
	client    *http.Client
	transport *http.Transport
}

func openWeb(_ context.Context, src storage.Source, opts Options) (Remote, error) {
	transport, err := newTransport(src, opts)
	if err != nil {
		return nil, err
	}
	w := &web{src: src, transport: transport}
	w.client = &http.Client{Transport: checked{transport}, CheckRedirect: w.checkRedirect}
	return w, nil
}

func (w *web) Close() error {
	w.transport.CloseIdleConnections()
	return nil
}

// checkRedirect follows redirects, but never from https to http. Credentials are not sent to
// another server.
func (w *web) checkRedirect(next *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return failure(w.src, Invalid, "the server redirects more than %d times; correct the source", maxRedirects)
	}
	if next.URL.Scheme != "https" && (next.URL.Scheme != "http" || via[len(via)-1].URL.Scheme == "https") {
		return failure(w.src, Invalid, "the server redirects from https to %s; correct the source", next.URL.Scheme)
	}
	next.Header.Del("Referer") // it may have a signature in its query
	if !sameServer(next.URL, via[0].URL) {
		w.setCredentials(next, false)
	}
	return nil
}

func sameServer(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host)
}

// setCredentials sets the headers and the password of the source, or removes them.
func (w *web) setCredentials(r *http.Request, on bool) {
	for field, value := range w.src.Fields {
		name, ok := strings.CutPrefix(field, "headers.")
		if !ok {
			continue
		}
		if base, index, found := cutLast(name, "."); found {
			if _, err := strconv.Atoi(index); err == nil {
				name = base // one of a list
			}
		}
		switch {
		case !on:
			r.Header.Del(name)
		case strings.EqualFold(name, "Host"):
			r.Host = value
		default:
			r.Header.Add(name, value)
		}
	}
	if user := w.src.Fields["user"]; user != "" && on {
		r.SetBasicAuth(user, w.src.Fields["password"])
	}
	if !on {
		r.Header.Del("Authorization")
		r.Host = ""
	}
}

func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}

// get sends a GET. The answer has the status 200, 206 or 416; the caller must call cancel after it
// has closed the body.
func (w *web) get(ctx context.Context, address string, header http.Header) (*http.Response, context.CancelCauseFunc, error) {
	if query := w.src.Fields["query"]; query != "" {
		address += "?" + query
	}
	request, cancel := context.WithCancelCause(ctx)
	r, err := http.NewRequestWithContext(request, http.MethodGet, address, nil)
	if err != nil {
		cancel(nil)
		return nil, nil, failure(w.src, Invalid, "this is no valid URL; correct the source")
	}
	r.Header = header
	r.Header.Set("Accept-Encoding", "identity")
	w.setCredentials(r, true)
	answer, err := w.client.Do(r)
	if err != nil {
		cancel(nil)
		return nil, nil, ofTransport(ctx, w.src, err)
	}
	switch answer.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
		return answer, cancel, nil
	}
	answer.Body.Close()
	cancel(nil)
	return nil, nil, ofStatus(w.src, answer.StatusCode, "", seconds(answer.Header.Get("Retry-After"), time.Now()))
}

// List requests the first byte instead of HEAD, because a signed URL permits only GET. The answer
// shows whether the server serves parts.
func (w *web) List(ctx context.Context) (Listing, error) {
	o, err := w.stat(ctx, w.src.Path)
	if err != nil {
		return Listing{}, err
	}
	// Some servers name the file in the query.
	kind := o.Name
	if query := w.src.Fields["query"]; query != "" && path.Ext(kind) == "" {
		kind = query
	}
	listing := Listing{Objects: []Object{o}}
	if listing.Objects[0].Archive, err = archiveOf(w.src, kind); err != nil {
		return Listing{}, err
	}
	listing.Single = listing.Objects[0].Archive == nil
	if w.src.Schema != "" {
		schema, err := w.stat(ctx, w.src.Schema)
		if err != nil {
			return Listing{}, err
		}
		listing.Schema = &schema
	}
	return listing, nil
}

// stat returns the object at a URL.
func (w *web) stat(ctx context.Context, address string) (Object, error) {
	u, err := url.Parse(address)
	if err != nil || strings.HasSuffix(u.Path, "/") || u.Path == "" {
		return Object{}, failure(w.src, Invalid, "the URL names no file, and web servers list no folders; name a file or an archive")
	}
	answer, cancel, err := w.get(ctx, address, http.Header{"Range": {"bytes=0-0"}})
	if err != nil {
		return Object{}, err
	}
	defer cancel(nil)
	defer answer.Body.Close()
	o := Object{Name: path.Base(u.Path), Key: address, Size: answer.ContentLength, Version: version(answer)}
	if answer.StatusCode != http.StatusOK {
		_, total, ok := contentRange(answer.Header.Get("Content-Range"))
		if !ok {
			return Object{}, failure(w.src, Invalid, "the server answers a range without Content-Range; use another server")
		}
		o.Size = total
	}
	return o, nil
}

// version returns a strong ETag, or the time of modification if that is a minute older than the
// answer (RFC 9110, 8.8.2.2).
func version(answer *http.Response) string {
	if tag := answer.Header.Get("ETag"); tag != "" {
		if strings.HasPrefix(tag, `"`) {
			return tag
		}
		return ""
	}
	modified := answer.Header.Get("Last-Modified")
	at, err := http.ParseTime(modified)
	now, failed := http.ParseTime(answer.Header.Get("Date"))
	if err != nil || failed != nil || now.Sub(at) < time.Minute {
		return ""
	}
	return modified
}

// contentRange parses a Content-Range: the first byte, or -1, and the total length, or -1.
func contentRange(header string) (first, total int64, ok bool) {
	rest, ok := strings.CutPrefix(header, "bytes ")
	part, whole, found := strings.Cut(rest, "/")
	if !ok || !found {
		return 0, 0, false
	}
	first, total = -1, -1
	var err error
	if part != "*" {
		begin, _, _ := strings.Cut(part, "-")
		if first, err = strconv.ParseInt(begin, 10, 64); err != nil {
			return 0, 0, false
		}
	}
	if whole != "*" {
		if total, err = strconv.ParseInt(whole, 10, 64); err != nil || total < 0 {
			return 0, 0, false
		}
	}
	return first, total, true
}

// rangeHeader returns the value of Range; empty for the whole object.
func rangeHeader(offset, length int64) string {
	switch {
	case length >= 0:
		return fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
	case offset > 0:
		return fmt.Sprintf("bytes=%d-", offset)
	}
	return ""
}

// expected returns how many bytes a read of an object yields; -1 if that is unknown.
func expected(o Object, offset, length int64) int64 {
	if length >= 0 || o.Size < 0 {
		return length
	}
	return max(0, o.Size-offset)
}

func (w *web) Open(ctx context.Context, o Object, offset, length int64) (io.ReadCloser, error) {
	if length == 0 {
		return http.NoBody, nil
	}
	header := http.Header{}
	span := rangeHeader(offset, length)
	if span != "" {
		header.Set("Range", span)
	}
	switch {
	case strings.HasPrefix(o.Version, `"`):
		header.Set("If-Match", o.Version)
	case o.Version != "":
		header.Set("If-Unmodified-Since", o.Version)
	}
	answer, cancel, err := w.get(ctx, o.Key, header)
	if err != nil {
		return nil, err
	}
	// A server may ignore If-Match, so its answer is compared, too.
	err = func() error {
		now := answer.Header.Get("ETag")
		if !strings.HasPrefix(o.Version, `"`) {
			now = answer.Header.Get("Last-Modified")
		}
		first, total, ranged := contentRange(answer.Header.Get("Content-Range"))
		switch {
		case o.Version != "" && now != o.Version, answer.StatusCode == http.StatusRequestedRangeNotSatisfiable,
			ranged && o.Size >= 0 && total >= 0 && total != o.Size:
			return failure(w.src, Changed, "the object has changed since it was listed; the load starts anew")
		case span == "" && o.Size >= 0 && answer.ContentLength >= 0 && answer.ContentLength != o.Size:
			return failure(w.src, Changed, "the object has changed its size since it was listed; the load starts anew")
		case span != "" && answer.StatusCode == http.StatusOK:
			return failure(w.src, NoRange, "the server serves no part of an object; the load reads it whole")
		case span != "" && (!ranged || first != offset):
			return failure(w.src, Invalid, "the server answers with another part than requested; use another server")
		}
		return nil
	}()
	if err != nil {
		answer.Body.Close()
		cancel(nil)
		return nil, err
	}
	return body(ctx, cancel, w.src, answer.Body, expected(o, offset, length)), nil
}
