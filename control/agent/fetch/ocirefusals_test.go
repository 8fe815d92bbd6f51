package fetch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/headgate/headgate/control/agent/storage"
)

// basic requires a user and a password.
func basic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != "pass-word" {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			http.Error(w, r.Header.Get("Authorization"), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bearer requires a token, which /token gives for a user and a password.
func bearer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			if user, password, _ := r.BasicAuth(); user != "u" || password != "pass-word" {
				http.Error(w, r.Header.Get("Authorization"), http.StatusUnauthorized)
				return
			}
			fmt.Fprint(w, `{"token": "c2VjcmV0"}`)
			return
		}
		if r.Header.Get("Authorization") != "Bearer c2VjcmV0" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="s",scope="repository:private:pull"`, r.Host))
			http.Error(w, r.Header.Get("Authorization"), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func TestRegistriesWithCredentials(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for name, wrap := range map[string]func(http.Handler) http.Handler{"basic": basic, "bearer": bearer} {
		t.Run(name, func(t *testing.T) {
			var inner http.Handler
			host := startRegistry(t, func(h http.Handler) http.Handler {
				inner = h
				return wrap(h)
			})
			open := httptest.NewServer(inner) // the same registry without credentials, to push
			defer open.Close()
			push(t, open.Listener.Addr().String()+"/private", "v1", imageOf(t, "linux/amd64", layer(t, types.OCILayer, "models/a=1")))
			config := func(host string) string {
				text, _ := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{"username": "u", "password": "pass-word"}}})
				return string(text)
			}
			for _, fields := range []map[string]string{
				{"username": "u", "password": "pass-word", "registry": host},
				{".dockerconfigjson": config(host)},
				{".dockerconfigjson": config("http://" + host + "/v1/")},
				{"auths." + host + ".auth": "dTpwYXNzLXdvcmQ="},
				{".dockerconfigjson.auths." + host + ".auth": "dTpwYXNzLXdvcmQ="},
				{"auths." + host + ".username": "u", "auths." + host + ".password": "pass-word", "auths.other.test.auth": "eDp5"},
			} {
				r, err := openImage(t.Context(), imageSource(host+"/private", "v1", fields), dialing)
				if got := unpacked(t, r, err); got["a"] != "1" {
					t.Errorf("%v", got)
				}
			}
			for _, c := range []struct {
				fields map[string]string
				reason Reason
			}{
				{nil, Denied},
				{map[string]string{"username": "u", "password": "pass-word!", "registry": host}, Denied},
				{map[string]string{".dockerconfigjson": config("other.test")}, Denied},
				{map[string]string{"username": "u", "password": "pass-word"}, Invalid},
				{map[string]string{"username": "u", "password": "pass-word", "registry": "other.test"}, Invalid},
				{map[string]string{".dockerconfigjson": "pass-word"}, Invalid},
				{map[string]string{"auths." + host + ".auth": "c2VjcmV0"}, Invalid},
			} {
				source := imageSource(host+"/private", "v1", c.fields)
				r, err := openImage(t.Context(), source, dialing)
				if err == nil {
					_, err = r.List(t.Context())
				}
				refusal(t, err, source.URI, c.reason, "redentials")
			}
		})
	}
}

// TestCredentialsOfTheAgent tests that sources without credentials use those of config.json.
func TestCredentialsOfTheAgent(t *testing.T) {
	host := startRegistry(t, basic)
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("DOCKER_CONFIG", filepath.Join(dir, "docker"))
	if err := os.Mkdir(filepath.Join(dir, "docker"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{"auths": {%q: {"auth": "dTpwYXNzLXdvcmQ="}}}`, host)
	if err := os.WriteFile(filepath.Join(dir, "docker", "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	source := imageSource(host+"/none", "v1", nil)
	r, err := openImage(t.Context(), source, dialing)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.List(t.Context())
	refusal(t, err, source.URI, NotFound, "no such image")
	source.CustomServer = true // parameters of the model changed how the registry is reached
	if r, err = openImage(t.Context(), source, dialing); err != nil {
		t.Fatal(err)
	}
	_, err = r.List(t.Context())
	refusal(t, err, source.URI, Denied, "refuses access")
}

func TestRegistryRefusals(t *testing.T) {
	var answer func(w http.ResponseWriter, r *http.Request) bool
	host := startRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if answer == nil || !answer(w, r) {
				next.ServeHTTP(w, r)
			}
		})
	})
	push(t, host+"/m", "v1", imageOf(t, "linux/amd64", layer(t, types.OCIUncompressedLayer, "models/a="+large)))
	push(t, host+"/empty", "v1", imageOf(t, "linux/amd64"))
	push(t, host+"/odd", "v1", imageOf(t, "linux/amd64", static.NewLayer([]byte("x"), "application/x-odd")))
	fails := func(source storage.Source, reason Reason, words string) (pause int) {
		t.Helper()
		r, err := openImage(t.Context(), source, dialing)
		if err == nil {
			_, err = r.List(t.Context())
		}
		return refusal(t, err, source.URI, reason, words)
	}
	fails(imageSource(host+"/m", "none", nil), NotFound, "no such image")
	fails(imageSource(host+"/none", "v1", nil), NotFound, "no such image")
	fails(imageSource(host+"/m", "sha256:"+strings.Repeat("0", 64), nil), NotFound, "no such image")
	fails(imageSource(host+"/M", "v1", nil), Invalid, "oci://REGISTRY")
	fails(imageSource(host+"/m", "sha256:0", nil), Invalid, "oci://REGISTRY")
	fails(imageSource(host+"/empty", "v1", nil), Empty, "/models/")
	fails(imageSource(host+"/odd", "v1", nil), Invalid, "application/x-odd")
	fails(imageSource("127.0.0.1:1/m", "v1", nil), Busy, "refused")
	for _, c := range []struct {
		status int
		reason Reason
		words  string
	}{
		{401, Denied, "registry refuses"},
		{403, Denied, "registry refuses"},
		{400, Invalid, "400"},
		{429, Busy, "429"},
		{500, Busy, "500"},
		{503, Busy, "503"},
	} {
		answer = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "9")
			http.Error(w, "c2VjcmV0", c.status)
			return true
		}
		t.Run(strconv.Itoa(c.status), func(t *testing.T) {
			pause := fails(imageSource(host+"/m", "v1", nil), c.reason, c.words)
			if want := map[bool]int{true: 9}[c.reason == Busy]; pause != want {
				t.Errorf("again after %d s", pause)
			}
		})
	}
	answer = nil
	r, err := openImage(t.Context(), imageSource(host+"/m", "v1", nil), dialing)
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := l.Objects[0]
	whole := readPart(t, r, o, 0, -1)
	for _, part := range [][2]int64{{0, 3}, {5, 7}, {o.Size - 4, -1}} {
		want := whole[part[0]:]
		if part[1] >= 0 {
			want = want[:part[1]]
		}
		if got := readPart(t, r, o, part[0], part[1]); got != want {
			t.Errorf("%v: %q", part, got)
		}
	}
	answer = func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("Range")
		return false
	}
	_, err = r.Open(t.Context(), o, 1, -1)
	refusal(t, err, "oci://"+host+"/m:v1", NoRange, "no part")
	answer = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Length", strconv.FormatInt(o.Size, 10))
		_, _ = io.WriteString(w, whole[:1000])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	body, err := r.Open(t.Context(), o, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	_, err = io.ReadAll(body)
	refusal(t, err, "oci://"+host+"/m:v1", Busy, "connection broke")
	answer = func(w http.ResponseWriter, _ *http.Request) bool { http.Error(w, "", http.StatusNotFound); return true }
	_, err = r.Open(t.Context(), o, 0, -1)
	refusal(t, err, "oci://"+host+"/m:v1", NotFound, "no such image")
}

// TestRegistriesWithoutTLS tests that credentials do not leave the machine in plain text.
func TestRegistriesWithoutTLS(t *testing.T) {
	host := startRegistry(t, nil)
	push(t, host+"/m", "v1", imageOf(t, "linux/amd64", layer(t, types.OCILayer, "models/a=1")))
	options := Options{Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, host)
	}}
	for _, registry := range []string{"10.0.0.9:5000", "registry.test"} {
		source := imageSource(registry+"/m", "v1", nil)
		r, err := openImage(t.Context(), source, options)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.List(t.Context())
		refusal(t, err, source.URI, Busy, "")
		source.Fields = map[string]string{"insecure": "true"}
		r, err = openImage(t.Context(), source, options)
		if got := unpacked(t, r, err); got["a"] != "1" {
			t.Errorf("%v", got)
		}
	}
}
