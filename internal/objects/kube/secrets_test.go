package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

// vault is an API server with Secrets that have one key, token: their values, or why they cannot be
// read.
type vault struct {
	client.Reader
	mu    sync.Mutex // guards the fields below
	texts map[string]string
	wrong map[string]error
	slow  time.Duration
	asked []string
}

func (v *vault) Get(ctx context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	v.mu.Lock()
	v.asked = append(v.asked, key.String())
	slow := v.slow
	v.mu.Unlock()
	if wait(ctx, slow) != nil {
		return ctx.Err()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.wrong[key.String()]; err != nil {
		return err
	}
	o.(*corev1.Secret).Data = map[string][]byte{"token": []byte(v.texts[key.String()])}
	return nil
}

func (v *vault) set(secret, text string, wrong error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.texts[secret], v.wrong[secret] = text, wrong
}

func (v *vault) setSlow(slow time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.slow = slow
}

// reads returns how often a Secret was requested, and resets the count.
func (v *vault) reads(secret string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.asked {
		if s == secret {
			n++
		}
	}
	v.asked = nil
	return n
}

var (
	errDenied = errors.New(`User "system:serviceaccount:headgate-system:headgate-gateway" cannot get resource "secrets" in API group "" in the namespace "a"`)
	of        = schema.GroupResource{Resource: "secrets"}
	forbidden = apierrors.NewForbidden(of, "s", errDenied)
	notFound  = apierrors.NewNotFound(of, "s")
)

// named returns Secrets named by the PoolSettings p of their namespaces.
func named(all ...string) (secrets []objects.Secret) {
	for _, s := range all {
		namespace, name, _ := strings.Cut(s, "/")
		secrets = append(secrets, objects.Secret{
			Name: objects.Name{Namespace: namespace, Name: name}, Key: "token", Settings: objects.Name{Namespace: namespace, Name: "p"},
		})
	}
	return secrets
}

// keeping reads the Secrets of a vault in a synctest bubble.
func keeping(t *testing.T, test func(t *testing.T, v *vault, s *EngineTokens, log *strings.Builder)) {
	synctest.Test(t, func(t *testing.T) {
		v := &vault{texts: make(map[string]string), wrong: make(map[string]error)}
		var log strings.Builder // read while everything is idle
		secrets := secretsOf(v)
		s := NewEngineTokens(secrets, engineclient.NewTokens(nil), slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = secrets.Run(ctx)
		}()
		test(t, v, s, &log)
		cancel()
		<-done
	})
}

// later advances the fake clock and waits until everything is idle.
func later(d time.Duration) {
	time.Sleep(d) // on the fake clock of synctest
	synctest.Wait()
}

// A token is available when its Secret has just been named, and a rotated one within 10 s. While
// the Secret is unreadable, the last good token stays. An error is logged once, with what to do.
func TestTokenFollowsItsSecret(t *testing.T) {
	keeping(t, func(t *testing.T, v *vault, s *EngineTokens, log *strings.Builder) {
		want := func(what, token string) {
			t.Helper()
			if got := s.tokens.Of("a/s/token"); got != token {
				t.Errorf("%s the token is %q, want %q", what, got, token)
			}
		}
		reported := func(n int, words string) {
			t.Helper()
			if got := strings.Count(log.String(), words); got != n {
				t.Errorf("it is told %d times, want %d: %s\n%s", got, n, words, log)
			}
		}
		v.set("a/s", " sk-1\n", nil)
		s.Name(t.Context(), named("a/s"))
		want("named", "sk-1")
		v.set("a/s", "sk-2", nil)
		later(10 * time.Second)
		want("rotated", "sk-2")

		denied := `cannot read Secret a/s, which PoolSettings a/p names: secrets \"s\" is forbidden: User \"system:serviceaccount:headgate-system:headgate-gateway\" cannot get resource \"secrets\" in API group \"\" in the namespace \"a\"; give the service account headgate-gateway of the namespace headgate-system get on it with a Role in the namespace a`
		for _, c := range []struct {
			text  string
			wrong error
			words string
		}{
			{"", forbidden, denied},
			{
				"", notFound,
				`cannot read Secret a/s, which PoolSettings a/p names: secrets \"s\" not found; create it, with the token under its key token`,
			},
			{
				" ", nil,
				"cannot use Secret a/s, which PoolSettings a/p names: its key token is empty: write the engines' token",
			},
			{"sk-4 sk-5", nil, "its key token contains more than one word: write only the token"},
			{"", errors.New("connection refused"), "connection refused"},
		} {
			v.set("a/s", c.text, c.wrong)
			later(time.Minute)
			want("with "+c.words, "sk-2")
			reported(1, c.words)
		}
		reported(5, "keeping the last good one")
		reported(0, "calling them without one")
		// Connection errors have varying texts; they count as one error.
		v.set("a/s", "", errors.New("connection reset"))
		later(time.Minute)
		reported(0, "connection reset")

		v.set("a/s", "sk-2", nil)
		later(10 * time.Second)
		want("read again", "sk-2")
		reported(1, "new=false")
		v.set("a/s", "sk-3", nil)
		later(10 * time.Second)
		want("rotated again", "sk-3")
		reported(3, "new=true")

		s.Name(t.Context(), nil)
		want("not named any more", "")
		v.reads("")
		later(time.Minute)
		if n := v.reads("a/s"); n != 0 {
			t.Errorf("it is read %d times though nobody names it", n)
		}
		if strings.Contains(log.String(), "sk-") {
			t.Errorf("the log holds a token:\n%s", log)
		}
	})
}

func TestPoolWithoutItsSecretHasNoToken(t *testing.T) {
	keeping(t, func(t *testing.T, v *vault, s *EngineTokens, log *strings.Builder) {
		v.set("a/s", "", forbidden)
		v.set("b/s", "of-b", nil)
		s.Name(t.Context(), named("a/s", "b/s"))
		later(time.Minute)
		if a, b := s.tokens.Of("a/s/token"), s.tokens.Of("b/s/token"); a != "" || b != "of-b" {
			t.Errorf("the tokens are %q and %q", a, b)
		}
		if n := strings.Count(log.String(), "cannot read the token of a pool's engines; calling them without one; retrying"); n != 1 {
			t.Errorf("it is told %d times:\n%s", n, log)
		}
		other := named("b/s")
		other[0].Key = "none"
		s.Name(t.Context(), other)
		if got := s.tokens.Of("b/s/none"); got != "" ||
			!strings.Contains(log.String(), "its key none does not exist: write the engines' token there") {
			t.Errorf("without the key there is %q, and the log says\n%s", got, log)
		}

		// Once it may be read, it is.
		s.Name(t.Context(), named("a/s"))
		v.set("a/s", "of-a", nil)
		later(10 * time.Second)
		if a := s.tokens.Of("a/s/token"); a != "of-a" ||
			!strings.Contains(log.String(), `msg="read the token of a pool's engines" secret=a/s key=token new=true`) {
			t.Errorf("the token is %q, and the log says\n%s", a, log)
		}
	})
}

// New objects wait for their Secrets, but not for earlier Secrets, and not for an API server that
// is slow or away.
func TestSecretsDelayObjectsBriefly(t *testing.T) {
	keeping(t, func(t *testing.T, v *vault, s *EngineTokens, _ *strings.Builder) {
		took := func() time.Duration {
			begun := time.Now()
			s.Name(t.Context(), named("a/s", "b/s"))
			return time.Since(begun)
		}
		v.set("a/s", "one", nil)
		v.set("b/s", "two", nil)
		v.setSlow(300 * time.Millisecond)
		if got := took(); got != 600*time.Millisecond || s.tokens.Of("b/s/token") != "two" {
			t.Errorf("it takes %v, and the token is %q", got, s.tokens.Of("b/s/token"))
		}
		if got := took(); got != 0 {
			t.Errorf("what is known takes %v", got)
		}
		s.Name(t.Context(), nil)
		v.setSlow(time.Minute)
		if got := took(); got != time.Second {
			t.Errorf("a slow API server takes %v", got)
		}
		v.setSlow(0)
		later(2 * namedInterval)
		if got := s.tokens.Of("b/s/token"); got != "two" {
			t.Errorf("later the token is %q", got)
		}
		v.set("a/s", "", errors.New("connection refused"))
		later(namedInterval)
		v.reads("")
		later(namedInterval)
		if n := v.reads("b/s"); n != 0 {
			t.Errorf("while nobody answers the next is asked for %d times", n)
		}
	})
}

// The result for a Secret that is no longer named, or not named yet, is ignored.
func TestLateSecretIsIgnored(t *testing.T) {
	keeping(t, func(t *testing.T, v *vault, s *EngineTokens, _ *strings.Builder) {
		v.set("a/s", "one", nil)
		s.Name(t.Context(), named("a/s"))
		v.setSlow(time.Second)
		later(namedInterval + time.Second/2) // while the Secret is being read
		s.Name(t.Context(), nil)
		later(time.Second)
		if got := s.tokens.Of("a/s/token"); got != "" {
			t.Errorf("the token is %q", got)
		}
	})
}

// another is a second user, which records what it gets.
type another struct {
	mu       sync.Mutex // guards the fields below
	named    []objects.Name
	reported []string
}

func (a *another) Named() []objects.Name {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.named
}

func (a *another) name(all ...objects.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.named = all
}

func (a *another) Take(name objects.Name, data map[string][]byte, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Contains(a.named, name) {
		a.reported = append(a.reported, fmt.Sprintf("%s %s %v", name, data["token"], err))
	}
}

// A Secret with two users is read once for both. A Secret that is no longer named is not read, even
// if it was named when the round began.
func TestSecretHasSeveralUsers(t *testing.T) {
	keeping(t, func(t *testing.T, v *vault, s *EngineTokens, _ *strings.Builder) {
		other := new(another)
		s.secrets.Add(other)
		reported := func(what string, want ...string) {
			t.Helper()
			other.mu.Lock()
			defer other.mu.Unlock()
			if !slices.Equal(other.reported, want) {
				t.Errorf("%s the other user is told %q, want %q", what, other.reported, want)
			}
			other.reported = nil
		}
		v.set("a/s", "one", nil)
		v.set("b/s", "two", nil)
		s.Name(t.Context(), named("a/s"))
		other.name(objects.Name{Namespace: "a", Name: "s"}, objects.Name{Namespace: "b", Name: "s"})
		later(namedInterval)
		reported("of both", "a/s one <nil>", "b/s two <nil>")
		if got := s.tokens.Of("a/s/token") + s.tokens.Of("b/s/token"); got != "one" {
			t.Errorf("the tokens are %q", got)
		}
		v.reads("")
		later(namedInterval)
		if n := v.reads("a/s"); n != 1 {
			t.Errorf("what both name is read %d times", n)
		}
		reported("again", "a/s one <nil>", "b/s two <nil>")
		v.setSlow(time.Second)
		later(namedInterval + time.Second/2) // a/s is being read, b/s is next
		other.name()
		later(namedInterval)
		if n := v.reads("b/s"); n != 0 {
			t.Errorf("what nobody names any more is read %d times", n)
		}
		reported("when it names none")
		v.setSlow(0)
		later(time.Second)
		other.name(objects.Name{Namespace: "a", Name: "s"})
		s.Name(t.Context(), nil)
		later(namedInterval)
		reported("of what it alone names", "a/s one <nil>")
		if got := s.tokens.Of("a/s/token"); got != "" {
			t.Errorf("the token is %q, which nobody names", got)
		}
	})
}

// Below debug, Kubernetes' libraries would log API server responses.
func TestKubernetesLibrariesLogNoAnswers(t *testing.T) {
	var text strings.Builder
	all := slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.Level(-100)})
	for _, log := range []logr.Logger{
		logr.FromSlogHandler(discreet{all}),
		logr.FromSlogHandler(discreet{all}).WithValues("a", 1).WithName("b"),
	} {
		log.V(4).Info("debug")
		log.V(5).Info("body")
		log.V(8).Info("body")
	}
	if got := text.String(); strings.Count(got, "debug") != 2 || strings.Contains(got, "body") {
		t.Errorf("the log says\n%s", got)
	}
}
