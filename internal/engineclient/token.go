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

// tokenAge is how old a token may be when a request carries it: below the least interval between looks of one endpoint
// that anybody would want, so that a new token is in the next look, while hundreds of endpoints read the file ten times a
// second and no more.
const tokenAge = 100 * time.Millisecond

// TokenFile is a bearer token in a file that others may replace at any time. It is safe for concurrent use, and never
// tells the token to anybody but engines.
type TokenFile struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex // guards the following
	token   string     // the last good one
	read    time.Time
	failing bool
}

// OpenToken reads the file a first time. A file that cannot be read or holds no token is an error.
func OpenToken(path string, log *slog.Logger) (*TokenFile, error) {
	token, err := readToken(path)
	if err != nil {
		return nil, err
	}
	return &TokenFile{path: path, log: log, token: token, read: time.Now()}, nil
}

// Token returns the token that is in the file now, or a moment ago. While the file cannot be read, or holds none, it is
// the last good one.
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

// Shows says whether an Authorization header shows a token as a bearer's. An empty token is shown by nobody.
func Shows(authorization, token string) bool {
	bearer, ok := strings.CutPrefix(authorization, "Bearer ")
	return ok && token != "" && subtle.ConstantTimeCompare([]byte(bearer), []byte(token)) == 1
}

// readToken reads a token without the space around it.
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

// parseToken finds the token in a text without the space around it. An error does not say what the text is.
func parseToken(text []byte) (string, error) {
	token := bytes.TrimSpace(text)
	if len(token) == 0 {
		return "", errors.New("is empty: write the token that the engines want")
	}
	// What RFC 6750 lets stand in a header; a second line or a key of another kind would not pass.
	if bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("holds more than one word: write the token alone")
	}
	return string(token), nil
}
