package fetch

import (
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/headgate/headgate/control/agent/storage"
)

// dockerConfig is the field whose name and content are those of a Secret of the type
// kubernetes.io/dockerconfigjson.
const dockerConfig = ".dockerconfigjson"

// registryAuth returns the credentials for a registry from a source's fields; nil if there are
// none. The fields are username and password, or token, with the registry's name in registry; or
// .dockerconfigjson with the JSON of a config.json; or the flattened fields of such JSON. Each set
// of credentials names its registry, so the author of a Model cannot send it to another server.
func registryAuth(fields map[string]string, registry string) (*authn.AuthConfig, error) {
	auths := make(map[string]authn.AuthConfig)
	if text := fields[dockerConfig]; text != "" {
		var config struct {
			Auths map[string]authn.AuthConfig `json:"auths"`
		}
		if json.Unmarshal([]byte(text), &config) != nil {
			return nil, errors.New("the field .dockerconfigjson of its credentials is no config.json; check the Secret")
		}
		maps.Copy(auths, config.Auths)
	}
	flat := make(map[string]map[string]string)
	for key, value := range fields {
		rest, ok := strings.CutPrefix(strings.TrimPrefix(key, dockerConfig+"."), "auths.")
		dot := strings.LastIndexByte(rest, '.')
		if !ok || dot < 0 {
			continue
		}
		if flat[rest[:dot]] == nil {
			flat[rest[:dot]] = make(map[string]string)
		}
		flat[rest[:dot]][rest[dot+1:]] = value
	}
	for host, values := range flat {
		text, _ := json.Marshal(values)
		var auth authn.AuthConfig
		if json.Unmarshal(text, &auth) != nil {
			return nil, errors.New("auths of its credentials cannot be read; check the Secret")
		}
		auths[host] = auth
	}
	for _, host := range slices.Sorted(maps.Keys(auths)) {
		if sameRegistry(host, registry) {
			return new(auths[host]), nil
		}
	}
	if fields["username"] == "" && fields["password"] == "" && fields["token"] == "" {
		return nil, nil
	}
	if fields["registry"] == "" {
		return nil, errors.New("its credentials name no registry; add the field registry with the registry's host")
	}
	if !sameRegistry(fields["registry"], registry) {
		return nil, errors.New("its credentials are for another registry; choose the storage key of this one")
	}
	return &authn.AuthConfig{Username: fields["username"], Password: fields["password"], RegistryToken: fields["token"]}, nil
}

// sameRegistry reports whether a key of config.json means a registry. Keys may be URLs.
func sameRegistry(key, registry string) bool {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key, _, _ = strings.Cut(key, "/")
	if key == "docker.io" || key == "registry-1.docker.io" {
		key = name.DefaultRegistry
	}
	return strings.EqualFold(key, registry)
}

// fixedKeychain has the credentials of one registry.
type fixedKeychain struct {
	registry string
	auth     authn.Authenticator
}

func (k fixedKeychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if r.RegistryStr() == k.registry {
		return k.auth, nil
	}
	return authn.Anonymous, nil
}

// guard refuses HTTP without TLS to other machines, unless the source allows it. The registry's
// client would otherwise fall back to it for private addresses, and send the credentials. guard
// also stores the Retry-After of the latest answer, which the client's errors do not contain.
type guard struct {
	next     http.RoundTripper
	src      storage.Source
	insecure bool
	pause    atomic.Int64 // seconds
}

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if host := r.URL.Hostname(); r.URL.Scheme != "https" && !g.insecure && host != "localhost" && !net.ParseIP(host).IsLoopback() {
		return nil, failure(g.src, Busy,
			"%s does not answer by HTTPS; if it has HTTP only, set insecure to \"true\" in its storage-config entry", r.URL.Host)
	}
	answer, err := g.next.RoundTrip(r)
	if err == nil {
		g.pause.Store(int64(seconds(answer.Header.Get("Retry-After"), time.Now())))
	}
	return answer, err
}

// mediaType returns a media type of a registry for a message.
func mediaType(m types.MediaType) string { return printable(string(m)) }

// printable returns a name from a server's answer for a message: shortened, with common characters
// only.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if strings.ContainsRune("/.+-_:", r) || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return -1
	}, s)
	if len(s) > 100 {
		s = s[:100]
	}
	return s
}
