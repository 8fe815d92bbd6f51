package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/reach"
)

const (
	// secretsInterval is between two readings of a Secret: a token that is replaced is in use some 10 s later, however long one
	// takes.
	secretsInterval = 5 * time.Second
	// secretsPatience bounds how long new objects wait for the Secrets that they name.
	secretsPatience = time.Second
)

// Secrets keeps the tokens that engines are reached with those that are in the Secrets that PoolSettings name. A token stays as
// it was while its Secret cannot be read. Make one with [NewSecrets]; it is safe for concurrent use.
//
// It needs the verb get of each of these Secrets, which a Role of its namespace gives for it by its name. It lists none and
// watches none.
type Secrets struct {
	client client.Reader
	tokens *reach.Tokens
	log    *slog.Logger

	mu     sync.Mutex // guards what follows
	named  []objects.Secret
	faults map[string]string // why one was not read last, as it was told, by reference
}

// NewSecrets returns the Secrets of an API server, of which none is named yet. It calls nobody.
func NewSecrets(c *rest.Config, tokens *reach.Tokens, log *slog.Logger) (*Secrets, error) {
	asks, err := Client(c)
	if err != nil {
		return nil, err
	}
	return &Secrets{client: asks, tokens: tokens, log: log, faults: make(map[string]string)}, nil
}

// Name says which Secrets are named from now on. It returns when those that were not named before have been read, or a second
// later: nobody is to be reached without a token that there is.
func (s *Secrets) Name(ctx context.Context, all []objects.Secret) {
	s.mu.Lock()
	fresh := slices.DeleteFunc(slices.Clone(all), func(is objects.Secret) bool { return s.names(is.Ref()) })
	s.named = all
	refs := make([]string, len(all))
	for i, is := range all {
		refs[i] = is.Ref()
	}
	s.tokens.Keep(refs)
	maps.DeleteFunc(s.faults, func(ref, _ string) bool { return !s.names(ref) })
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, secretsPatience)
	defer cancel()
	s.read(ctx, fresh)
}

// names says whether a Secret is named. The caller holds mu.
func (s *Secrets) names(ref string) bool {
	return slices.ContainsFunc(s.named, func(is objects.Secret) bool { return is.Ref() == ref })
}

// Run reads the Secrets that are named again and again, until ctx ends.
func (s *Secrets) Run(ctx context.Context) error {
	tick := time.NewTicker(secretsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s.mu.Lock()
		named := s.named
		s.mu.Unlock()
		s.read(ctx, named)
	}
}

// read reads Secrets one after the other, while the API server answers.
func (s *Secrets) read(ctx context.Context, all []objects.Secret) {
	for _, is := range all {
		var secret corev1.Secret
		err := s.client.Get(ctx, client.ObjectKey(is.Name), &secret)
		if ctx.Err() != nil {
			return
		}
		s.take(is, &secret, err)
		if err != nil && !answered(err) {
			return
		}
	}
}

// answered says whether an error is what the API server says.
func answered(err error) bool { return apierrors.ReasonForError(err) != "" }

// take keeps what was read of a Secret, and tells of a fault when it begins and when it ends.
func (s *Secrets) take(is objects.Secret, secret *corev1.Secret, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ref := is.Ref()
	if !s.names(ref) {
		return // meanwhile another was named
	}
	log := s.log.With("secret", is.Name.String(), "key", is.Key)
	fresh, fault, kind := false, error(nil), ""
	if err != nil {
		fault, kind = fmt.Errorf("cannot read Secret %s, which PoolSettings %s names: %w%s", is.Name, is.Settings, err, remedy(is, err)), "no answer"
		if answered(err) {
			kind = fault.Error()
		}
	} else if fresh, err = s.set(ref, is.Key, secret); err != nil {
		fault = fmt.Errorf("cannot use Secret %s, which PoolSettings %s names: its key %s %w", is.Name, is.Settings, is.Key, err)
		kind = fault.Error()
	}
	was, failed := s.faults[ref]
	switch {
	case fault == nil:
		delete(s.faults, ref)
		if fresh || failed {
			log.Info("read the token of a pool's engines", "new", fresh)
		}
		return
	case failed && was == kind:
	case s.tokens.Of(ref) != "":
		log.Error("cannot read the token of a pool's engines; keeping the last good one; retrying", "err", fault)
	default:
		log.Error("cannot read the token of a pool's engines; calling them without one; retrying", "err", fault)
	}
	s.faults[ref] = kind
}

// set puts the token that a Secret has at a key in use, and reports whether it is a new one.
func (s *Secrets) set(ref, key string, secret *corev1.Secret) (fresh bool, err error) {
	text, there := secret.Data[key]
	if !there {
		return false, errNoKey
	}
	return s.tokens.Set(ref, text)
}

var errNoKey = errors.New("is not there: write the token that the engines want")

// remedy is what to do about what an API server says of a Secret; empty if nobody knows.
func remedy(is objects.Secret, err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("; give %s get on it with a Role in the namespace %s", account(err), is.Name.Namespace)
	case apierrors.IsNotFound(err):
		return "; make it, with the token as its key " + is.Key
	}
	return ""
}

// asker is who asked, in what an API server says that denies it something.
var asker = regexp.MustCompile(`User "([^"]*)"`)

// account is who was denied something.
func account(err error) string {
	found := asker.FindStringSubmatch(err.Error())
	if found == nil {
		return "its service account"
	}
	if of, ok := strings.CutPrefix(found[1], "system:serviceaccount:"); ok {
		namespace, name, _ := strings.Cut(of, ":")
		return fmt.Sprintf("the service account %s of the namespace %s", name, namespace)
	}
	return "the user " + found[1]
}
