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
	// namedInterval is the default time between two readings. A replaced object takes effect some
	// 10 s later, even if a reading is slow.
	namedInterval = 5 * time.Second
	// namedPatience limits how long new objects wait for the objects that they name.
	namedPatience = time.Second
)

// ByName periodically reads those Secrets, or those ConfigMaps, of an API server that its users
// name, and hands them to the users. Make one with [NewNamed]; it is safe for concurrent use.
//
// It needs the verb get for each named object, which a Role in the object's namespace grants by
// name. It neither lists nor watches.
type ByName struct {
	// Interval is the time between two readings. Tests may shorten it before Run.
	Interval time.Duration

	get func(context.Context, client.ObjectKey) (map[string][]byte, error)

	mu    sync.Mutex // guards users
	users []User
}

// Named is what is read by name from an API server.
type Named struct{ Secrets, ConfigMaps *ByName }

// NewNamed returns readers without users. It makes no calls.
func NewNamed(c *rest.Config) (Named, error) {
	asks, err := Client(c)
	if err != nil {
		return Named{}, err
	}
	return Named{secretsOf(asks), configMapsOf(asks)}, nil
}

// User is a component that names Secrets or ConfigMaps, for one purpose. It must be safe for
// concurrent use.
type User interface {
	// Named returns the names in use. Nothing else is read.
	Named() []objects.Name
	// Take is called with the data of a named object, or with the error that prevents reading it,
	// including the missing right if that is the cause. It must ignore names that the User does not
	// use (any more). It must not change the data nor keep more than it needs.
	Take(name objects.Name, data map[string][]byte, err error)
}

func secretsOf(asks client.Reader) *ByName {
	return &ByName{Interval: namedInterval, get: func(ctx context.Context, name client.ObjectKey) (map[string][]byte, error) {
		var is corev1.Secret
		err := asks.Get(ctx, name, &is)
		return is.Data, err
	}}
}

func configMapsOf(asks client.Reader) *ByName {
	return &ByName{Interval: namedInterval, get: func(ctx context.Context, name client.ObjectKey) (map[string][]byte, error) {
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

// Read reads objects that have just been named. It returns when they have been handed to their
// users, at the latest after a second.
func (s *ByName) Read(ctx context.Context, names []objects.Name) {
	ctx, cancel := context.WithTimeout(ctx, namedPatience)
	defer cancel()
	s.read(ctx, names)
}

// Run reads the named objects periodically until ctx ends.
func (s *ByName) Run(ctx context.Context) error {
	tick := time.NewTicker(s.Interval)
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

// named returns the names that users use now.
func (s *ByName) named() (all []objects.Name) {
	for _, u := range s.all() {
		all = append(all, u.Named()...)
	}
	return all
}

// read reads the objects in turn, each once, as long as the API server answers and they are still
// named.
func (s *ByName) read(ctx context.Context, names []objects.Name) {
	for _, name := range slices.Compact(slices.SortedFunc(slices.Values(names), objects.Name.Compare)) {
		if !slices.Contains(s.named(), name) {
			continue // no longer named
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

// answered reports whether an error is a response of the API server.
func answered(err error) bool { return apierrors.ReasonForError(err) != "" }

// asker extracts the caller from an API server's denial.
var asker = regexp.MustCompile(`User "([^"]*)"`)

// account returns the account that was denied.
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
