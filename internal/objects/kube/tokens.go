package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

// EngineTokens provides engine tokens from the Secrets that PoolSettings name. While a Secret
// cannot be read, its last token stays. Make one with [NewEngineTokens]; it is safe for concurrent
// use.
type EngineTokens struct {
	secrets *ByName
	tokens  *engineclient.Tokens
	log     *slog.Logger

	mu     sync.Mutex // guards the fields below
	named  []objects.Secret
	faults map[string]string // last logged error of each unreadable Secret
}

// NewEngineTokens returns EngineTokens without any Secret, as a user of Secrets.
func NewEngineTokens(secrets *ByName, tokens *engineclient.Tokens, log *slog.Logger) *EngineTokens {
	t := &EngineTokens{secrets: secrets, tokens: tokens, log: log, faults: make(map[string]string)}
	secrets.Add(t)
	return t
}

// Name sets which Secrets are used from now on. It returns when the new ones have been read, or
// after a second, so that engines are not called without an existing token.
func (t *EngineTokens) Name(ctx context.Context, all []objects.Secret) {
	t.mu.Lock()
	fresh := slices.DeleteFunc(slices.Clone(all), func(is objects.Secret) bool { return t.names(is.Ref()) })
	t.named = all
	refs := make([]string, len(all))
	for i, is := range all {
		refs[i] = is.Ref()
	}
	t.tokens.Keep(refs)
	maps.DeleteFunc(t.faults, func(ref, _ string) bool { return !t.names(ref) })
	t.mu.Unlock()
	t.secrets.Read(ctx, namesOf(fresh))
}

// names says whether a Secret is named. The caller holds mu.
func (t *EngineTokens) names(ref string) bool {
	return slices.ContainsFunc(t.named, func(is objects.Secret) bool { return is.Ref() == ref })
}

func namesOf(all []objects.Secret) []objects.Name {
	names := make([]objects.Name, len(all))
	for i, is := range all {
		names[i] = is.Name
	}
	return names
}

// Named is [User]'s.
func (t *EngineTokens) Named() []objects.Name {
	t.mu.Lock()
	defer t.mu.Unlock()
	return namesOf(t.named)
}

// Take is [User]'s: it keeps the tokens in a Secret.
func (t *EngineTokens) Take(name objects.Name, data map[string][]byte, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, is := range t.named {
		if is.Name == name {
			t.take(is, data, err)
		}
	}
}

// take stores what was read of a token. It logs the start and the end of a fault. The caller holds
// mu.
func (t *EngineTokens) take(is objects.Secret, data map[string][]byte, err error) {
	ref := is.Ref()
	log := t.log.With("secret", is.Name.String(), "key", is.Key)
	fresh, fault, kind := false, error(nil), ""
	if err != nil {
		remedy := ""
		if apierrors.IsNotFound(err) {
			remedy = "; create it, with the token under its key " + is.Key
		}
		fault, kind = fmt.Errorf("cannot read Secret %s, which PoolSettings %s names: %w%s", is.Name, is.Settings, err, remedy), "no answer"
		if answered(err) {
			kind = fault.Error()
		}
	} else if fresh, err = t.set(ref, is.Key, data); err != nil {
		fault = fmt.Errorf("cannot use Secret %s, which PoolSettings %s names: its key %s %w", is.Name, is.Settings, is.Key, err)
		kind = fault.Error()
	}
	was, failed := t.faults[ref]
	switch {
	case fault == nil:
		delete(t.faults, ref)
		if fresh || failed {
			log.Info("read the token of a pool's engines", "new", fresh)
		}
		return
	case failed && was == kind:
	case t.tokens.Of(ref) != "":
		log.Error("cannot read the token of a pool's engines; keeping the last good one; retrying", "err", fault)
	default:
		log.Error("cannot read the token of a pool's engines; calling them without one; retrying", "err", fault)
	}
	t.faults[ref] = kind
}

// set puts the token that a Secret has at a key in use, and reports whether it is a new one.
func (t *EngineTokens) set(ref, key string, data map[string][]byte) (fresh bool, err error) {
	text, there := data[key]
	if !there {
		return false, errNoKey
	}
	return t.tokens.Set(ref, text)
}

var errNoKey = errors.New("does not exist: write the engines' token there")
