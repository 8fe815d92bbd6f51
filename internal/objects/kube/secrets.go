package kube

import (
	"context"
	"fmt"
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
)

const (
	// secretsInterval is between two readings of a Secret: what is replaced is in use some 10 s later, however long one takes.
	secretsInterval = 5 * time.Second
	// secretsPatience bounds how long new objects wait for the Secrets that they name.
	secretsPatience = time.Second
)

// Secrets reads those Secrets of an API server that its users name, again and again, and hands them to these. Make one with
// [NewSecrets]; it is safe for concurrent use.
//
// It needs the verb get of each of these Secrets, which a Role of its namespace gives for it by its name. It lists none and
// watches none.
type Secrets struct {
	client client.Reader

	mu    sync.Mutex // guards users
	users []User
}

// User is who names Secrets, for one purpose. It must be safe for concurrent use.
type User interface {
	// Named are the Secrets that are named now. No other is read.
	Named() []objects.Name
	// Take is handed the data of a Secret that was read, or why it cannot be had, with the right that lacks if that is the reason. One
	// that the User does not name, not any more or at no time, is nothing to it. It may not keep what it does not need, nor change it.
	Take(name objects.Name, data map[string][]byte, err error)
}

// NewSecrets returns the Secrets of an API server, which nobody uses yet. It calls nobody.
func NewSecrets(c *rest.Config) (*Secrets, error) {
	asks, err := Client(c)
	if err != nil {
		return nil, err
	}
	return &Secrets{client: asks}, nil
}

// Add adds a user.
func (s *Secrets) Add(u User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = append(s.users, u)
}

func (s *Secrets) all() []User {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}

// Read reads Secrets that have just been named. It returns when they have been handed to their users, or a second later.
func (s *Secrets) Read(ctx context.Context, names []objects.Name) {
	ctx, cancel := context.WithTimeout(ctx, secretsPatience)
	defer cancel()
	s.read(ctx, names)
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
		s.read(ctx, s.named())
	}
}

// named are the Secrets that users name now.
func (s *Secrets) named() (all []objects.Name) {
	for _, u := range s.all() {
		all = append(all, u.Named()...)
	}
	return all
}

// read reads Secrets one after the other, each once, while the API server answers and somebody names them.
func (s *Secrets) read(ctx context.Context, names []objects.Name) {
	for _, name := range slices.Compact(slices.SortedFunc(slices.Values(names), objects.Name.Compare)) {
		if !slices.Contains(s.named(), name) {
			continue // meanwhile others were named
		}
		var secret corev1.Secret
		err := s.client.Get(ctx, client.ObjectKey(name), &secret)
		if ctx.Err() != nil {
			return
		}
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; give %s get on it with a Role in the namespace %s", err, account(err), name.Namespace)
		}
		for _, u := range s.all() {
			u.Take(name, secret.Data, err)
		}
		if err != nil && !answered(err) {
			return
		}
	}
}

// answered says whether an error is what the API server says.
func answered(err error) bool { return apierrors.ReasonForError(err) != "" }

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
