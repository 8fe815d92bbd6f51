package engineclient

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// tokenAge is the maximum age of a cached token. It is below any sensible scrape interval, so that
// the next scrape has a new token, while hundreds of endpoints read the file only ten times per
// second.
const tokenAge = 100 * time.Millisecond

// TokenFile is a bearer token in a file that may be replaced at any time. It is safe for concurrent
// use, and passes the token only to engines.
type TokenFile struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex // guards the fields below
	token   string     // the last valid one
	read    time.Time
	failing bool
}

// OpenToken reads the file for the first time. A file that is unreadable or has no token is an
// error.
func OpenToken(path string, log *slog.Logger) (*TokenFile, error) {
	token, err := readToken(path)
	if err != nil {
		return nil, err
	}
	return &TokenFile{path: path, log: log, token: token, read: time.Now()}, nil
}

// Token returns the file's current token, at most tokenAge old. While the file is unreadable or has
// no token, it returns the last valid one.
func (t *TokenFile) Token() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.read) < tokenAge {
		return t.token
	}
	t.read = time.Now()
	token, err := readToken(t.path)
	switch {
	case err != nil && !t.failing:
		t.log.Error("cannot read the engines' token; keeping the last good one; retrying", "err", err)
	case err == nil && token != t.token:
		t.log.Info("read a new token for engines", "file", t.path)
		t.token = token
	}
	t.failing = err != nil
	return t.token
}

// Shows reports whether an Authorization header has the bearer token. It is false for an empty
// token.
func Shows(authorization, token string) bool {
	bearer, ok := strings.CutPrefix(authorization, "Bearer ")
	return ok && token != "" && subtle.ConstantTimeCompare([]byte(bearer), []byte(token)) == 1
}

// readToken reads a token without surrounding space.
func readToken(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	token, err := parseToken(text)
	if err != nil {
		return "", fmt.Errorf("%s %w into it", path, err)
	}
	return token, nil
}

// parseToken returns the token in a text without surrounding space. Errors do not quote the text.
func parseToken(text []byte) (string, error) {
	token := bytes.TrimSpace(text)
	if len(token) == 0 {
		return "", errors.New("is empty: write the engines' token")
	}
	// The characters that RFC 6750 allows in a header; a second line or a key of another kind is
	// refused.
	if bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("contains more than one word: write only the token")
	}
	return string(token), nil
}
