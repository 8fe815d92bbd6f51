package engineclient_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/engineclient"
)

// The empty reference is the command line's token; any other reference is only its own token.
func TestTokenReferences(t *testing.T) {
	tokens := engineclient.NewTokens(func() string { return "flag" })
	set := func(ref, text string) (fresh bool) {
		t.Helper()
		fresh, err := tokens.Set(ref, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return fresh
	}
	if !set("a/s/token", " one\n") || set("a/s/token", "one") || !set("b/s/token", "two") {
		t.Error("it is not known which tokens are new")
	}
	want := func(what string, all map[string]string) {
		t.Helper()
		for ref, token := range all {
			if got := tokens.Of(ref); got != token {
				t.Errorf("%s: the token of %q is %q, want %q", what, ref, got, token)
			}
		}
	}
	want("set", map[string]string{"": "flag", "a/s/token": "one", "b/s/token": "two", "a/s": "", "c": ""})

	for _, text := range []string{"", " \n", "two words", "a\nb", "a\x00", "\xff", "ü"} {
		if _, err := tokens.Set("a/s/token", []byte(text)); err == nil || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := tokens.Set("", []byte("three")); err == nil {
		t.Error("the token of the command line is replaced")
	}
	want("after faults", map[string]string{"": "flag", "a/s/token": "one"})
	if !set("a/s/token", "three") {
		t.Error("it is not new")
	}
	want("replaced", map[string]string{"": "flag", "a/s/token": "three", "b/s/token": "two"})

	tokens.Keep([]string{"b/s/token"})
	want("forgotten", map[string]string{"": "flag", "a/s/token": "", "b/s/token": "two"})

	for what, none := range map[string]*engineclient.Tokens{"without a flag": engineclient.NewTokens(nil), "without any": nil} {
		if got := none.Of(""); got != "" {
			t.Errorf("%s there is %q", what, got)
		}
	}
}

// Each request carries the current token of its Access.
func TestRequestHasItsEnginesToken(t *testing.T) {
	tokens := engineclient.NewTokens(func() string { return "flag" })
	plain := engineclient.Access{Tokens: tokens}
	for _, c := range []struct {
		access    engineclient.Access
		ref, text string // set beforehand
		want      string
	}{
		{plain, "", "", "Bearer flag"},
		{plain.With("a"), "", "", ""},
		{plain.With("a"), "a", "one", "Bearer one"},
		{plain.With("a"), "a", "two", "Bearer two"},
		{plain.With("a").With("b"), "", "", ""},
		{plain.With("a").With(""), "", "", "Bearer flag"},
		{engineclient.Access{}.With("a"), "", "", ""},
	} {
		if c.ref != "" {
			if _, err := tokens.Set(c.ref, []byte(c.text)); err != nil {
				t.Fatal(err)
			}
		}
		r, err := c.access.Request(t.Context(), http.MethodGet, "127.0.0.1:1", "", "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Header.Get("Authorization"); got != c.want || engineclient.Sent(r) != strings.TrimPrefix(c.want, "Bearer ") {
			t.Errorf("%+v: a request carries %q, want %q", c, got, c.want)
		}
	}
}

func TestTokensInAnswersAreRedacted(t *testing.T) {
	for _, c := range []struct{ said, token, want string }{
		{"no secret here, secret", "secret", "no (the token) here, (the token)"},
		{"no secret here", "", "no secret here"},
		{"nothing", "secret", "nothing"},
	} {
		if got := engineclient.Conceal(c.said, c.token); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.said, got, c.want)
		}
	}
}
