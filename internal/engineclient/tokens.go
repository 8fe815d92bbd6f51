package engineclient

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Tokens are the engines' bearer tokens by reference. Other code knows only the reference: "" is
// the token of --engine-token-file, any other was set with Set. It is safe for concurrent use, and
// passes tokens only to engines.
type Tokens struct {
	flag func() string // nil if there is none

	mu  sync.RWMutex // guards set
	set map[string]string
}

// NewTokens returns Tokens with only the token of --engine-token-file, which flag returns, empty
// for none. Flag may be nil.
func NewTokens(flag func() string) *Tokens {
	return &Tokens{flag: flag, set: make(map[string]string)}
}

// Of returns the current token of a reference, empty for none.
func (t *Tokens) Of(ref string) string {
	switch {
	case t == nil, ref == "" && t.flag == nil:
		return ""
	case ref == "":
		return t.flag()
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.set[ref]
}

var errNoReference = errors.New("a token that is set has a reference")

// Set sets the token of a reference to the one in text, without surrounding space, and reports
// whether it is new. A text without a token is an error, and changes nothing.
func (t *Tokens) Set(ref string, text []byte) (fresh bool, err error) {
	token, err := parseToken(text)
	if err != nil {
		return false, err
	}
	if ref == "" {
		return false, errNoReference
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh = t.set[ref] != token
	t.set[ref] = token
	return fresh, nil
}

// Keep removes the tokens of all other references.
func (t *Tokens) Keep(refs []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.set, func(ref, _ string) bool { return !slices.Contains(refs, ref) })
}

// WantsToken is the message for an engine that requires a token.
const WantsToken = "it requires a token: set --engine-token-file or, with --kube, spec.engineToken in its pool's PoolSettings"

// Conceal removes a request's token, empty for none, from an engine's response: some quote a wrong
// token, and responses are logged and shown.
func Conceal(said, token string) string {
	if token == "" {
		return said
	}
	return strings.ReplaceAll(said, token, "(the token)")
}
