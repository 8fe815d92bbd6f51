package files

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/internal/atomicfile"
)

// record describes a source that is here, complete or not. Its JSON is in record.json.
type record struct {
	Name    string         `json:"name"`   // hash of the source and its version
	Source  string         `json:"source"` // hash of the source
	URI     string         `json:"uri"`    // without credentials
	Scheme  storage.Scheme `json:"scheme"`
	Objects []fetch.Object `json:"objects,omitempty"`
	Single  bool           `json:"single,omitempty"`
	Schema  *fetch.Object  `json:"schema,omitempty"`
	Link    string         `json:"link,omitempty"`
	// Versioned means that every object has a version or digest. Otherwise, only the calls that
	// share the download use the files, because a later call cannot detect a change.
	Versioned bool `json:"versioned"`
	// PartSize is the size of the parts that the journal counts; 0 if each object is one part.
	PartSize int64 `json:"partSize,omitempty"`
	// Bytes and Model are the sizes of all files, and of those without the schema. They are 0 until
	// the source is complete.
	Bytes int64 `json:"bytes,omitempty"`
	Model int64 `json:"model,omitempty"`
	// Boot identifies the time since the machine started. Files that are not Synced are lost or
	// damaged after another start.
	Boot   string `json:"boot,omitempty"`
	Synced bool   `json:"synced,omitempty"`

	// listed are the objects and the schema with their keys. They are not stored, because keys may
	// be secret. It is nil if an earlier process fetched the source.
	listed []fetch.Object
}

const recordFile = "record.json"

// describe returns the record of a listing. Its names are safe.
func describe(src storage.Source, l fetch.Listing) (record, error) {
	r := record{
		Source: sourceHash(src), URI: src.URI, Scheme: src.Scheme, Single: l.Single, Schema: l.Schema, Link: l.Link,
		Versioned: true,
	}
	archives := 0
	for _, o := range l.Objects {
		if o.Archive != nil {
			archives++
		} else if strings.HasSuffix(o.Name, "/") && o.Size == 0 {
			continue // how some tools mark a folder
		}
		r.Objects = append(r.Objects, o)
	}
	switch {
	case len(r.Objects) == 0 && l.Link == "":
		return record{}, fail(fetch.Empty, src.URI, "there are no files; check the path")
	case archives > 0 && archives < len(r.Objects):
		return record{}, fail(fetch.Invalid, src.URI, "it has archives and other files; only one of them can be a model")
	case l.Single && len(r.Objects) != 1 && l.Link == "":
		return record{}, fail(fetch.Invalid, src.URI, "it has %d objects instead of one", len(r.Objects))
	}
	if archives == 0 {
		if name, ok := safeNames(r.Objects); !ok {
			return record{}, fail(fetch.Unsafe, src.URI, "the name %q cannot be a file in the model's folder; rename the object", shorten(name))
		}
	}
	if l.Schema != nil && (!isSafe(l.Schema.Name) || strings.Contains(l.Schema.Name, "/")) {
		return record{}, fail(fetch.Unsafe, src.URI, "the name %q cannot be that of a schema file", shorten(l.Schema.Name))
	}
	r.listed = slices.Clone(r.targets())
	for i, o := range r.listed {
		r.Versioned = r.Versioned && versionOf(o) != ""
		o.Key = ""
		if i < len(r.Objects) {
			r.Objects[i] = o
		} else {
			r.Schema = &o
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return record{}, err
	}
	if !r.Versioned {
		text = append(text, rand.Text()...)
	}
	r.Name = hash(text)
	return r, nil
}

// targets returns the objects, and the schema as the last one.
func (r *record) targets() []fetch.Object {
	if r.Schema == nil {
		return r.Objects
	}
	return append(slices.Clip(r.Objects), *r.Schema)
}

// file returns the slash-separated path of an object below the folder of its source.
func (r *record) file(i int) string {
	switch {
	case i == len(r.Objects):
		return path.Join("schema", r.Schema.Name)
	case r.Objects[i].Archive != nil:
		return path.Join("blobs", strconv.Itoa(i))
	}
	return path.Join("files", r.Objects[i].Name)
}

// isArchive reports whether the source consists of archives.
func (r *record) isArchive() bool { return len(r.Objects) > 0 && r.Objects[0].Archive != nil }

// versionOf returns the version or the digest of an object; empty if it has neither. A checksum of
// 32 bits is too short to identify a version.
func versionOf(o fetch.Object) string {
	if o.Version == "" && !strings.HasPrefix(o.Digest, "crc32c:") {
		return o.Digest
	}
	return o.Version
}

// isSafe reports whether name is a slash-separated path below a folder, in its shortest form.
func isSafe(name string) bool {
	return name != "." && filepath.IsLocal(filepath.FromSlash(name)) && path.Clean(name) == name &&
		!strings.ContainsRune(name, 0) && len(name) < 4096
}

// safeNames reports whether the objects can be files of one folder, and returns a name that cannot.
func safeNames(objects []fetch.Object) (string, bool) {
	seen := make(map[string]bool, len(objects)) // value: a file; otherwise a folder
	for _, o := range objects {
		if _, twice := seen[o.Name]; twice || !isSafe(o.Name) {
			return o.Name, false
		}
		seen[o.Name] = true
		for dir := path.Dir(o.Name); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return dir, false
			}
			seen[dir] = false
		}
	}
	return "", true
}

// shorten returns the beginning of a name, for messages.
func shorten(name string) string {
	if len(name) <= 80 {
		return name
	}
	return name[:80] + "…"
}

// credentials are the settings of a source that do not change its files.
var credentials = []string{
	"access_key_id", "secret_access_key", "session_token", "private_key", "client_email", "token_uri", "client_id", "client_secret",
	"tenant_id", "sas", "user", "username", "password", "token", "headers.Authorization", "certificate", "client_certificate", "client_key",
	"verify_ssl",
}

// sourceHash identifies a source without its credentials, so that files on disk stay usable with
// new ones. The Store checks the new credentials before it uses the files.
func sourceHash(src storage.Source) string {
	src.Fields = maps.Clone(src.Fields)
	maps.DeleteFunc(src.Fields, func(name, _ string) bool {
		return slices.Contains(credentials, name) || strings.HasPrefix(name, "auths.")
	})
	return src.Key()
}

// hash returns a short hash that is a safe file name.
func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// readRecord reads the record of a folder, and when its source was last used.
func readRecord(dir string) (r record, used time.Time, err error) {
	name := filepath.Join(dir, recordFile)
	if err := readJSON(name, &r); err != nil {
		return r, used, err
	}
	info, err := os.Stat(name)
	if err != nil {
		return r, used, err
	}
	return r, info.ModTime(), nil
}

// readJSON reads a value from a file.
func readJSON(name string, v any) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// writeJSON writes a value to a file in one step.
func writeJSON(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Write(name, text, 0o644)
}

// bootID returns an id that changes when the machine starts; empty if it is not known.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// survives reports whether the files of a record are still as written.
func (r *record) survives(boot string) bool { return r.Synced || boot != "" && r.Boot == boot }
