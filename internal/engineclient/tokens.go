package engineclient

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Tokens are the bearer tokens with which engines are reached. What is known of an engine is a reference to its token, never the
// token itself: the reference "" is to that of --engine-token-file, any other to one that was set. It is safe for concurrent
// use, and tells a token to nobody but engines.
type Tokens struct {
	flag func() string // nil where there is none

	mu  sync.RWMutex // guards set
	set map[string]string
}

// NewTokens returns the Tokens with that of --engine-token-file alone, which flag returns, empty for none. It may be nil.
func NewTokens(flag func() string) *Tokens {
	return &Tokens{flag: flag, set: make(map[string]string)}
}

// Of returns the token that a reference means now, empty for none.
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

// Set makes a reference mean the token in a text, without the space around it, and reports whether that is a new one. A text
// without a token is an error, and changes nothing.
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

// Keep forgets the tokens of all references but these.
func (t *Tokens) Keep(refs []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.set, func(ref, _ string) bool { return !slices.Contains(refs, ref) })
}

// WantsToken is what to say of an engine that lets nobody in.
const WantsToken = "it wants the token of --engine-token-file, or with --kube that of spec.engineToken in its pool's PoolSettings"

// Conceal returns what an engine said in answer to a request without the token that the request carried, empty for none: some
// say which token is wrong, and what they say is logged and shown.
func Conceal(said, token string) string {
	if token == "" {
		return said
	}
	return strings.ReplaceAll(said, token, "(the token)")
}
