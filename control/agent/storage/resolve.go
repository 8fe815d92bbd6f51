package storage

import (
	"cmp"
	"encoding/json"
	"maps"
	"strings"
)

// Request is what control sends to load a model.
type Request struct {
	ID, Type string
	// Path is a URI, a path in the storage that the key describes, or a path of the engine.
	Path string
	// Key is ModelMesh's modelKey: a JSON object with storage_key, bucket, storage_params and
	// schema_path, which may each be missing, or any other text, which only the engine reads.
	Key string
}

// modelKey is the parsed key of a Request.
type modelKey struct {
	object bool // the key is a JSON object

	storageKey, bucket, schema string
	params                     map[string]string
	modelType                  json.RawMessage
}

// describesStorage reports whether the key names an entry, a bucket or parameters.
func (k modelKey) describesStorage() bool {
	return k.storageKey != "" || k.bucket != "" || len(k.params) > 0
}

// parseKey parses a key. A key that does not begin with a brace is the engine's own.
func parseKey(text string) (modelKey, error) {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return modelKey{}, nil
	}
	fields, err := readObject([]byte(text))
	if err != nil {
		return modelKey{}, faulty("the model's key %v; correct it", err)
	}
	k := modelKey{object: true, params: map[string]string{}}
	for _, field := range []struct {
		name string
		to   *string
	}{{"storage_key", &k.storageKey}, {"bucket", &k.bucket}, {"schema_path", &k.schema}} {
		switch v := fields[field.name].(type) {
		case nil:
		case string:
			*field.to = v
		default:
			return modelKey{}, faulty("%s in the model's key is no string; correct it", field.name)
		}
	}
	switch v := fields["storage_params"].(type) {
	case nil:
	case map[string]any:
		k.params = flatten(v)
	default:
		return modelKey{}, &Error{"storage_params in the model's key is no JSON object; correct it"}
	}
	if v, ok := fields["model_type"]; ok {
		k.modelType, _ = json.Marshal(v) // it was just read
	}
	return k, nil
}

// Resolve returns the source of a model. It returns false if the path is for the engine; then the
// caller passes it unchanged. A path without a scheme is for the engine, with two exceptions: the
// key describes storage, or the key is a JSON object, the path is relative, and there is an entry
// named default.
//
// The settings are those of the entry that the key names, else of default_TYPE, else of default.
// Parameters override them, and the URI overrides both. Parameters cannot send the secrets of an
// entry to another server. The error is an *[Error].
func Resolve(r Request, e Entries) (Source, bool, error) {
	k, err := parseKey(r.Key)
	if err != nil {
		return Source{}, false, err
	}
	s, isURI, err := parseURI(r.Path)
	if err != nil {
		return Source{}, false, err
	}
	if !isURI && !k.describesStorage() {
		named := k.object && r.Path != "" && !strings.HasPrefix(r.Path, "/")
		if _, ok := e["default"]; !ok || !named {
			return Source{}, false, nil
		}
	}
	if isURI && !k.object && strings.TrimSpace(r.Key) != "" {
		return Source{}, false, &Error{"the model's key is no JSON object; remove it, or name the storage-config entry there"}
	}
	if name := k.params["type"]; !isURI && name != "" {
		if s.Scheme = schemes[name]; s.Scheme == "" {
			return Source{}, false, faulty("the storage type %q is not supported; use s3, gs, azure, http, pvc, hf or oci", name)
		}
	}
	m := merger{key: k, explicit: k.storageKey != "", uri: s.Fields}
	if s.Entry, m.entry, err = e.find(k.storageKey, s.Scheme); err != nil {
		return Source{}, false, err
	}
	if s.Scheme == "" {
		if s.Scheme = schemes[m.entry["type"]]; s.Scheme == "" {
			return Source{}, false, faulty("nothing names the type of the storage of %s; set type in the storage-config entry "+
				"or in the model's parameters", quote(r.Path))
		}
	}
	if err := m.merge(&s); err != nil {
		return Source{}, false, err
	}
	if !isURI {
		if err := m.place(&s, r.Path); err != nil {
			return Source{}, false, err
		}
	}
	if err := m.bind(&s); err != nil {
		return Source{}, false, err
	}
	if err := s.setSchema(k.schema); err != nil {
		return Source{}, false, err
	}
	for _, name := range []string{"type", "bucket", "default_bucket", "container", "name", "url", "account_name"} {
		delete(s.Fields, name) // Bucket, Path and account_url have the same facts
	}
	return s, true, nil
}

// place sets the place of a source that is a path in the storage of its fields.
func (m *merger) place(s *Source, path string) error {
	path = strings.TrimLeft(path, "/")
	switch s.Scheme {
	case S3, GCS:
		s.Bucket = cmp.Or(m.key.params["bucket"], m.key.bucket, s.Fields["bucket"], s.Fields["default_bucket"])
	case Azure:
		s.Bucket = cmp.Or(s.Fields["container"], s.Fields["bucket"])
		account := cmp.Or(s.Fields["account_name"], connectionString(s.Fields["connection_string"])["accountname"])
		if !accountName.MatchString(account) {
			return faulty("the Azure storage of %s names no valid account; "+
				"set account_name or connection_string in the storage-config entry", quote(path))
		}
		m.uri = map[string]string{"account_url": "https://" + account + ".blob.core.windows.net"}
		maps.Copy(s.Fields, m.uri)
	case Claim:
		s.Bucket = s.Fields["name"]
	case Web:
		address := s.Fields["url"]
		if address == "" {
			return faulty("the HTTP storage of %s names no server; set url in the storage-config entry", quote(path))
		}
		if path != "" {
			address = strings.TrimRight(address, "/") + "/" + path
		}
		return m.placeURI(s, address)
	default:
		return m.placeURI(s, string(s.Scheme)+"://"+path)
	}
	s.Path = path
	return s.inBucket(string(s.Scheme) + "://" + s.Bucket + "/" + path)
}

// placeURI sets the place of a source to that of a URI, which was built from settings.
func (m *merger) placeURI(s *Source, uri string) error {
	at, _, err := parseURI(uri)
	if err != nil {
		return err
	}
	m.uri = at.Fields
	maps.Copy(s.Fields, at.Fields)
	s.Scheme, s.URI, s.Bucket, s.Path, s.Revision = at.Scheme, at.URI, at.Bucket, at.Path, at.Revision
	return nil
}

// setSchema sets the path of the schema file, which a model's key names by its path in the same
// bucket, or by its URI.
func (s *Source) setSchema(path string) error {
	if path == "" {
		return nil
	}
	if s.Scheme == OCI {
		return &Error{"a schema beside an image is not supported; put it into the image and remove schemaPath"}
	}
	at, isURI, err := parseURI(path)
	if err != nil {
		return err
	}
	if !isURI {
		if err := inside(path, path); err != nil {
			return err
		}
		at.Path = strings.TrimLeft(path, "/")
		if s.Scheme == Web {
			err := at.parseURL(origin(s.Path) + "/" + at.Path)
			if err != nil {
				return err
			}
		}
	} else if at.Scheme != s.Scheme || at.Bucket != s.Bucket || s.Scheme == Web && origin(at.Path) != origin(s.Path) ||
		s.Scheme == Azure && at.Fields["account_url"] != s.Fields["account_url"] {
		return faulty("the schema %s is in other storage than the model; put it beside the model", quote(path))
	}
	if at.Path == "" || strings.HasSuffix(at.Path, "/") {
		return faulty("the schema %s is no file; name a file", quote(path))
	}
	s.Schema = at.Path
	return nil
}

// connectionString returns the fields of an Azure connection string by their lower-case names.
func connectionString(text string) map[string]string {
	fields := map[string]string{}
	for part := range strings.SplitSeq(text, ";") {
		if name, value, ok := strings.Cut(part, "="); ok {
			fields[strings.ToLower(strings.TrimSpace(name))] = strings.TrimSpace(value)
		}
	}
	return fields
}
