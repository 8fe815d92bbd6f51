package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

const (
	// maxPage is the maximum size of an answer. A metrics page of vLLM has 50 to 80 KB.
	maxPage = 16 << 20
	// accept is the header Accept of scrapes.
	accept = "text/plain;version=0.0.4, application/json"
)

// errStatus is an HTTP status other than 200, as an error.
type errStatus int

func (e errStatus) Error() string {
	if e == http.StatusUnauthorized || e == http.StatusForbidden {
		return fmt.Sprintf("the engine answers %d: %s", int(e), engineclient.WantsToken)
	}
	return fmt.Sprintf("the engine answers %d", int(e))
}

// absent reports whether an error means that the engine does not have the page.
func absent(err error) bool {
	var status errStatus
	return errors.As(err, &status) &&
		(status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented)
}

// page is a page that was read.
type page struct {
	body   []byte
	media  string // media type
	buffer []byte // memory of the body, which must be returned to [Scraper.buffers]
}

// get reads a page.
func (l *loop) get(ctx context.Context, of engine.Page) (is page, err error) {
	status, err := 0, errRefused
	if l.plain && !l.refused {
		status, is, err = l.getPlainly(ctx, of)
		l.refused = errors.Is(err, errRefused)
	}
	if errors.Is(err, errRefused) {
		status, is, err = l.getByClient(ctx, of)
	}
	if err == nil && status != http.StatusOK {
		l.buffers.put(is.buffer)
		is, err = page{}, errStatus(status)
	}
	if err != nil && !errors.As(err, new(*url.Error)) { // which has the page, too
		err = fmt.Errorf("GET %s: %w", of.Path, err)
	}
	if err != nil {
		return page{}, err
	}
	is.media, _, _ = mime.ParseMediaType(is.media)
	return is, nil
}

// getByClient reads a page with net/http.
func (l *loop) getByClient(ctx context.Context, of engine.Page) (status int, is page, err error) {
	request, err := l.Access.With(l.Token).Over(l.TLS, l.H2C).Request(ctx, http.MethodGet, l.where(of), l.Host, of.Path, nil)
	if err != nil {
		return 0, page{}, err
	}
	request.Header.Set("Accept", accept)
	response, err := l.client.Do(request)
	if err != nil {
		return 0, page{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxPage))
		return response.StatusCode, page{}, nil
	}
	body := l.buffers.get()
	if n := response.ContentLength; n > 0 && n <= maxPage {
		body = slices.Grow(body, int(n))
	}
	body, err = readAll(body, response.Body)
	if err != nil {
		l.buffers.put(body)
		return 0, page{}, err
	}
	return response.StatusCode, page{body, response.Header.Get("Content-Type"), body}, nil
}

// readAll appends the contents of r to dst. It reads at most maxPage bytes.
func readAll(dst []byte, r io.Reader) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, max(len(dst), 32<<10))
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case errors.Is(err, io.EOF):
			return dst, nil
		case err != nil:
			return dst, err
		case len(dst) > maxPage:
			return dst, errTooLong
		}
	}
}
