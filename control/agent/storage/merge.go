package storage

import (
	"maps"
	"strings"
)

// servers are the fields that name a server, or how its identity is checked, by scheme.
var servers = map[Scheme][]string{
	S3:    {"endpoint_url", "verify_ssl", "certificate"},
	GCS:   {"token_uri", "endpoint_url", "verify_ssl", "certificate"},
	Azure: {"connection_string", "verify_ssl", "certificate"},
	Web:   {"url", "verify_ssl", "certificate"},
	Hub:   {"endpoint", "verify_ssl", "certificate"},
	OCI:   {"registry", "insecure", "verify_ssl", "certificate"},
}

// secrets are the fields that prove an identity, by scheme. A dot at the end includes all names
// below.
var secrets = map[Scheme][]string{
	S3:    {"access_key_id", "secret_access_key", "session_token"},
	GCS:   {"private_key"},
	Azure: {"connection_string", "client_secret", "sas"},
	Web:   {"headers.", "client_key", "user", "password", "query"},
	Hub:   {"token"},
	OCI:   {"username", "password", "token", ".dockerconfigjson", ".dockerconfigjson.", "auths."},
}

// HasSecrets reports whether the fields of a source prove an identity. If they do not, the pod's
// own cloud identity is used, or none.
func (s Source) HasSecrets() bool { return hasSecrets(s.Scheme, s.Fields) }

func hasSecrets(scheme Scheme, fields map[string]string) bool {
	for _, name := range secrets[scheme] {
		if !strings.HasSuffix(name, ".") {
			if fields[name] != "" {
				return true
			}
			continue
		}
		for field := range fields {
			if strings.HasPrefix(field, name) {
				return true
			}
		}
	}
	return false
}

// merger combines the settings of a source.
type merger struct {
	key      modelKey
	entry    map[string]string // fields of the entry
	explicit bool              // the model names the entry
	uri      map[string]string // fields that the URI sets, or the URL of a web server
}

// merge sets the fields: those of the URI before the parameters before the entry. If parameters
// name another server than the entry, an entry that the model does not name is not used, and one
// that it names is an error if it has secrets.
func (m *merger) merge(s *Source) error {
	for _, name := range servers[s.Scheme] {
		value, set := m.key.params[name]
		if !set || name == "url" || value == m.entry[name] {
			continue // a URL is compared as a whole by bind
		}
		s.CustomServer = true
		if hasSecrets(s.Scheme, m.entry) {
			if err := m.drop(s, "the parameter "+name); err != nil {
				return err
			}
		}
	}
	s.Fields = map[string]string{}
	for _, fields := range []map[string]string{m.entry, m.key.params, m.uri} {
		maps.Copy(s.Fields, fields)
	}
	return nil
}

// drop removes the entry from the settings, or fails if the model names it.
func (m *merger) drop(s *Source, what string) error {
	if m.explicit {
		return faulty("%s names another server than the storage-config entry %q, whose credentials go to its own server only; "+
			"use another entry", what, s.Entry)
	}
	s.Entry, m.entry = "", nil
	return nil
}

// bind removes the secrets of an entry for another server than that of the source.
func (m *merger) bind(s *Source) error {
	if !hasSecrets(s.Scheme, m.entry) {
		return nil
	}
	var here, own, field string
	switch s.Scheme {
	case Web:
		here, own, field = origin(s.Path), origin(m.entry["url"]), "url"
	case OCI:
		if m.entry["username"] == "" && m.entry["password"] == "" && m.entry["token"] == "" {
			return nil // each of its auths names its registry
		}
		here, own, field = registry(s.Bucket), registry(m.entry["registry"]), "registry"
	case Azure:
		here, _, _ = strings.Cut(strings.TrimPrefix(s.Fields["account_url"], "https://"), ".")
		if own = connectionString(m.entry["connection_string"])["accountname"]; own == "" {
			return nil // tokens of Microsoft's directory are for all accounts
		}
	default:
		return nil // the entry itself names the server, or the service has one
	}
	if here == own {
		return nil
	}
	if m.explicit && field != "" && m.entry[field] == "" {
		return faulty("the storage-config entry %q has credentials and no %s; set it, because they are sent to no other server",
			s.Entry, field)
	}
	if err := m.drop(s, quote(s.URI)); err != nil {
		return err
	}
	return m.merge(s)
}

// registry returns the host of the registry of an image; empty for an empty name. Docker Hub has
// several names.
func registry(image string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(image, "https://"), "http://"), "/")
	switch {
	case host == "":
		return ""
	case host == "docker.io" || host == "registry-1.docker.io" || host != "localhost" && !strings.ContainsAny(host, ".:"):
		return "index.docker.io"
	}
	return strings.ToLower(host)
}
