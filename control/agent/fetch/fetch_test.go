package fetch

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/agent/storage"
)

// secrets are words that no error may have. Tests use no others as credentials.
var secrets = []string{"SECRET", "sig="}

// fails checks that an error has a reason, is one sentence that names the URI and what to do, and
// has no secret. It returns the pause that the server asks for, in seconds.
func fails(t *testing.T, err error, reason Reason, words string) (retryAfter int) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("the error is %v (%T), want one with reason %s", err, err, reason)
	}
	if e.Reason != reason || !strings.Contains(e.Message, words) {
		t.Errorf("%s: %s; want %s with %q", e.Reason, e.Message, reason, words)
	}
	for _, secret := range secrets {
		if strings.Contains(e.Message, secret) {
			t.Errorf("the message has the secret %s: %s", secret, e.Message)
		}
	}
	if !strings.Contains(e.Message, "://") || !strings.Contains(e.Message, "; ") || strings.Contains(e.Message, "\n") {
		t.Errorf("the message does not name the URI and what to do in one line: %s", e.Message)
	}
	return e.RetryAfter
}

// resolve returns the source of a load call.
func resolve(t *testing.T, path, key string, entries storage.Entries) storage.Source {
	t.Helper()
	src, ok, err := storage.Resolve(storage.Request{ID: "m", Path: path, Key: key}, entries)
	if err != nil || !ok {
		t.Fatal(path, ok, err)
	}
	return src
}

// open opens a source and closes it when the test ends.
func open(t *testing.T, src storage.Source, opts Options) Remote {
	t.Helper()
	remote, err := Open(t.Context(), src, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remote.Close(); err != nil {
			t.Error(err)
		}
	})
	return remote
}

// list returns the listing of a source.
func list(t *testing.T, remote Remote) Listing {
	t.Helper()
	listing, err := remote.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return listing
}

// read returns a part of an object as text.
func read(remote Remote, o Object, offset, length int64) (string, error) {
	rc, err := remote.Open(context.Background(), o, offset, length)
	if err != nil {
		return "", err
	}
	defer rc.Close()
	text, err := io.ReadAll(rc)
	return string(text), err
}

// tree reads all objects of a listing, by name.
func tree(t *testing.T, remote Remote, listing Listing) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, o := range listing.Objects {
		text, err := read(remote, o, 0, -1)
		if err != nil {
			t.Fatal(o.Name, err)
		}
		if o.Size >= 0 && o.Size != int64(len(text)) {
			t.Errorf("%s has %d bytes, and the listing says %d", o.Name, len(text), o.Size)
		}
		if h, want := NewHash(o.Digest); h != nil {
			io.WriteString(h, text) //nolint:errcheck // a hash never fails
			if got := hexOf(h.Sum(nil)); got != want {
				t.Errorf("%s has the digest %s, and the listing says %s", o.Name, got, o.Digest)
			}
		}
		files[o.Name] = text
	}
	return files
}
