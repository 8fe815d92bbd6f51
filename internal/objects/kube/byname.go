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
	// namedInterval is between two readings: what is replaced is in use some 10 s later, however long one takes.
	namedInterval = 5 * time.Second
	// namedPatience bounds how long new objects wait for what they name.
	namedPatience = time.Second
)

// ByName reads those Secrets, or those ConfigMaps, of an API server that its users name, again and again, and hands them to these. They are
// made with [NewNamed]; each is safe for concurrent use.
//
// It needs the verb get of each of these, which a Role of its namespace gives for it by its name. It lists none and watches none.
type ByName struct {
	get func(context.Context, client.ObjectKey) (map[string][]byte, error)

	mu    sync.Mutex // guards users
	users []User
}

// Named is what of an API server is read by name.
type Named struct{ Secrets, ConfigMaps *ByName }

// NewNamed returns what nobody uses yet. It calls nobody.
func NewNamed(c *rest.Config) (Named, error) {
	asks, err := Client(c)
	if err != nil {
		return Named{}, err
	}
	return Named{secretsOf(asks), configMapsOf(asks)}, nil
}

// User is who names Secrets or ConfigMaps, for one purpose. It must be safe for concurrent use.
type User interface {
	// Named are those that are named now. No other is read.
	Named() []objects.Name
	// Take is handed the data of one that was read, or why it cannot be had, with the right that lacks if that is the reason. One
	// that the User does not name, not any more or at no time, is nothing to it. It may not keep what it does not need, nor change it.
	Take(name objects.Name, data map[string][]byte, err error)
}

func secretsOf(asks client.Reader) *ByName {
	return &ByName{get: func(ctx context.Context, name client.ObjectKey) (map[string][]byte, error) {
		var is corev1.Secret
		err := asks.Get(ctx, name, &is)
		return is.Data, err
	}}
}

func configMapsOf(asks client.Reader) *ByName {
	return &ByName{get: func(ctx context.Context, name client.ObjectKey) (map[string][]byte, error) {
		var is corev1.ConfigMap
		err := asks.Get(ctx, name, &is)
		return objects.ConfigData(is.Data, is.BinaryData), err
	}}
}

// Add adds a user.
func (s *ByName) Add(u User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = append(s.users, u)
}

func (s *ByName) all() []User {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}

// Read reads what has just been named. It returns when they have been handed to their users, or a second later.
func (s *ByName) Read(ctx context.Context, names []objects.Name) {
	ctx, cancel := context.WithTimeout(ctx, namedPatience)
	defer cancel()
	s.read(ctx, names)
}

// Run reads what is named again and again, until ctx ends.
func (s *ByName) Run(ctx context.Context) error {
	tick := time.NewTicker(namedInterval)
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

// named is what users name now.
func (s *ByName) named() (all []objects.Name) {
	for _, u := range s.all() {
		all = append(all, u.Named()...)
	}
	return all
}

// read reads one after the other, each once, while the API server answers and somebody names them.
func (s *ByName) read(ctx context.Context, names []objects.Name) {
	for _, name := range slices.Compact(slices.SortedFunc(slices.Values(names), objects.Name.Compare)) {
		if !slices.Contains(s.named(), name) {
			continue // meanwhile others were named
		}
		data, err := s.get(ctx, client.ObjectKey(name))
		if ctx.Err() != nil {
			return
		}
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; give %s get on it with a Role in the namespace %s", err, account(err), name.Namespace)
		}
		for _, u := range s.all() {
			u.Take(name, data, err)
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
